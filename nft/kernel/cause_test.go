package kernel_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/strict"
)

func TestCauses(t *testing.T) {
	for want, errnos := range map[string][]unix.Errno{
		"part":     {unix.EEXIST, unix.EBUSY, unix.EINVAL, unix.ERANGE, unix.EOPNOTSUPP, unix.ENOENT, unix.ENOTTY},
		"shortage": {unix.ENOMEM, unix.ENOBUFS, unix.EMSGSIZE, unix.ENFILE, unix.ENOSPC},
		"others":   {unix.EPERM, unix.EACCES, unix.EINTR, unix.EAGAIN, unix.ERESTART, unix.EMFILE, unix.ETIMEDOUT},
	} {
		for _, errno := range errnos {
			if got := kernel.Cause(errno); got != want {
				t.Errorf("%v is %s, want %s", errno, got, want)
			}
		}
	}
}

// TestParts: a refusal names the parts that are at fault themselves.
func TestParts(t *testing.T) {
	id := table(nft.IPv4)
	set := &nft.Set{Name: "services", Key: serviceKey, Verdicts: true}
	element := owned("ns/svc", nft.Element{Set: "services", Key: servicePrefix(nft.IPv4, 1, 6, 80),
		Verdict: goTo("endpoints-1")})
	other := owned("ns/other", element.Element)
	add := nft.AddElements{Table: id, Set: set, Elements: []nft.OwnedElement{element}}
	refusal := func(op nft.Op, e *nft.OwnedElement, errno unix.Errno) kernel.OpError {
		return kernel.OpError{Op: op, Element: e, Table: id, Errno: errno}
	}
	for _, test := range []struct {
		name   string
		errors []kernel.OpError
		parts  []string
		short  bool
	}{
		{"an element that is there", []kernel.OpError{refusal(add, &element, unix.EEXIST)}, []string{"ns/svc"}, false},
		{"an element to no chain", []kernel.OpError{refusal(add, &element, unix.ENOENT)}, []string{"ns/svc"}, false},
		{"an element to a refused chain", []kernel.OpError{
			refusal(nft.AddChain{Table: id, Chain: &nft.Chain{Name: "endpoints-1"}}, nil, unix.ENOMEM),
			refusal(add, &element, unix.ENOENT),
		}, nil, true},
		{"an element of a refused set", []kernel.OpError{
			refusal(nft.AddSet{Table: id, Set: set}, nil, unix.EINVAL), refusal(add, &element, unix.EINVAL),
		}, nil, false},
		{"a deleted element that is not there", []kernel.OpError{refusal(nft.DeleteElements(add), &element, unix.ENOENT)},
			nil, false},
		{"a key that could not be deleted before", []kernel.OpError{
			refusal(nft.DeleteElements(add), &other, unix.ENOMEM), refusal(add, &element, unix.EEXIST),
		}, nil, true},
		{"a key that could not be deleted, for its own sake", []kernel.OpError{
			refusal(nft.DeleteElements(add), &other, unix.EINVAL), refusal(add, &element, unix.EEXIST),
		}, []string{"ns/other"}, false},
		{"an element in no set", []kernel.OpError{refusal(add, nil, unix.ENOENT)}, nil, false},
		{"a full set", []kernel.OpError{refusal(add, &element, unix.ENFILE)}, nil, true},
		{"no memory", []kernel.OpError{refusal(add, &element, unix.ENOMEM)}, nil, true},
		{"another's table", []kernel.OpError{refusal(add, &element, unix.EPERM)}, nil, false},
		{"another generation", []kernel.OpError{refusal(nil, nil, unix.ERESTART)}, nil, false},
	} {
		e := &kernel.BatchError{Errors: test.errors}
		if diff := cmp.Diff(test.parts, e.Parts()); diff != "" || e.Short() != test.short {
			t.Errorf("%s: short is %v, parts (-want +got):\n%s", test.name, e.Short(), diff)
		}
	}
}

// TestTooLargeToSend: a batch that the kernel cannot receive as one datagram goes in as
// several transactions. If the kernel cannot receive a single message, the batch fails
// for lack of memory.
func TestTooLargeToSend(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.EMSGSIZE, unix.ENOMEM} {
		t.Run(fmt.Sprint(errno), func(t *testing.T) {
			_, c := open(t)
			n := 5000
			if testing.Short() {
				n = 1500
			}
			p := services(n, 5)
			before, err := c.Generation()
			must(t, err)
			c.LimitSend(200_000, errno)
			must(t, c.Apply(load(p)))
			after, err := c.Generation()
			must(t, err)
			if n := after - before; n < 5 || n > 100 {
				t.Errorf("%d transactions", n)
			}
			m, err := c.Read(p)
			must(t, err)
			want := nft.NewModel()
			must(t, strict.Apply(want, load(p)))
			if m.String() != want.String() {
				t.Error("what was read differs from what was applied")
			}
			must(t, c.DeleteTables(tableName))

			c.LimitSend(100, errno)
			var refused *kernel.BatchError
			if err := c.Apply(load(p)); !errors.As(err, &refused) || !refused.Short() || !errors.Is(err, errno) {
				t.Errorf("refused with %v", err)
			}
		})
	}
}

package kernel_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/strict"
)

// refusals returns the errors of a batch that the kernel must refuse.
func refusals(t *testing.T, err error) []kernel.OpError {
	t.Helper()
	var batch *kernel.BatchError
	if !errors.As(err, &batch) {
		t.Fatalf("error is %v, not a BatchError", err)
	}
	if batch.Partial || errors.Is(err, kernel.ErrOutcomeUnknown) {
		t.Errorf("the outcome of %v is known", err)
	}
	return batch.Errors
}

func owned(part string, e nft.Element) nft.OwnedElement {
	return nft.OwnedElement{Element: e, Part: part}
}

// setsOnly has the sets of everything and two chains, in both families.
func setsOnly(t *testing.T) (*kernel.Conn, *nft.Program) {
	t.Helper()
	_, c := open(t)
	small := []*nft.Chain{{Name: "refuse"}, {Name: "endpoints-1"}}
	p := &nft.Program{IPv4: newTable(nft.IPv4, sets(), small, nil), IPv6: newTable(nft.IPv6, sets(), small, nil)}
	must(t, c.Apply(load(p)))
	return c, p
}

// The element counts are chosen so that the list spans several messages.
func TestConflictNamesTheElement(t *testing.T) {
	for _, test := range []struct {
		elements, conflict int
		withoutOffsets     bool
	}{
		{1, 0, false}, {1000, 617, false}, {5000, 0, false}, {5000, 4999, false}, {5000, 2500, false},
		{1, 0, true}, {1000, 617, true}, {5000, 4999, true},
	} {
		t.Run(fmt.Sprintf("%d of %d, without offsets %v", test.conflict, test.elements, test.withoutOffsets),
			func(t *testing.T) {
				c, p := setsOnly(t)
				if test.withoutOffsets {
					must(t, c.HideOffsets())
				}
				set := p.IPv4.Set("services")
				var add []nft.OwnedElement
				for i := range test.elements {
					// Comments of every length, so that elements start anywhere.
					add = append(add, owned(fmt.Sprintf("ns/svc-%d", i), nft.Element{
						Set: set.Name, Key: servicePrefix(nft.IPv4, i, 6, 80), Verdict: goTo("refuse"),
						Comment: strings.Repeat("c", i%nft.MaxComment),
					}))
				}
				there := add[test.conflict]
				there.Verdict = goTo("endpoints-1")
				must(t,
					c.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: table(nft.IPv4), Set: set,
						Elements: []nft.OwnedElement{there}}}}))

				err := c.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: table(nft.IPv4), Set: set, Elements: add}}})
				got := refusals(t, err)
				if len(got) != 1 || got[0].Element == nil || got[0].Element.Part != add[test.conflict].Part ||
					!errors.Is(err, unix.EEXIST) {
					t.Fatalf("conflict is reported as %v", err)
				}
				if diff := cmp.Diff(add[test.conflict], *got[0].Element); diff != "" {
					t.Errorf("element of the error (-want +got):\n%s", diff)
				}
				m, err := c.Read(p)
				must(t, err)
				if n := len(m.Table(table(nft.IPv4)).Sets[set.Name].Elements); n != 1 {
					t.Errorf("%d elements after a refused batch, not 1", n)
				}
			})
	}
}

func TestErrorText(t *testing.T) {
	c, p := setsOnly(t)
	id := table(nft.IPv4)
	element := owned("default/web", nft.Element{Set: "services", Key: servicePrefix(nft.IPv4, 1, 6, 80),
		Verdict: goTo("nowhere")})
	for _, test := range []struct {
		name string
		op   nft.Op
		errs map[string]syscall.Errno
	}{
		{"missing element", nft.DeleteElements{Table: id, Set: p.IPv4.Set("services"), Elements: []nft.OwnedElement{element}},
			map[string]syscall.Errno{
				"delete element ip nftproxy services { 10.96.0.1 . tcp . 80 } (default/web): no such file or " +
					"directory": unix.ENOENT,
			}},
		{"element to a missing chain", nft.AddElements{Table: id, Set: p.IPv4.Set("services"),
			Elements: []nft.OwnedElement{element}}, map[string]syscall.Errno{
			"add element ip nftproxy services { 10.96.0.1 . tcp . 80 : goto nowhere } (default/web): no such file or " +
				"directory": unix.ENOENT,
		}},
		{"set that is there", nft.AddSet{Table: id, Set: p.IPv4.Set("services")}, map[string]syscall.Errno{
			"add map ip nftproxy services { typeof ip daddr . meta l4proto . th dport : verdict; }: file exists": unix.EEXIST,
		}},
		{"chain that is there", nft.AddChain{Table: id, Chain: &nft.Chain{Name: "refuse"}}, map[string]syscall.Errno{
			"add chain ip nftproxy refuse: file exists": unix.EEXIST,
		}},
		{"missing chain", nft.DeleteChain{Table: id, Chain: "nowhere"}, map[string]syscall.Errno{
			"delete chain ip nftproxy nowhere: no such file or directory": unix.ENOENT,
		}},
		{"missing chain flushed", nft.FlushChain{Table: id, Chain: "nowhere"}, map[string]syscall.Errno{
			"flush chain ip nftproxy nowhere: no such file or directory": unix.ENOENT,
		}},
		{"missing table", nft.DeleteTable{Table: nft.TableID{Family: nft.IPv6, Name: "other"}}, map[string]syscall.Errno{
			"delete table ip6 other: no such file or directory": unix.ENOENT,
		}},
		{"second of two rules", nft.AddRules{Table: id, Chain: &nft.Chain{Name: "refuse", Rules: []nft.Rule{{nft.Reject{}},
			{jump("nowhere")}}}}, map[string]syscall.Errno{
			"add rule ip nftproxy refuse jump nowhere: no such file or directory": unix.ENOENT,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := c.Apply(nft.Batch{Ops: []nft.Op{test.op}})
			got := map[string]syscall.Errno{}
			for _, e := range refusals(t, err) {
				e.Hint = "" // the test is not about the advice
				got[e.Error()] = e.Errno
			}
			if diff := cmp.Diff(test.errs, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

// A kernel that has no interval concatenations only says EINVAL. This kernel has them, but
// none of 80 bytes.
func TestHintAboutIntervals(t *testing.T) {
	c, _ := setsOnly(t)
	set := &nft.Set{Name: "wide", Key: nft.Fields{nft.Saddr, nft.Daddr, nft.Saddr, nft.Daddr, nft.Saddr}, Interval: true}
	err := c.Apply(nft.Batch{Ops: []nft.Op{nft.AddSet{Table: table(nft.IPv6), Set: set}}})
	if err == nil || !strings.Contains(err.Error(), "since 5.6") {
		t.Errorf("error is %v", err)
	}
}

// A batch has several refusals, in both families and in several operations, with good
// elements between them.
func TestAllErrorsOfABatch(t *testing.T) {
	c, p := setsOnly(t)
	var b nft.Batch
	want := map[string]bool{}
	for _, f := range nft.Families() {
		set := p.Table(f).Set("addresses")
		for i := range 20 {
			part := fmt.Sprintf("%s-%d", f, i)
			e := []nft.OwnedElement{owned(part, nft.Element{Set: set.Name, Key: addrValue(f, i)})}
			if i%3 == 0 {
				b.Ops = append(b.Ops, nft.DeleteElements{Table: table(f), Set: set, Elements: e})
				want[part] = true
				continue
			}
			b.Ops = append(b.Ops, nft.AddElements{Table: table(f), Set: set, Elements: e})
		}
	}
	got := map[string]bool{}
	for _, e := range refusals(t, c.Apply(b)) {
		if e.Errno != unix.ENOENT || e.Element == nil {
			t.Errorf("unexpected error %v", &e)
			continue
		}
		got[e.Element.Part] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parts with an error (-want +got):\n%s", diff)
	}
}

// No element is at fault if the table has gone.
func TestMissingTableIsNoElementsFault(t *testing.T) {
	c, p := setsOnly(t)
	must(t, c.DeleteTables(tableName))
	set := p.IPv4.Set("addresses")
	for _, n := range []int{1, 2} {
		add := nft.AddElements{Table: table(nft.IPv4), Set: set}
		for i := range n {
			add.Elements = append(add.Elements, owned("p", nft.Element{Set: set.Name, Key: addrValue(nft.IPv4, i)}))
		}
		for _, e := range refusals(t, c.Apply(nft.Batch{Ops: []nft.Op{add}})) {
			if e.Element != nil || e.Errno != unix.ENOENT {
				t.Errorf("%d elements for a missing table: %v of element %v", n, &e, e.Element)
			}
		}
	}
}

// The kernel's queue holds 256 errors and loses the rest. The loss must not make a failed
// batch look like a success, and must not disturb the next batch.
func TestMoreErrorsThanTheQueueHolds(t *testing.T) {
	c, p := setsOnly(t)
	set := p.IPv4.Set("addresses")
	var b nft.Batch
	for i := range 2000 {
		b.Ops = append(b.Ops, nft.DeleteElements{Table: table(nft.IPv4), Set: set,
			Elements: []nft.OwnedElement{owned("p", nft.Element{Set: set.Name, Key: addrValue(nft.IPv4, i)})}})
	}
	if n := len(refusals(t, c.Apply(b))); n < 100 || n > 2000 {
		t.Errorf("%d errors", n)
	}
	good := nft.AddElements{Table: table(nft.IPv4), Set: set,
		Elements: []nft.OwnedElement{owned("p", nft.Element{Set: set.Name, Key: addrValue(nft.IPv4, 1)})}}
	must(t, c.Apply(nft.Batch{Ops: []nft.Op{good}}))
	must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteElements(good)}}))
	if err := c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteElements(good)}}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("deleting twice: %v", err)
	}
}

// An error that the kernel finds at the end of a transaction names no operation.
func TestLoopIsAnErrorOfTheTransaction(t *testing.T) {
	_, c := open(t)
	loop := []*nft.Chain{
		{Name: "a", Rules: []nft.Rule{{nft.VMap{Key: nft.Fields{nft.Dport}, Map: "port-verdicts"}}}},
		{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100}, Rules: []nft.Rule{{jump("a")}}},
	}
	part := nft.NewPart([]nft.Element{{Set: "port-verdicts", Key: nft.Value(nft.AppendPort(nil, 1)), Verdict: goTo("a")}},
		nil)
	p := &nft.Program{
		IPv4: newTable(nft.IPv4, sets(), loop, map[string]*nft.Part{"p": part}),
		IPv6: newTable(nft.IPv6, nil, nil, nil),
	}
	got := refusals(t, c.Apply(load(p)))
	if len(got) == 0 || got[0].Errno != unix.EMLINK && got[0].Errno != unix.ELOOP {
		t.Errorf("loop is reported as %v", got)
	}
	tables, err := c.Tables(tableName)
	must(t, err)
	if len(tables) != 0 {
		t.Errorf("tables after a refused batch: %v", tables)
	}
}

// An operation that cannot be encoded is refused before anything is sent.
func TestOperationWithoutEncoding(t *testing.T) {
	c, p := setsOnly(t)
	before, err := c.Generation()
	must(t, err)
	id := table(nft.IPv4)
	set := p.IPv4.Set("services")
	key := servicePrefix(nft.IPv4, 1, 6, 80)
	for _, e := range []nft.Element{
		{Set: set.Name, Key: key[1:], Verdict: goTo("refuse")},
		{Set: set.Name, Key: key},
		{Set: set.Name, Key: key, Data: "data", Verdict: goTo("refuse")},
		{Set: set.Name, Key: key, Verdict: goTo("refuse"), Comment: strings.Repeat("x", nft.MaxComment+1)},
		{Set: set.Name, Key: key, Verdict: goTo(strings.Repeat("x", 256))},
	} {
		err := c.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: id, Set: set,
			Elements: []nft.OwnedElement{owned("default/web", e)}}}})
		if err == nil || !strings.Contains(err.Error(), "default/web") {
			t.Errorf("element %+v: error is %v", e, err)
		}
	}
	rule := &nft.Chain{Name: "refuse", Rules: []nft.Rule{{nft.Unknown{}}}}
	if err := c.Apply(nft.Batch{Ops: []nft.Op{nft.AddRules{Table: id, Chain: rule}}}); err == nil {
		t.Error("a rule of unknown content was applied")
	}
	after, err := c.Generation()
	must(t, err)
	if before != after {
		t.Errorf("generation went from %d to %d", before, after)
	}
}

// 10,000 services with 10 endpoints each go in with one transaction of several MB. Read
// returns all of them, and further batches change and delete them.
func TestLargeBatch(t *testing.T) {
	_, c := open(t)
	n, endpoints := 10_000, 10
	if testing.Short() {
		n = 2_000
	}
	p := services(n, endpoints)
	before, err := c.Generation()
	must(t, err)
	must(t, c.Apply(load(p)))
	after, err := c.Generation()
	must(t, err)
	if after != before+1 {
		t.Errorf("%d transactions, not 1", after-before)
	}
	m, err := c.Read(p)
	must(t, err)
	for set, want := range map[string]int{"services": n, "endpoints": n * endpoints} {
		if got := len(m.Table(table(nft.IPv4)).Sets[set].Elements); got != want {
			t.Errorf("set %s has %d elements, not %d", set, got, want)
		}
	}
	want := nft.NewModel()
	must(t, strict.Apply(want, load(p)))
	if m.String() != want.String() {
		t.Error("what was read differs from what was applied")
	}
	must(t, c.DeleteTables(tableName))
}

package kernel_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
)

// grown is a program of services whose number of endpoints goes up with theirs,
// so that each has chains that the one before has not.
func grown(n int) *nft.Program {
	p := services(n, 1)
	for i := range n {
		endpoints := 1 + i/4
		q := services(0, endpoints)
		name := fmt.Sprintf("endpoints-%d", endpoints)
		chain, _ := q.IPv4.Chains.Get(name)
		p.IPv4.Chains = p.IPv4.Chains.Set(name, chain)
		p.IPv4.Parts = p.IPv4.Parts.Set(fmt.Sprintf("ns/svc-%d", i), service(name, i, endpoints, 0))
	}
	return p
}

// The kernel takes what Plan does with sets that outgrow their sizes, one after
// the other and both at once, and has what the model has.
func TestOutgrown(t *testing.T) {
	_, c := open(t)
	want, s, seen := nft.NewModel(), nft.State{}, map[string]uint32{}
	remade, both := 0, 0
	for n := 1; n <= 200; n += 1 + n/8 {
		p := grown(n)
		b, next := s.Plan(p, timeZero)
		must(t, want.Apply(b))
		must(t, c.Apply(b))
		s = next
		got, err := c.Read(p)
		must(t, err)
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Fatalf("%d services, applied and read (-want +got):\n%s", n, diff)
		}
		changed := 0
		for name, set := range got.Table(table(nft.IPv4)).Sets {
			if old := seen[name]; old != 0 && old != set.Set.Size {
				changed++
			}
			seen[name] = set.Set.Size
		}
		if remade += changed; changed == 2 {
			both++
		}
		if b, _ := nft.Adopt(got, p).Plan(p, timeZero); !b.Empty() {
			t.Fatalf("%d services, what was read is changed by\n%s", n, b)
		}
	}
	if remade < 10 || both == 0 {
		t.Errorf("%d sets were made anew, %d times two at once: the test shows nothing", remade, both)
	}
}

// A table of a version that declared no sizes gets them, in one transaction.
func TestSizesForATableWithout(t *testing.T) {
	_, c := open(t)
	p := grown(50)
	must(t, c.Apply(load(unlimited(p))))
	have, err := c.Read(p)
	must(t, err)
	before, err := c.Generation()
	must(t, err)
	b, _ := nft.Adopt(have, p).Plan(p, timeZero)
	must(t, c.Apply(b))
	after, err := c.Generation()
	must(t, err)
	if after != before+1 {
		t.Errorf("%d transactions", after-before)
	}
	got, err := c.Read(p)
	must(t, err)
	if diff := cmp.Diff(p.String(), got.String()); diff != "" {
		t.Errorf("wanted and read (-want +got):\n%s", diff)
	}
}

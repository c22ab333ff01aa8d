package kernel_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
)

// grown is a program of services whose number of endpoints grows with the number of
// services, so that each program has chains that the one before has not.
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

// The kernel takes batches that make sets again which have outgrown their sizes, one set or
// two at once. Then it has what the model has.
func TestOutgrown(t *testing.T) {
	_, c := open(t)
	want, s, seen := nft.NewModel(), nft.State{}, map[string]uint32{}
	remade, both := 0, 0
	for n := 1; n <= 200; n += 1 + n/8 {
		p := grown(n)
		b, next := s.Plan(p, timeZero)
		must(t, strict.Apply(want, b))
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

// A table of a version that declared no sizes gets them in one transaction. It gets them
// even if idle chains with unknown rules look into the sets that are replaced.
func TestTableWithoutSizes(t *testing.T) {
	_, c := open(t)
	p := grown(50)
	must(t, c.Apply(load(unlimited(grown(60)))))
	have, err := c.Read(p)
	must(t, err)
	before, err := c.Generation()
	must(t, err)
	b, s := nft.Adopt(have, p).Plan(p, timeZero)
	must(t, c.Apply(b))
	after, err := c.Generation()
	must(t, err)
	if after != before+1 {
		t.Errorf("%d transactions", after-before)
	}
	got, err := c.Read(p)
	must(t, err)
	if idle := check.Idle(p, got); len(idle) == 0 {
		t.Error("no chain was left: the test shows nothing")
	}
	// The chains are wanted again. Later they are idle, and are deleted after IdleLife.
	again := grown(60)
	b, s = s.Plan(again, timeZero)
	must(t, c.Apply(b))
	got, err = c.Read(again)
	must(t, err)
	if diff := check.Diff(again, got); diff != "" {
		t.Errorf("wanted again and read (-want +got):\n%s", diff)
	}
	b, s = s.Plan(p, timeZero)
	must(t, c.Apply(b))
	b, _ = s.Plan(p, timeZero.Add(nft.IdleLife))
	must(t, c.Apply(b))
	got, err = c.Read(p)
	must(t, err)
	if diff := check.Diff(p, got); diff != "" {
		t.Errorf("wanted and read (-want +got):\n%s", diff)
	}
	if idle := check.Idle(p, got); len(idle) > 0 {
		t.Errorf("still there: %v", idle)
	}
}

// Elements are not at fault where the kernel refused their set.
func TestRefusedSetBlamesNoElement(t *testing.T) {
	_, c := open(t)
	p := grown(8)
	must(t, c.Apply(load(p)))
	set := p.IPv4.Set("endpoints")
	element := nft.Element{Set: set.Name, Key: servicePrefix(nft.IPv4, 0, 6, 80).WithIndex(0),
		Data: endpoint(nft.IPv4, 77, 77)}
	services := p.IPv4.Set("services")
	bad := nft.Element{Set: services.Name, Key: servicePrefix(nft.IPv4, 0, 6, 80), Verdict: nft.Verdict{Code: nft.Drop}}
	err := c.Apply(nft.Batch{Ops: []nft.Op{
		nft.DeleteSet{Table: table(nft.IPv4), Set: set.Name}, // busy
		nft.AddElements{Table: table(nft.IPv4), Set: set, Elements: []nft.OwnedElement{owned("innocent", element)}},
		nft.AddElements{Table: table(nft.IPv4), Set: services, Elements: []nft.OwnedElement{owned("guilty", bad)}},
	}})
	if n := len(refusals(t, err)); n != 3 {
		t.Errorf("%d refusals: %v", n, err)
	}
	batch := (*kernel.BatchError)(nil)
	if errors.As(err, &batch); !slices.Equal(batch.Parts(), []string{"guilty"}) {
		t.Errorf("blamed are %v", batch.Parts())
	}
}

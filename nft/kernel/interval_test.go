package kernel_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
)

const addressRanges = "address-ranges"

// addressRange is an interval of addresses.
func addressRange(first, last netip.Addr, comment string) nft.Element {
	return nft.Element{Set: addressRanges, Key: nft.Value(first.AsSlice()), KeyEnd: nft.Value(last.AsSlice()),
		Comment: comment}
}

// Intervals of one field come, go, grow and shrink beside others that adjoin them. The
// kernel always has the same as the model.
func TestIntervalsOfOneField(t *testing.T) {
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			_, c := open(t)
			rng := rand.New(rand.NewPCG(1, uint64(f)))
			p := &nft.Program{IPv4: newTable(nft.IPv4, sets(), nil, nil), IPv6: newTable(nft.IPv6, sets(), nil, nil)}
			model, state := nft.NewModel(), nft.State{}
			adjoining, first, last := 0, 0, 0
			for range 100 {
				ranges := disjointRanges(rng, f)
				for i, r := range ranges {
					if i > 0 && before(r.Key) == ranges[i-1].KeyEnd {
						adjoining++
					}
				}
				if n := len(ranges); n > 0 {
					everywhere := netip.PrefixFrom(addr(f, 0), 0).Masked()
					if ranges[0].Key == nft.Value(everywhere.Addr().AsSlice()) {
						first++
					}
					if ranges[n-1].KeyEnd == nft.Value(nft.LastAddr(everywhere).AsSlice()) {
						last++
					}
				}
				changed := *p.Table(f)
				changed.Parts = changed.Parts.Set("ranges", nft.NewPart(ranges, nil))
				if p = (&nft.Program{IPv4: &changed, IPv6: p.IPv6}); f == nft.IPv6 {
					p = &nft.Program{IPv4: newTable(nft.IPv4, sets(), nil, nil), IPv6: &changed}
				}
				b, next := state.Plan(p, timeZero)
				must(t, strict.Apply(model, b))
				must(t, c.Apply(b))
				state = next
				got, err := c.Read(p)
				must(t, err)
				if diff := check.Diff(p, got); diff != "" {
					t.Fatalf("after\n%s\nwanted and read (-want +got):\n%s", b, diff)
				}
				if diff := cmp.Diff(model.String(), got.String()); diff != "" {
					t.Fatalf("after\n%s\nmodel and kernel (-want +got):\n%s", b, diff)
				}
			}
			if adjoining < 50 || first < 5 || last < 5 {
				t.Errorf("%d adjoining intervals, %d from the first address, %d to the last: the test shows nothing", adjoining,
					first, last)
			}
		})
	}
}

// disjointRanges are disjoint intervals, sorted, of 64 addresses in the middle. Sometimes
// they also have the first address of all, and the last two.
func disjointRanges(rng *rand.Rand, f nft.Family) []nft.Element {
	everywhere := netip.PrefixFrom(addr(f, 0), 0).Masked()
	var ranges []nft.Element
	comment := func() string { return strings.Repeat("c", rng.IntN(3)) }
	if rng.IntN(4) == 0 {
		a := everywhere.Addr()
		ranges = append(ranges, addressRange(a, a.Next(), comment()))
	}
	for i := 64; i < 128; {
		n := 1 + rng.IntN(9)
		if rng.IntN(3) > 0 {
			ranges = append(ranges, addressRange(addr(f, i), addr(f, i+n-1), comment()))
		}
		i += n
	}
	if rng.IntN(4) == 0 {
		a := nft.LastAddr(everywhere)
		ranges = append(ranges, addressRange(a.Prev(), a, comment()))
	}
	return ranges
}

// before is the address before one.
func before(key nft.Value) nft.Value {
	a, _ := netip.AddrFromSlice([]byte(key))
	return nft.Value(a.Prev().AsSlice())
}

// An interval of one field is two elements in a message. An error about either is an
// error about the interval.
func TestConflictNamesTheInterval(t *testing.T) {
	const n = 5000 // in several messages
	for _, test := range []struct {
		conflict       int
		withoutOffsets bool
	}{{0, false}, {617, false}, {n - 1, false}, {617, true}} {
		t.Run(fmt.Sprintf("%d, without offsets %v", test.conflict, test.withoutOffsets), func(t *testing.T) {
			c, p := setsOnly(t)
			if test.withoutOffsets {
				must(t, c.HideOffsets())
			}
			set := p.IPv4.Set(addressRanges)
			var all []nft.OwnedElement
			for i := range n {
				all = append(all, owned(fmt.Sprintf("list-%d", i), addressRange(addr(nft.IPv4, 4*i), addr(nft.IPv4, 4*i+1+i%2),
					strings.Repeat("c", i%nft.MaxComment))))
			}
			wrong := all[test.conflict]
			there := wrong
			there.Key, there.KeyEnd = before(there.Key), there.Key
			must(t,
				c.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: table(nft.IPv4), Set: set,
					Elements: []nft.OwnedElement{there}}}}))
			got := refusals(t,
				c.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: table(nft.IPv4), Set: set, Elements: all}}}))
			if len(got) != 1 || got[0].Element == nil || *got[0].Element != wrong || !errors.Is(&got[0], unix.EEXIST) {
				t.Errorf("the conflict of %s is reported as %v", wrong.Part, got)
			}
			// The kernel does not have the interval's end.
			missing := there
			missing.KeyEnd = addrValue(nft.IPv4, 4*test.conflict+3)
			got = refusals(t,
				c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteElements{Table: table(nft.IPv4), Set: set,
					Elements: []nft.OwnedElement{missing}}}}))
			if len(got) != 1 || got[0].Element == nil || *got[0].Element != missing || !errors.Is(&got[0], unix.ENOENT) {
				t.Errorf("the missing end of %s is reported as %v", missing.Part, got)
			}
		})
	}
}

// The work to load and delete a list of 20,000 ranges is linear in its length.
// (BenchmarkRanges has the times.)
func TestManyIntervals(t *testing.T) {
	_, c := open(t)
	p := &nft.Program{IPv4: newTable(nft.IPv4, sets(), nil, nil), IPv6: newTable(nft.IPv6, sets(), nil, nil)}
	p.IPv4.Parts = p.IPv4.Parts.Set("list", manyRanges(20_000))
	must(t, c.Apply(load(p)))
	got, err := c.Read(p)
	must(t, err)
	if diff := check.Diff(p, got); diff != "" {
		t.Errorf("wanted and read (-want +got):\n%.2000s", diff)
	}
	_, state := nft.State{}.Plan(p, timeZero)
	p.IPv4 = p.IPv4.Clone()
	p.IPv4.Parts = p.IPv4.Parts.Delete("list")
	b, _ := state.Plan(p, timeZero)
	must(t, c.Apply(b))
	got, err = c.Read(p)
	must(t, err)
	if diff := check.Diff(p, got); diff != "" {
		t.Errorf("wanted and read (-want +got):\n%.2000s", diff)
	}
}

// manyRanges are single addresses and prefixes, half of which adjoin.
func manyRanges(n int) *nft.Part {
	var all []nft.Element
	for i := range n {
		all = append(all, addressRange(addr(nft.IPv4, 3*i), addr(nft.IPv4, 3*i+1+i%2), ""))
	}
	return nft.NewPart(slices.Clip(all), nil)
}

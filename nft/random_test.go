package nft_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"nftproxy/internal/treap"
	"nftproxy/nft"
)

// seeds runs the test with n sources of randomness, always the same; with
// -short, which goes with the race detector, with an eighth of them.
func seeds(t *testing.T, n int, test func(t *testing.T, rng *rand.Rand)) {
	if testing.Short() {
		n = (n + 7) / 8
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 2))) })
	}
}

// The sets of random programs: one of each kind.
const (
	plainSet = "plain"
	verdicts = "verdicts"
	pools    = "pools"
	ranges   = "ranges"
	learned  = "learned"
)

func declarations() []*nft.Set {
	return []*nft.Set{
		{Name: learned, Key: nft.Fields{nft.Saddr, nft.Dport}, Data: nft.Fields{nft.Daddr, nft.Dport}, Dynamic: true, Size: 5},
		{Name: plainSet, Key: nft.Fields{nft.Daddr}, Room: 1},
		{Name: pools, Key: nft.Fields{nft.L4Proto, nft.Index}, Data: nft.Fields{nft.Daddr, nft.Dport}, Room: 1},
		{Name: ranges, Key: nft.Fields{nft.L4Proto, nft.Saddr}, Interval: true},
		{Name: verdicts, Key: nft.Fields{nft.Dport}, Verdicts: true, Room: 1},
	}
}

// history is a program that changes at random. Keys wander between parts,
// chains come and go with the verdicts that point to them, and what has not
// changed keeps its pointers from one program to the next.
type history struct {
	rng    *rand.Rand
	tables [2]randomTable
	last   *nft.Program
}

// randomTable says which part each key belongs to and what it holds there.
type randomTable struct {
	plain    map[int]string
	verdicts map[int]ownedVerdict
	pools    map[int]ownedPool
	// ranges have their first address from 16 times the number on.
	ranges map[int]ownedRange
	// rules is the number of rules of each chain.
	rules map[string]int
}

type ownedVerdict struct {
	part, chain, comment string
}

type ownedPool struct {
	part    string
	targets []int
}

// ownedRange reaches over some addresses of 16, and over protocols from 1 on.
type ownedRange struct {
	part, comment       string
	from, to, protocols int
}

func newHistory(rng *rand.Rand) *history {
	h := &history{rng: rng}
	for i := range h.tables {
		h.tables[i] = randomTable{map[int]string{}, map[int]ownedVerdict{}, map[int]ownedPool{}, map[int]ownedRange{}, map[string]int{}}
	}
	return h
}

// next makes some changes, few or many, and returns the program.
func (h *history) next() *nft.Program {
	n := h.rng.IntN(4)
	if h.rng.IntN(8) == 0 {
		n = 60
	}
	for range n {
		h.tables[h.rng.IntN(2)].change(h.rng)
	}
	p := &nft.Program{IPv4: h.tables[0].program(nft.IPv4), IPv6: h.tables[1].program(nft.IPv6)}
	if h.last != nil {
		p.IPv4, p.IPv6 = share(h.last.IPv4, p.IPv4), share(h.last.IPv6, p.IPv6)
	}
	h.last = p
	return p
}

func (t *randomTable) change(rng *rand.Rand) {
	part := fmt.Sprint("part-", rng.IntN(8))
	key, remove := rng.IntN(10), rng.IntN(3) == 0
	switch rng.IntN(6) {
	case 0:
		t.plain[key] = part
		if remove {
			delete(t.plain, key)
		}
	case 1:
		v := ownedVerdict{part, fmt.Sprint("shared-", rng.IntN(5)), fmt.Sprint("comment ", rng.IntN(3))}
		if rng.IntN(6) == 0 {
			v.chain = ""
		}
		t.verdicts[key] = v
		if remove {
			delete(t.verdicts, key)
		}
	case 2, 3:
		old := t.pools[key]
		if rng.IntN(4) > 0 && old.part != "" {
			part = old.part
		}
		t.pools[key] = ownedPool{part, changeTargets(rng, old.targets)}
		if len(t.pools[key].targets) == 0 {
			delete(t.pools, key)
		}
	case 4:
		t.rules[fmt.Sprint("shared-", rng.IntN(5))] = rng.IntN(3)
	case 5:
		from := rng.IntN(16)
		t.ranges[key] = ownedRange{part, fmt.Sprint("comment ", rng.IntN(3)), from, from + rng.IntN(16-from), 1 + rng.IntN(20)}
		if remove {
			delete(t.ranges, key)
		}
	}
}

// changeTargets adds, removes or replaces a few of the targets.
func changeTargets(rng *rand.Rand, old []int) []int {
	targets := slices.Clone(old)
	for range 1 + rng.IntN(3) {
		if rng.IntN(2) == 0 && len(targets) > 0 {
			i := rng.IntN(len(targets))
			targets = slices.Delete(targets, i, i+1)
		}
		if t := rng.IntN(16); rng.IntN(3) > 0 && !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	slices.Sort(targets)
	return targets
}

// program builds everything anew.
func (t *randomTable) program(f nft.Family) *nft.Table {
	table := &nft.Table{Family: f, Name: "random", Sets: declarations()}
	for _, c := range baseChains() {
		table.Chains = table.Chains.Set(c.Name, c)
	}
	elements, lists := map[string][]nft.Element{}, map[string][]nft.Pool{}
	for key, part := range t.plain {
		elements[part] = append(elements[part], nft.Element{Set: plainSet, Key: address(f, key)})
	}
	for key, v := range t.verdicts {
		e := nft.Element{Set: verdicts, Key: nft.Value(nft.AppendPort(nil, uint16(key))), Comment: v.comment, Verdict: nft.Verdict{Code: nft.Drop}}
		if v.chain != "" {
			e.Verdict = nft.Verdict{Code: nft.Goto, Chain: v.chain}
			table.Chains = table.Chains.Set(v.chain, sharedChain(v.chain, t.rules[v.chain]))
		}
		elements[v.part] = append(elements[v.part], e)
	}
	for key, r := range t.ranges {
		elements[r.part] = append(elements[r.part], interval(f, 1, r.protocols, 16*key+r.from, 16*key+r.to, r.comment))
	}
	for key, p := range t.pools {
		lists[p.part] = append(lists[p.part], pool(f, key, p.targets...))
	}
	names := append(slices.Collect(maps.Keys(elements)), slices.Collect(maps.Keys(lists))...)
	for _, part := range names {
		if _, done := table.Parts.Get(part); !done {
			table.Parts = table.Parts.Set(part, nft.NewPart(elements[part], lists[part]))
		}
	}
	return table
}

// share puts old pointers in the place of new ones to the same thing.
func share(old, new *nft.Table) *nft.Table {
	new.Parts, new.Chains = keep(old.Parts, new.Parts), keep(old.Chains, new.Chains)
	return new
}

func keep[V any](old, new treap.Map[string, *V]) treap.Map[string, *V] {
	result := old
	for c := range treap.Diff(old, new) {
		switch {
		case !c.HasNew:
			result = result.Delete(c.Key)
		case !c.HadOld || !reflect.DeepEqual(*c.Old, *c.New):
			result = result.Set(c.Key, c.New)
		}
	}
	return result
}

func baseChains() []*nft.Chain {
	return []*nft.Chain{
		{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100}, Rules: []nft.Rule{
			{nft.Verdict{Code: nft.Jump, Chain: "dispatch"}},
		}},
		{Name: "dispatch", Rules: []nft.Rule{
			{nft.VMap{Key: nft.Fields{nft.Dport}, Map: verdicts}},
			{nft.InSet{Key: nft.Fields{nft.Daddr}, Set: plainSet}, nft.Reject{}},
			{nft.InSet{Key: nft.Fields{nft.L4Proto, nft.Saddr}, Set: ranges}, nft.Verdict{Code: nft.Drop}},
			{nft.DNAT{Key: nft.Fields{nft.Saddr, nft.Dport}, Map: learned}},
		}},
		{Name: "postrouting", Hook: &nft.Hook{Name: nft.Postrouting, Priority: 99}, Rules: []nft.Rule{{nft.Update{
			Map: learned, Key: nft.Fields{nft.OrigSaddr, nft.OrigDport}, Data: nft.Fields{nft.Daddr, nft.Dport}, Timeout: 3 * time.Hour,
		}}}},
	}
}

func sharedChain(name string, rules int) *nft.Chain {
	c := &nft.Chain{Name: name}
	for i := range rules {
		c.Rules = append(c.Rules, nft.Rule{nft.DNAT{Key: nft.Fields{nft.L4Proto}, Mod: uint32(i + 1), Map: pools}})
	}
	return c
}

func address(f nft.Family, i int) nft.Value {
	a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
	if f == nft.IPv6 {
		a = netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
	}
	return nft.Value(nft.AppendAddr(nil, a))
}

// interval covers protocols and addresses from the first to the last.
func interval(f nft.Family, firstProto, lastProto, first, last int, comment string) nft.Element {
	key := func(proto, i int) nft.Value { return nft.Value(nft.AppendProto(nil, uint8(proto))) + address(f, i) }
	return nft.Element{Set: ranges, Key: key(firstProto, first), KeyEnd: key(lastProto, last), Comment: comment}
}

// visit sends some packets through the tables, which learn from them.
func visit(rng *rand.Rand, m *nft.Model) {
	for range rng.IntN(4) {
		f := nft.Families()[rng.IntN(2)]
		at := func(port int) netip.AddrPort {
			a, _ := netip.AddrFromSlice([]byte(address(f, rng.IntN(256))))
			return netip.AddrPortFrom(a, uint16(port))
		}
		m.Learn(m.Trace(nft.Packet{Src: at(1024), Dst: at(rng.IntN(12)), Protocol: uint8(rng.IntN(10))}, nft.Host{
			Local:  func(netip.Addr) bool { return false },
			Random: rng.Uint32N,
		}))
	}
}

// forgetful takes what dynamic maps have learned out of a model, and returns it
// as text.
func forgetful(m *nft.Model, p *nft.Program) (rest *nft.Model, memory string) {
	rest = nft.NewModel()
	for _, f := range nft.Families() {
		c := m.Table(p.Table(f).ID())
		if c == nil {
			continue
		}
		sets := maps.Clone(c.Sets)
		for name, s := range sets {
			if s.Set.Dynamic {
				sets[name] = &nft.SetContents{Set: s.Set}
				for _, key := range slices.Sorted(maps.Keys(s.Elements)) {
					memory += fmt.Sprintf("%s %s: %q %q\n", f, name, key, s.Elements[key].Data)
				}
			}
		}
		rest.Put(&nft.Contents{Table: c.Table, Sets: sets, Chains: c.Chains})
	}
	return rest, memory
}

// pool has the targets given by number, which must be sorted.
func pool(f nft.Family, key int, targets ...int) nft.Pool {
	p := nft.Pool{Map: pools, Prefix: nft.Value(nft.AppendProto(nil, uint8(key)))}
	for _, t := range targets {
		p.Targets = append(p.Targets, nft.Value(nft.AppendPort([]byte(address(f, t)), 8080)))
	}
	return p
}

// rebuilt is a program of the same value without a pointer in common.
func rebuilt(p *nft.Program) *nft.Program {
	return &nft.Program{IPv4: copyTable(p.IPv4), IPv6: copyTable(p.IPv6)}
}

func copyTable(t *nft.Table) *nft.Table {
	n := &nft.Table{Family: t.Family, Name: t.Name, Sets: declarations()}
	for name, c := range t.Chains.All() {
		n.Chains = n.Chains.Set(name, &nft.Chain{Name: c.Name, Hook: c.Hook, Rules: slices.Clone(c.Rules)})
	}
	for name, p := range t.Parts.All() {
		n.Parts = n.Parts.Set(name, nft.NewPart(slices.Clone(p.Elements), slices.Clone(p.Pools)))
	}
	return n
}

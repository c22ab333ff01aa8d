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

	"nftproxy/model/treap"
	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// withSeeds runs the test with n random sources, always the same. With -short it takes a
// sixteenth of them.
func withSeeds(t *testing.T, n int, test func(t *testing.T, rng *rand.Rand)) {
	if testing.Short() {
		n = (n + 15) / 16
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
		{Name: learned, Key: nft.Fields{nft.Saddr, nft.Dport}, Data: nft.Fields{nft.Daddr, nft.Dport}, Dynamic: true,
			Size: 5},
		{Name: plainSet, Key: nft.Fields{nft.Daddr}, MinSize: 1},
		{Name: pools, Key: nft.Fields{nft.L4Proto, nft.Index}, Data: nft.Fields{nft.Daddr, nft.Dport}, MinSize: 1},
		{Name: ranges, Key: nft.Fields{nft.L4Proto, nft.Saddr}, Interval: true},
		{Name: verdicts, Key: nft.Fields{nft.Dport}, Verdicts: true, MinSize: 1},
	}
}

// history is a program that changes at random. Keys move between parts. Chains come and
// go with the verdicts that point to them, and sets with the rules of these chains. What
// has not changed keeps its pointers from one program to the next.
type history struct {
	rng    *rand.Rand
	tables [2]randomTable
	last   *nft.Program
}

// randomTable says which part each key belongs to, and with which content.
type randomTable struct {
	plain    map[int]string
	verdicts map[int]ownedVerdict
	pools    map[int]ownedPool
	// ranges start at address 16 times their number, or up to 15 after it.
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

// ownedRange covers some addresses of 16, and protocols from 1 on.
type ownedRange struct {
	part, comment       string
	from, to, protocols int
}

func newHistory(rng *rand.Rand) *history {
	h := &history{rng: rng}
	for i := range h.tables {
		h.tables[i] = randomTable{map[int]string{}, map[int]ownedVerdict{}, map[int]ownedPool{}, map[int]ownedRange{},
			map[string]int{}}
	}
	return h
}

// next changes the program, a little or much, and returns it.
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
		p.IPv4, p.IPv6 = sharePointers(h.last.IPv4, p.IPv4), sharePointers(h.last.IPv6, p.IPv6)
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
		v := ownedVerdict{part, fmt.Sprint("shared-", rng.IntN(6)), fmt.Sprint("comment ", rng.IntN(3))}
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
		t.rules[fmt.Sprint("shared-", rng.IntN(6))] = rng.IntN(3)
	case 5:
		from := rng.IntN(16)
		t.ranges[key] = ownedRange{part, fmt.Sprint("comment ", rng.IntN(3)), from, from + rng.IntN(16-from),
			1 + rng.IntN(20)}
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

// program builds everything again.
func (t *randomTable) program(f nft.Family) *nft.Table {
	table := &nft.Table{Family: f, Name: "random", Sets: nft.SetsByName(declarations()...)}
	for _, c := range baseChains() {
		table.Chains = table.Chains.Set(c.Name, c)
	}
	elements, poolsOf := map[string][]nft.Element{}, map[string][]nft.Pool{}
	for key, part := range t.plain {
		elements[part] = append(elements[part], nft.Element{Set: plainSet, Key: address(f, key)})
	}
	for key, v := range t.verdicts {
		e := nft.Element{Set: verdicts, Key: nft.Value(nft.AppendPort(nil, uint16(key))), Comment: v.comment,
			Verdict: nft.Verdict{Code: nft.Drop}}
		if v.chain != "" {
			e.Verdict = nft.Verdict{Code: nft.Goto, Chain: v.chain}
			table.Chains = table.Chains.Set(v.chain, sharedChain(v.chain, t.rules[v.chain]))
			if s := setOfChain(v.chain, t.rules[v.chain]); s != nil {
				table.Sets = table.Sets.Set(s.Name, s)
				elements[s.Name] = elementsOf(f, s, t.rules[v.chain])
			}
		}
		elements[v.part] = append(elements[v.part], e)
	}
	for key, r := range t.ranges {
		elements[r.part] = append(elements[r.part], interval(f, 1, r.protocols, 16*key+r.from, 16*key+r.to, r.comment))
	}
	for key, p := range t.pools {
		poolsOf[p.part] = append(poolsOf[p.part], pool(f, key, p.targets...))
	}
	names := append(slices.Collect(maps.Keys(elements)), slices.Collect(maps.Keys(poolsOf))...)
	for _, part := range names {
		if _, done := table.Parts.Get(part); !done {
			table.Parts = table.Parts.Set(part, nft.NewPart(elements[part], poolsOf[part]))
		}
	}
	return table
}

// sharePointers replaces the table's pointers by old ones to equal values.
func sharePointers(old, table *nft.Table) *nft.Table {
	table.Parts = keepPointers(old.Parts, table.Parts)
	table.Chains = keepPointers(old.Chains, table.Chains)
	table.Sets = keepPointers(old.Sets, table.Sets)
	return table
}

func keepPointers[V any](old, wanted treap.Map[string, *V]) treap.Map[string, *V] {
	result := old
	for c := range treap.Diff(old, wanted) {
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
			Map: learned, Key: nft.Fields{nft.OrigSaddr, nft.OrigDport}, Data: nft.Fields{nft.Daddr, nft.Dport},
			Timeout: 3 * time.Hour,
		}}}},
	}
}

func sharedChain(name string, rules int) *nft.Chain {
	c := &nft.Chain{Name: name}
	for i := range rules {
		c.Rules = append(c.Rules, nft.Rule{nft.DNAT{Key: nft.Fields{nft.L4Proto}, Mod: uint32(i + 1), Map: pools}})
	}
	switch s := setOfChain(name, rules); {
	case s == nil:
	case s.Dynamic:
		c.Rules = append(c.Rules, nft.Rule{nft.DNAT{Key: s.Key, Map: s.Name}})
	default:
		c.Rules = append(c.Rules, nft.Rule{nft.InSet{Key: s.Key, Set: s.Name}, nft.Verdict{Code: nft.Drop}})
	}
	return c
}

// setOfChain is the set that only this chain looks into; nil where a chain with so many
// rules has none.
func setOfChain(chain string, rules int) *nft.Set {
	s := &nft.Set{Name: "of-" + chain}
	switch {
	case chain < "shared-3" || rules == 0:
		return nil
	case chain == "shared-3":
		s.Key, s.MinSize = nft.Fields{nft.Daddr}, 1
	case chain == "shared-4":
		s.Key, s.Interval = nft.Fields{nft.L4Proto, nft.Saddr}, true
	default:
		s.Key, s.Data, s.Dynamic, s.Size = nft.Fields{nft.Saddr}, nft.Fields{nft.Daddr, nft.Dport}, true, 5
	}
	return s
}

// elementsOf are three elements of a chain's set for each of its rules.
func elementsOf(f nft.Family, s *nft.Set, rules int) []nft.Element {
	var list []nft.Element
	for i := range 3 * rules {
		switch {
		case s.Interval:
			e := interval(f, 1, 20, 8*i, 8*i+rules, "")
			e.Set = s.Name
			list = append(list, e)
		case !s.Dynamic:
			list = append(list, nft.Element{Set: s.Name, Key: address(f, i)})
		}
	}
	return list
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

// sendPackets sends some packets through the tables, which learn from them.
func sendPackets(rng *rand.Rand, m *nft.Model) {
	for range rng.IntN(4) {
		f := nft.Families()[rng.IntN(2)]
		at := func(port int) netip.AddrPort {
			a, _ := netip.AddrFromSlice([]byte(address(f, rng.IntN(256))))
			return netip.AddrPortFrom(a, uint16(port))
		}
		strict.Learn(m, m.Trace(nft.Packet{Src: at(1024), Dst: at(rng.IntN(12)), Protocol: uint8(rng.IntN(10))}, nft.Host{
			Local:  func(netip.Addr) bool { return false },
			Random: rng.Uint32N,
		}))
	}
}

// splitMemory returns the model without the elements of dynamic maps, and these as text.
func splitMemory(m *nft.Model, p *nft.Program) (rest *nft.Model, memory string) {
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
		rest.Put(&nft.Contents{Table: c.Table, Sets: sets, Chains: c.Chains, Timeouts: c.Timeouts})
	}
	return rest, memory
}

func poolTarget(f nft.Family, n int) nft.Value {
	return nft.Value(nft.AppendPort([]byte(address(f, n)), 8080))
}

// pool has the targets given by number.
func pool(f nft.Family, key int, targets ...int) nft.Pool {
	p := nft.Pool{Map: pools, Prefix: nft.Value(nft.AppendProto(nil, uint8(key)))}
	var values []nft.Value
	for _, t := range targets {
		values = append(values, poolTarget(f, t))
	}
	p.Targets = nft.NewTargets(values...)
	return p
}

// rebuilt is an equal program that shares no pointer with p.
func rebuilt(p *nft.Program) *nft.Program {
	return &nft.Program{IPv4: copyTable(p.IPv4), IPv6: copyTable(p.IPv6)}
}

func copyTable(t *nft.Table) *nft.Table {
	n := &nft.Table{Family: t.Family, Name: t.Name}
	for name, s := range t.Sets.All() {
		declared := *s
		n.Sets = n.Sets.Set(name, &declared)
	}
	for name, c := range t.Chains.All() {
		n.Chains = n.Chains.Set(name, &nft.Chain{Name: c.Name, Hook: c.Hook, Rules: slices.Clone(c.Rules)})
	}
	for name, p := range t.Parts.All() {
		n.Parts = n.Parts.Set(name, nft.NewPart(slices.Clone(p.Elements), slices.Clone(p.Pools)))
	}
	return n
}

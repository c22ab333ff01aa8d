package nft

import (
	"cmp"
	"errors"
	"iter"
	"slices"

	"nftproxy/model/treap"
)

// Program is everything that the proxy wants in the kernel: one table in each family, written in
// one transaction.
type Program struct {
	IPv4, IPv6 *Table
}

// Table returns the program's table of the family.
func (p *Program) Table(f Family) *Table {
	if f == IPv6 {
		return p.IPv6
	}
	return p.IPv4
}

// Table is one table's contents. Chains with a hook stay the same for the life
// of the table; other chains and sets come and go with their users; parts are
// the elements.
type Table struct {
	Family Family
	Name   string
	// Sets are the declarations of sets and maps by name. The declaration of a
	// name never changes.
	Sets treap.Map[string, *Set]
	// Chains by name.
	Chains treap.Map[string, *Chain]
	// Timeouts are the objects of time-outs that the rules name.
	Timeouts treap.Map[string, Timeout]
	// Parts hold the elements by what they belong to, such as a Service. A key of a set is in one
	// part only.
	Parts treap.Map[string, *Part]
}

// Clone returns a copy of the table. It shares sets, chains and parts with the old one.
func (t *Table) Clone() *Table {
	c := *t
	return &c
}

// Set returns the declaration of the set or map of that name, or nil.
func (t *Table) Set(name string) *Set { return t.Sets.At(name) }

// SetsByName returns the declarations by name, as a Table holds them.
func SetsByName(list ...*Set) treap.Map[string, *Set] {
	sets := make(map[string]*Set, len(list))
	for _, s := range list {
		sets[s.Name] = s
	}
	return treap.Map[string, *Set]{}.Apply(treap.Edits(sets))
}

// Set declares a set (no data), a verdict map or a data map.
type Set struct {
	Name string
	Key  Fields
	// Verdicts makes it a verdict map; Data then stays empty.
	Verdicts bool
	// Data makes it a data map.
	Data Fields
	// Interval makes each element cover all keys from its Key to its KeyEnd,
	// field by field. Elements must not overlap (the kernel refuses most that do,
	// but its pipapo takes one that encloses another).
	//
	// A key of one field, which is addresses or ports, goes into a tree, whose
	// cost for a packet grows with the logarithm of the elements. A concatenation
	// goes into a pipapo, whose cost grows with the elements, and that of a commit
	// with their square; it needs Linux 5.6.
	Interval bool
	// Dynamic lets rules add elements (Update), which leave again after their
	// time-outs. It is a set or a map of data. A program has no elements of such a
	// set: what is in it is the kernel's, and neither Plan nor Adopt touches it.
	Dynamic bool
	// Size is the greatest number of elements. 0 sets no limit, but for a dynamic map, which then
	// has DynamicLimit. Intervals of one field have none, since some kernels count each of them
	// twice.
	Size uint32
	// MinSize, instead of a Size, lets Plan choose the size: for MinSize elements at least, and
	// always for more than there are. Plan replaces a set that has outgrown its size. Dynamic sets
	// and intervals have no MinSize.
	MinSize uint32
	// Counter gives each element a counter, of the packets for which a rule has found it. The
	// counter of a replaced element starts at 0 again. Intervals and dynamic sets have none. Needs
	// Linux 5.7.
	Counter bool
}

// DynamicLimit is the greatest number of elements of a dynamic map without a Size. The kernel sets
// it with the first rule that adds to the map (nft_dynset_init), and reports it as the size from
// then on. With a Size the kernel allocates memory for all elements at once, 2 MB for this number;
// without a Size the map grows with its elements.
const DynamicLimit = 65_535

// Limit returns the greatest number of elements that rules can add to a dynamic map.
func (s *Set) Limit() int {
	if s.Size == 0 {
		return DynamicLimit
	}
	return int(s.Size)
}

// Check returns an error for a declaration that no kernel accepts, or that nft prints differently
// from Op.Text.
func (s *Set) Check() error {
	switch {
	case s.Interval && s.Dynamic:
		return errors.New("rules cannot add intervals")
	case s.Interval && len(s.Key) == 1 && !slices.Contains([]Field{Saddr, Daddr, Dport}, s.Key[0]):
		return errors.New("intervals of one field are of addresses or ports")
	case s.Interval && len(s.Key) == 1 && s.Size > 0:
		return errors.New("intervals of one field have no size")
	case s.Dynamic && s.Verdicts:
		return errors.New("rules cannot add verdicts")
	case s.MinSize > 0 && (s.Interval || s.Dynamic || s.Size > 0):
		return errors.New("only plain sets without a size have room")
	case s.Counter && (s.Interval || s.Dynamic):
		return errors.New("only plain sets have counters")
	}
	return nil
}

// Chain is a chain with all of its rules.
type Chain struct {
	Name string
	// Hook is nil for a chain that is only jumped to.
	Hook  *Hook
	Rules []Rule
}

// Hook binds a base chain of type nat to one of the kernel's hooks, with
// policy accept.
type Hook struct {
	Name HookName
	// Priority orders chains of one hook; lower runs first. dstnat is -100,
	// srcnat 100.
	Priority int32
}

// HookName is one of the kernel's inet hooks, by its NF_INET number.
type HookName uint8

// The hooks that nat chains can have.
const (
	Prerouting  HookName = 0
	Input       HookName = 1
	Output      HookName = 3
	Postrouting HookName = 4
)

func (h HookName) String() string {
	switch h {
	case Prerouting:
		return "prerouting"
	case Input:
		return "input"
	case Output:
		return "output"
	case Postrouting:
		return "postrouting"
	}
	return "unknown"
}

// Rule is a list of statements, evaluated in order until one does not match.
type Rule []Statement

// Element is one member of a set or map.
type Element struct {
	Set string
	Key Value
	// KeyEnd is the last key that an element of an interval set covers, and
	// empty in other sets.
	KeyEnd Value
	// Data is empty in sets and verdict maps.
	Data Value
	// Verdict is the zero value except in verdict maps.
	Verdict Verdict
	// Comment shows in nft's listing. At most 128 bytes (nft's limit).
	Comment string
}

// MaxComment is the longest comment, in bytes, that nft accepts and prints.
const MaxComment = 128

func compareKeys(a, b Element) int {
	return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key))
}

// Keys yields the keys of all elements of a set.
func (t *Table) Keys(set string) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		for _, part := range t.Parts.All() {
			for i := range part.Elements {
				if e := &part.Elements[i]; e.Set == set && !yield(e.Key) {
					return
				}
			}
			for i := range part.Pools {
				p := &part.Pools[i]
				for index := 0; p.Map == set && index < p.Len(); index++ {
					if !yield(p.Prefix.WithIndex(index)) {
						return
					}
				}
			}
		}
	}
}

// Part is the elements that come and go together.
type Part struct {
	// Elements are sorted by set and key, and Pools by map and prefix.
	Elements []Element
	Pools    []Pool
}

// NewPart returns a part of these elements and pools. It sorts and keeps both slices.
func NewPart(elements []Element, pools []Pool) *Part {
	slices.SortFunc(elements, compareKeys)
	slices.SortFunc(pools, comparePools)
	return &Part{elements, pools}
}

// Len returns the number of elements, 0 of a nil part.
func (p *Part) Len() int {
	if p == nil {
		return 0
	}
	n := len(p.Elements)
	for i := range p.Pools {
		n += p.Pools[i].Len()
	}
	return n
}

// countBySet adds the number of elements to that of each set.
func (p *Part) countBySet(sizes map[string]int) {
	for i := range p.Elements {
		sizes[p.Elements[i].Set]++
	}
	for i := range p.Pools {
		sizes[p.Pools[i].Map] += p.Pools[i].Len()
	}
}

// all yields every element, those of a pool in the pool's order.
func (p *Part) all(yield func(Element)) {
	if p == nil {
		return
	}
	for _, e := range p.Elements {
		yield(e)
	}
	for i := range p.Pools {
		p.Pools[i].all(yield)
	}
}

// Counts says how large a program is, for people and metrics.
type Counts struct {
	Chains, Rules, Elements int
}

// Counts adds up both tables.
func (p *Program) Counts() Counts {
	var c Counts
	for _, f := range Families() {
		t := p.Table(f)
		for _, chain := range t.Chains.All() {
			c.Chains++
			c.Rules += len(chain.Rules)
		}
		for _, part := range t.Parts.All() {
			c.Elements += part.Len()
		}
	}
	return c
}

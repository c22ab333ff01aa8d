package nft

import (
	"cmp"
	"errors"
	"slices"

	"nftproxy/internal/treap"
)

// Program is the whole of what the proxy wants in the kernel: one table in
// each family, written in one transaction.
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

// Table is one table's contents. Sets, and chains with a hook, stay the same
// for the life of the table; shared chains come and go with their users; parts
// are the elements.
type Table struct {
	Family Family
	Name   string
	// Sets are the declarations of sets and maps, in the order of their names.
	Sets []*Set
	// Chains by name.
	Chains treap.Map[string, *Chain]
	// Parts hold the elements by what they belong to, such as a service. A key
	// of a set stands in one part only.
	Parts treap.Map[string, *Part]
}

// Clone is a table of its own that shares everything with the old one.
func (t *Table) Clone() *Table {
	c := *t
	return &c
}

// Set returns the declaration of the set or map of that name, or nil.
func (t *Table) Set(name string) *Set {
	for _, s := range t.Sets {
		if s.Name == name {
			return s
		}
	}
	return nil
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
	// field by field. Elements must not overlap (the kernel's pipapo refuses most
	// that do, but takes one that encloses another).
	// The key is a concatenation. Needs Linux 5.6.
	Interval bool
	// Dynamic lets rules add elements (Update), which leave again after their
	// time-outs. It is a map of data and has a Size. A program has no elements
	// of such a set: what is in it is the kernel's, and neither Plan nor Adopt
	// touches it.
	Dynamic bool
	// Size is the greatest number of elements; 0 sets no limit.
	Size uint32
	// Room, in place of a Size, leaves that to Plan: it declares one for Room
	// elements at least and always more than there are, and makes a set anew
	// that has outgrown it. Neither for dynamic sets nor for intervals.
	Room uint32
}

// Check says what of the declaration no kernel takes, or nft does not print as
// it is written here.
func (s *Set) Check() error {
	switch {
	case s.Interval && s.Dynamic:
		return errors.New("rules cannot add intervals")
	case s.Interval && len(s.Key) < 2:
		return errors.New("only concatenations have intervals")
	case s.Dynamic && len(s.Data) == 0:
		return errors.New("only maps of data are dynamic")
	case s.Room > 0 && (s.Interval || s.Dynamic || s.Size > 0):
		return errors.New("only plain sets without a size have room")
	case s.Dynamic && s.Size == 0:
		return errors.New("a dynamic map needs a size")
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

// Rule is a list of statements: each is evaluated until one does not match.
type Rule []Statement

// Element is one entry of a set or map.
type Element struct {
	Set string
	Key Value
	// KeyEnd is the last key that an element of an interval set covers, and
	// empty in other sets.
	KeyEnd Value
	// Data is empty in sets and verdict maps.
	Data Value
	// Verdict is the zero value but in verdict maps.
	Verdict Verdict
	// Comment shows in nft's listing. At most 128 bytes (nft's limit).
	Comment string
}

// MaxComment is the longest comment, in bytes, that nft accepts and prints.
const MaxComment = 128

func compareKeys(a, b Element) int {
	return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key))
}

// Pool is a list of interchangeable entries of a data map: key Prefix.0 to
// Prefix.n-1, one for each target. The program does not say which target has
// which index: Plan leaves each where it is, so that one replaced target is one
// replaced element.
type Pool struct {
	Map     string
	Prefix  Value
	Targets []Value
}

func comparePools(a, b Pool) int {
	return cmp.Or(cmp.Compare(a.Map, b.Map), cmp.Compare(a.Prefix, b.Prefix))
}

// element is the pool's entry at the index.
func (p *Pool) element(i int) Element {
	return Element{Set: p.Map, Key: p.Prefix.WithIndex(i), Data: p.Targets[i]}
}

// Part is the elements that come and go together.
type Part struct {
	// Elements are sorted by set and key, and Pools by map and prefix.
	Elements []Element
	Pools    []Pool
}

// NewPart sorts what it is given.
func NewPart(elements []Element, pools []Pool) *Part {
	slices.SortFunc(elements, compareKeys)
	slices.SortFunc(pools, comparePools)
	return &Part{elements, pools}
}

// all yields every element, those of the pools in their present order.
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

// all yields every entry. The keys are cut from one string, so that a large
// pool costs one allocation.
func (p *Pool) all(yield func(Element)) {
	size := len(p.Prefix) + indexLen
	keys := make([]byte, 0, size*len(p.Targets))
	for i := range p.Targets {
		keys = AppendIndex(append(keys, p.Prefix...), uint32(i))
	}
	text := Value(keys)
	for i, target := range p.Targets {
		yield(Element{Set: p.Map, Key: text[i*size : (i+1)*size], Data: target})
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
			c.Elements += len(part.Elements)
			for i := range part.Pools {
				c.Elements += len(part.Pools[i].Targets)
			}
		}
	}
	return c
}

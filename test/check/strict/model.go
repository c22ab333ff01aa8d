// Package strict lets tables of package nft stand for a kernel: it carries out batches, and refuses what a kernel
// refuses.
package strict

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nftproxy/nft"
)

// The errors that Apply returns where a kernel returns ENOENT, EEXIST, EBUSY, ENFILE and EMLINK.
var (
	ErrNotFound = errors.New("no such object")
	ErrExists   = errors.New("object exists")
	ErrBusy     = errors.New("object in use")
	ErrFull     = errors.New("set is full") // ENFILE
	ErrNesting  = errors.New("chains in a loop, or nested too deeply")
)

// Apply carries out the batch, all of it or, on an error, nothing.
func Apply(m *nft.Model, b nft.Batch) error {
	work := tables{}
	for id, c := range m.Tables {
		work[id] = clone(c)
	}
	for _, op := range b.Ops {
		if err := work.apply(op); err != nil {
			command, _, _ := strings.Cut(op.Text(), "\n")
			return fmt.Errorf("%s: %w", command, err)
		}
	}
	if err := work.checkReferences(); err != nil {
		return err
	}
	m.Tables = work
	return nil
}

type tables map[nft.TableID]*nft.Contents

func clone(c *nft.Contents) *nft.Contents {
	n := &nft.Contents{Table: c.Table, Sets: maps.Clone(c.Sets), Chains: maps.Clone(c.Chains),
		Timeouts: maps.Clone(c.Timeouts)}
	for name, s := range n.Sets {
		n.Sets[name] = &nft.SetContents{Set: s.Set, Elements: maps.Clone(s.Elements)}
	}
	return n
}

func (t tables) apply(op nft.Op) error {
	id := nft.TableOf(op)
	if _, adds := op.(nft.AddTable); adds {
		if t[id] == nil {
			t[id] = nft.NewContents(id)
		}
		return nil
	}
	c := t[id]
	if c == nil {
		return ErrNotFound
	}
	switch op := op.(type) {
	case nft.DeleteTable:
		delete(t, id)
		return nil
	case nft.AddSet:
		return addSet(c, op.Set)
	case nft.DeleteSet:
		return deleteSet(c, op.Set)
	case nft.AddTimeout:
		return add(c.Timeouts, op.Timeout.Name, op.Timeout)
	case nft.AddChain:
		return add(c.Chains, op.Chain.Name, withRules(op.Chain, nil))
	case nft.FlushTable:
		for name, chain := range c.Chains {
			c.Chains[name] = withRules(chain, nil)
		}
		return nil
	case nft.FlushChain:
		return inChain(c, op.Chain, func(chain *nft.Chain) { c.Chains[op.Chain] = withRules(chain, nil) })
	case nft.DeleteChain:
		return inChain(c, op.Chain, func(*nft.Chain) { delete(c.Chains, op.Chain) })
	case nft.AddRules:
		return inChain(c, op.Chain.Name, func(chain *nft.Chain) {
			c.Chains[chain.Name] = withRules(chain, slices.Concat(chain.Rules, op.Chain.Rules))
		})
	case nft.AddElements:
		return inSet(c, op.Set, op.Elements, addElement)
	case nft.DeleteElements:
		return inSet(c, op.Set, op.Elements, deleteElement)
	}
	return fmt.Errorf("unknown operation %T", op)
}

// add adds an object to those of its kind.
func add[T any](all map[string]T, name string, object T) error {
	if _, there := all[name]; there {
		return ErrExists
	}
	all[name] = object
	return nil
}

func withRules(c *nft.Chain, rules []nft.Rule) *nft.Chain {
	return &nft.Chain{Name: c.Name, Hook: c.Hook, Rules: rules}
}

func inChain(c *nft.Contents, name string, do func(*nft.Chain)) error {
	chain := c.Chains[name]
	if chain == nil {
		return ErrNotFound
	}
	do(chain)
	return nil
}

func inSet(c *nft.Contents, set *nft.Set, elements []nft.OwnedElement,
	do func(*nft.SetContents, nft.Family, nft.Element) error) error {
	s := c.Sets[set.Name]
	if s == nil {
		return ErrNotFound
	}
	for _, e := range elements {
		if err := do(s, c.Table.Family, e.Element); err != nil {
			return fmt.Errorf("element %s: %w", e.Text(c.Table.Family, s.Set), err)
		}
	}
	return nil
}

// maxKey is how many bytes of a packet a kernel compares at once (NFT_DATA_VALUE_MAXLEN).
const maxKey = 64

func addSet(c *nft.Contents, s *nft.Set) error {
	if c.Sets[s.Name] != nil {
		return ErrExists
	}
	if err := s.Check(); err != nil {
		return err
	}
	if s.Key.Len(c.Table.Family) > maxKey || s.Data.Len(c.Table.Family) > maxKey {
		return fmt.Errorf("longer than %d bytes", maxKey)
	}
	c.Sets[s.Name] = &nft.SetContents{Set: s, Elements: map[nft.Value]nft.Element{}}
	return nil
}

func deleteSet(c *nft.Contents, name string) error {
	if c.Sets[name] == nil {
		return ErrNotFound
	}
	for _, chain := range c.Chains {
		if chain.RefersTo(name) {
			return fmt.Errorf("chain %s: %w", chain.Name, ErrBusy)
		}
	}
	delete(c.Sets, name)
	return nil
}

func addElement(s *nft.SetContents, f nft.Family, e nft.Element) error {
	if len(e.Key) != s.Set.Key.Len(f) || len(e.Data) != s.Set.Data.Len(f) ||
		(e.Verdict != nft.Verdict{}) != s.Set.Verdicts {
		return fmt.Errorf("does not fit the set %s", s.Set.Name)
	}
	if s.Set.Dynamic || (len(e.KeyEnd) > 0) != s.Set.Interval || s.Set.Interval && len(e.KeyEnd) != len(e.Key) {
		return fmt.Errorf("does not fit the set %s", s.Set.Name)
	}
	if len(e.Comment) > nft.MaxComment {
		return fmt.Errorf("comment of %d bytes", len(e.Comment))
	}
	if have, ok := s.Elements[e.Key]; ok {
		if have.KeyEnd != e.KeyEnd || have.Data != e.Data || have.Verdict != e.Verdict {
			return ErrExists
		}
		return nil // The present element stays as it is, with its comment.
	}
	if overlaps(s, f, e) {
		return ErrExists
	}
	if s.Full(0) {
		return ErrFull
	}
	s.Elements[e.Key] = e
	return nil
}

// overlaps says whether an element of an interval set has keys in common with
// one that is there.
func overlaps(s *nft.SetContents, f nft.Family, e nft.Element) bool {
	if !s.Set.Interval {
		return false
	}
	for _, o := range s.Elements {
		if s.Set.Key.EachField(f, func(at, end int) bool {
			return o.Key[at:end] <= e.KeyEnd[at:end] && e.Key[at:end] <= o.KeyEnd[at:end]
		}) {
			return true
		}
	}
	return false
}

func deleteElement(s *nft.SetContents, _ nft.Family, e nft.Element) error {
	if have, ok := s.Elements[e.Key]; !ok || have.KeyEnd != e.KeyEnd {
		return ErrNotFound
	}
	delete(s.Elements, e.Key)
	return nil
}

// checkReferences checks what the kernel checks of a whole transaction: every chain
// and set that a rule or element refers to exists, and chains do not nest too deeply.
func (t tables) checkReferences() error {
	for id, c := range t {
		if err := checkNesting(c); err != nil {
			return fmt.Errorf("table %s: %w", id, err)
		}
		for _, chain := range c.Chains {
			for _, r := range chain.Rules {
				for _, s := range r {
					if err := checkStatement(c, s); err != nil {
						return fmt.Errorf("chain %s %s: rule %q: %w", id, chain.Name, r.Text(id.Family), err)
					}
				}
			}
		}
		for _, s := range c.Sets {
			for _, e := range s.Elements {
				if err := checkStatement(c, e.Verdict); err != nil {
					return fmt.Errorf("map %s %s: element %s: %w", id, s.Set.Name, s.Set.Key.Format(id.Family, e.Key), err)
				}
			}
		}
	}
	return nil
}

func checkStatement(c *nft.Contents, s nft.Statement) error {
	if v, ok := s.(nft.Verdict); ok {
		return checkVerdict(c, v)
	}
	if t, ok := s.(nft.SetTimeout); ok {
		if _, there := c.Timeouts[t.Name]; !there {
			return fmt.Errorf("time-outs %s: %w", t.Name, ErrNotFound)
		}
	}
	name, kind := nft.SetOf(s)
	if name == "" {
		return nil
	}
	set := c.Sets[name]
	if set == nil || (set.Set.Verdicts || len(set.Set.Data) > 0) != (kind == "map") {
		return fmt.Errorf("%s %s: %w", kind, name, ErrNotFound)
	}
	if u, ok := s.(nft.Update); ok {
		if !set.Set.Dynamic {
			return fmt.Errorf("%s %s is not dynamic", kind, name)
		}
		return u.Check(c.Table.Family)
	}
	return nil
}

func checkVerdict(c *nft.Contents, v nft.Verdict) error {
	if v.Chain == "" {
		return nil
	}
	target := c.Chains[v.Chain]
	if target == nil {
		return fmt.Errorf("chain %s: %w", v.Chain, ErrBusy)
	}
	if target.Hook != nil {
		return fmt.Errorf("chain %s has a hook and cannot be jumped to", v.Chain)
	}
	return nil
}

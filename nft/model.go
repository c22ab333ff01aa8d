package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Model is tables as a kernel holds them: flat, without parts. In tests it stands for
// a kernel, and refuses what a kernel refuses. Package nft/kernel returns the tables
// that it read in this form.
type Model struct {
	tables map[TableID]*Contents
}

// Contents is one table of a Model.
type Contents struct {
	Table  TableID
	Sets   map[string]*SetContents
	Chains map[string]*Chain
	// Timeouts by name.
	Timeouts map[string]Timeout
}

// SetContents is one set or map with its elements by key.
type SetContents struct {
	Set      *Set
	Elements map[Value]Element
}

// Unknown stands for a rule, or the end of a rule, that the reader of a kernel's table does not
// recognise. No program contains it, so Plan rewrites a wanted chain that has it.
type Unknown struct{}

func (Unknown) statement() {}

// Text returns a comment, which nft ignores.
func (Unknown) Text(Family) string { return "# unknown" }

// The errors that a Model returns where a kernel returns ENOENT, EEXIST, EBUSY,
// ENFILE and EMLINK.
var (
	ErrNotFound = errors.New("no such object")
	ErrExists   = errors.New("object exists")
	ErrBusy     = errors.New("object in use")
	ErrFull     = errors.New("set is full") // ENFILE
	ErrNesting  = errors.New("chains in a loop, or nested too deeply")
)

// NewModel returns a model without tables.
func NewModel() *Model { return &Model{map[TableID]*Contents{}} }

// NewContents returns a table without sets and chains.
func NewContents(id TableID) *Contents {
	return &Contents{id, map[string]*SetContents{}, map[string]*Chain{}, map[string]Timeout{}}
}

// Put replaces a table.
func (m *Model) Put(c *Contents) { m.tables[c.Table] = c }

// Table returns the table's contents, or nil if there is no such table.
func (m *Model) Table(id TableID) *Contents { return m.tables[id] }

func (c *Contents) clone() *Contents {
	n := &Contents{c.Table, maps.Clone(c.Sets), maps.Clone(c.Chains), maps.Clone(c.Timeouts)}
	for name, s := range n.Sets {
		n.Sets[name] = &SetContents{s.Set, maps.Clone(s.Elements)}
	}
	return n
}

// Apply carries out the batch, all of it or, on an error, nothing.
func (m *Model) Apply(b Batch) error {
	work := &Model{maps.Clone(m.tables)}
	for id, c := range work.tables {
		work.tables[id] = c.clone()
	}
	for _, op := range b.Ops {
		if err := work.applyOp(op); err != nil {
			command, _, _ := strings.Cut(op.Text(), "\n")
			return fmt.Errorf("%s: %w", command, err)
		}
	}
	if err := work.checkReferences(); err != nil {
		return err
	}
	m.tables = work.tables
	return nil
}

func (m *Model) applyOp(op Op) error {
	switch op := op.(type) {
	case AddTable:
		if m.tables[op.Table] == nil {
			m.tables[op.Table] = NewContents(op.Table)
		}
		return nil
	case DeleteTable:
		if m.tables[op.Table] == nil {
			return ErrNotFound
		}
		delete(m.tables, op.Table)
		return nil
	case AddSet:
		return m.inTable(op.Table, func(c *Contents) error { return c.addSet(op.Set) })
	case DeleteSet:
		return m.inTable(op.Table, func(c *Contents) error { return c.deleteSet(op.Set) })
	case AddTimeout:
		return m.inTable(op.Table, func(c *Contents) error { return c.addTimeout(op.Timeout) })
	case AddChain:
		return m.inTable(op.Table, func(c *Contents) error { return c.addChain(op.Chain) })
	case FlushTable:
		return m.inTable(op.Table, (*Contents).flush)
	case FlushChain:
		return m.inChain(op.Table, op.Chain, func(c *Contents, ch *Chain) {
			c.Chains[op.Chain] = &Chain{Name: ch.Name, Hook: ch.Hook}
		})
	case DeleteChain:
		return m.inChain(op.Table, op.Chain, func(c *Contents, _ *Chain) { delete(c.Chains, op.Chain) })
	case AddRules:
		return m.inChain(op.Table, op.Chain.Name, func(c *Contents, ch *Chain) {
			c.Chains[ch.Name] = &Chain{ch.Name, ch.Hook, append(slices.Clone(ch.Rules), op.Chain.Rules...)}
		})
	case AddElements:
		return m.inSet(op.Table, op.Set, op.Elements, (*SetContents).addElement)
	case DeleteElements:
		return m.inSet(op.Table, op.Set, op.Elements, (*SetContents).deleteElement)
	}
	return fmt.Errorf("unknown operation %T", op)
}

// flush removes the rules of all chains.
func (c *Contents) flush() error {
	for name, ch := range c.Chains {
		c.Chains[name] = &Chain{Name: ch.Name, Hook: ch.Hook}
	}
	return nil
}

func (m *Model) inTable(id TableID, do func(*Contents) error) error {
	c := m.tables[id]
	if c == nil {
		return ErrNotFound
	}
	return do(c)
}

func (m *Model) inChain(id TableID, name string, do func(*Contents, *Chain)) error {
	return m.inTable(id, func(c *Contents) error {
		chain := c.Chains[name]
		if chain == nil {
			return ErrNotFound
		}
		do(c, chain)
		return nil
	})
}

func (m *Model) inSet(id TableID, set *Set, elements []OwnedElement,
	do func(*SetContents, Family, Element) error) error {
	return m.inTable(id, func(c *Contents) error {
		s := c.Sets[set.Name]
		if s == nil {
			return ErrNotFound
		}
		for _, e := range elements {
			if err := do(s, id.Family, e.Element); err != nil {
				return fmt.Errorf("element %s: %w", e.keyText(id.Family, s.Set), err)
			}
		}
		return nil
	})
}

// maxKey is how many bytes of a packet a kernel compares at once (NFT_DATA_VALUE_MAXLEN).
const maxKey = 64

func (c *Contents) addSet(s *Set) error {
	if c.Sets[s.Name] != nil {
		return ErrExists
	}
	if err := s.Check(); err != nil {
		return err
	}
	if s.Key.Len(c.Table.Family) > maxKey || s.Data.Len(c.Table.Family) > maxKey {
		return fmt.Errorf("longer than %d bytes: %q", maxKey, s.declaration(c.Table.Family))
	}
	c.Sets[s.Name] = &SetContents{s, map[Value]Element{}}
	return nil
}

func (c *Contents) deleteSet(name string) error {
	if c.Sets[name] == nil {
		return ErrNotFound
	}
	for _, chain := range c.Chains {
		if chain.refersTo(name) {
			return fmt.Errorf("chain %s: %w", chain.Name, ErrBusy)
		}
	}
	delete(c.Sets, name)
	return nil
}

func (c *Contents) addChain(chain *Chain) error {
	if c.Chains[chain.Name] != nil {
		return ErrExists
	}
	c.Chains[chain.Name] = &Chain{Name: chain.Name, Hook: chain.Hook}
	return nil
}

func (s *SetContents) addElement(f Family, e Element) error {
	if len(e.Key) != s.Set.Key.Len(f) || len(e.Data) != s.Set.Data.Len(f) || (e.Verdict != Verdict{}) != s.Set.Verdicts {
		return fmt.Errorf("does not fit %q", s.Set.declaration(f))
	}
	if s.Set.Dynamic || (len(e.KeyEnd) > 0) != s.Set.Interval || s.Set.Interval && len(e.KeyEnd) != len(e.Key) {
		return fmt.Errorf("does not fit %q", s.Set.declaration(f))
	}
	if len(e.Comment) > MaxComment {
		return fmt.Errorf("comment of %d bytes", len(e.Comment))
	}
	if have, ok := s.Elements[e.Key]; ok {
		if have.KeyEnd != e.KeyEnd || have.Data != e.Data || have.Verdict != e.Verdict {
			return ErrExists
		}
		return nil // The present element stays as it is, with its comment.
	}
	if s.overlaps(f, e) {
		return ErrExists
	}
	if s.full(0) {
		return ErrFull
	}
	s.Elements[e.Key] = e
	return nil
}

func (s *SetContents) deleteElement(_ Family, e Element) error {
	if have, ok := s.Elements[e.Key]; !ok || have.KeyEnd != e.KeyEnd {
		return ErrNotFound
	}
	delete(s.Elements, e.Key)
	return nil
}

// checkReferences checks what the kernel checks of a whole transaction: every chain
// and set that a rule or element refers to exists, and chains do not nest too deeply.
func (m *Model) checkReferences() error {
	for id, c := range m.tables {
		if err := c.checkNesting(); err != nil {
			return fmt.Errorf("table %s: %w", id, err)
		}
		for _, chain := range c.Chains {
			for _, r := range chain.Rules {
				for _, s := range r {
					if err := c.checkStatement(s); err != nil {
						return fmt.Errorf("chain %s %s: rule %q: %w", id, chain.Name, r.Text(id.Family), err)
					}
				}
			}
		}
		for _, s := range c.Sets {
			for _, e := range s.Elements {
				if err := c.checkStatement(e.Verdict); err != nil {
					return fmt.Errorf("map %s %s: element %s: %w", id, s.Set.Name, s.Set.Key.Format(id.Family, e.Key), err)
				}
			}
		}
	}
	return nil
}

func (c *Contents) checkStatement(s Statement) error {
	if v, ok := s.(Verdict); ok {
		return c.checkVerdict(v)
	}
	if t, ok := s.(SetTimeout); ok {
		if _, there := c.Timeouts[t.Name]; !there {
			return fmt.Errorf("time-outs %s: %w", t.Name, ErrNotFound)
		}
	}
	set, kind := setOf(s)
	if set == "" {
		return nil
	}
	if c.Sets[set] == nil || c.Sets[set].Set.keyword() != kind {
		return fmt.Errorf("%s %s: %w", kind, set, ErrNotFound)
	}
	if u, ok := s.(Update); ok {
		if !c.Sets[set].Set.Dynamic {
			return fmt.Errorf("%s %s is not dynamic", kind, set)
		}
		return u.Check(c.Table.Family)
	}
	return nil
}

func (c *Contents) checkVerdict(v Verdict) error {
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

// String returns the tables in the syntax that nft reads, sorted.
func (m *Model) String() string {
	var b strings.Builder
	for _, id := range slices.SortedFunc(maps.Keys(m.tables), func(a, b TableID) int {
		return strings.Compare(a.String(), b.String())
	}) {
		m.tables[id].writeText(&b)
	}
	return b.String()
}

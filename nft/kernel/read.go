package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// readTries is how often a Read that saw a foreign transaction go by starts
// again. Beside a busy ruleset it may never see none: then the last one counts,
// since transactions on other tables do no harm.
const readTries = 4

// errChanged says that a table changed while it was read.
var errChanged = errors.New("the ruleset changed during the dump")

// Read returns the tables that want names, as the kernel has them. A set or
// chain that is exactly as want has it is returned as want's own pointer; a set
// that is not, or that has elements of a form that no program has, as a Set
// without key and without elements; a dynamic map is returned without what
// rules have added to it (see Learned); and a chain that is not, with nft.Unknown
// in place of those rules that are more than matches, lookups and a verdict.
//
// A table is read until no transaction came in between, at most four times. One
// that this Conn owns cannot change and is read once.
func (c *Conn) Read(want *nft.Program) (*nft.Model, error) {
	m := nft.NewModel()
	for _, f := range nft.Families() {
		contents, err := c.ReadTable(want.Table(f))
		if err != nil {
			return nil, err
		}
		if contents != nil {
			m.Put(contents)
		}
	}
	return m, nil
}

// ReadTable is Read for one table; without such a table it returns nil.
func (c *Conn) ReadTable(want *nft.Table) (*nft.Contents, error) {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	owned, err := c.Owned(want.ID())
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		contents, changed, err := c.readOnce(want, owned)
		last := try == readTries
		switch {
		case err == nil && (!changed || last):
			return contents, nil
		case err != nil && (last || !errors.Is(err, errChanged)):
			return nil, fmt.Errorf("read table %s: %w", want.ID(), err)
		}
	}
}

// readOnce also says whether the contents may be of two moments.
func (c *Conn) readOnce(want *nft.Table, owned bool) (contents *nft.Contents, changed bool, err error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	before, err := c.generation()
	if err != nil {
		return nil, false, err
	}
	r := tableReader{conn: c, want: want, owned: owned}
	if contents, err = r.read(); err != nil {
		return nil, false, err
	}
	after, err := c.generation()
	if err != nil {
		return nil, false, err
	}
	return contents, r.changed || !owned && before != after, nil
}

// tableReader reads one table.
type tableReader struct {
	conn *Conn
	want *nft.Table
	// owned says that only we can change the table, so that the kernel's hint
	// that a dump was interrupted concerns others.
	owned bool
	// changed says that a dump may have missed something.
	changed bool
	rules   map[string][]rawRule
	names   map[string]string
}

// rawRule is a rule as the kernel dumps it.
type rawRule struct {
	expressions []byte
	// more says that there is something besides, such as a comment.
	more bool
}

// read returns nil if there is no such table.
func (r *tableReader) read() (*nft.Contents, error) {
	id := r.want.ID()
	_, err := r.conn.reader.request(unix.NFT_MSG_GETTABLE, id.Family, func(e *encoder) { e.string(unix.NFTA_TABLE_NAME, id.Name) })
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r.rules, r.names = map[string][]rawRule{}, map[string]string{}
	contents := nft.NewContents(id)
	err = r.dump(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, nil, r.rule)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	err = r.dump(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, nil, func(attrs []byte) error {
		chain := r.chain(attrs)
		contents.Chains[chain.Name] = chain
		r.names[chain.Name] = chain.Name
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	err = r.dump(unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, nil, func(attrs []byte) error {
		s := r.set(attrs)
		contents.Sets[s.Set.Name] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sets: %w", err)
	}
	for name, s := range contents.Sets {
		if err := r.elements(s); err != nil {
			return nil, fmt.Errorf("elements of %s: %w", name, err)
		}
	}
	return contents, nil
}

// dump visits the table's objects of a kind. The table's name has the same
// attribute in the request and in each object.
func (r *tableReader) dump(kind, table uint16, fill func(*encoder), visit func(attrs []byte) error) error {
	name := r.want.Name
	err := r.conn.reader.receive(kind, unix.NLM_F_DUMP, r.want.Family, func(e *encoder) {
		e.string(table, name)
		if fill != nil {
			fill(e)
		}
	}, func(m message) error {
		if m.flags&unix.NLM_F_DUMP_INTR != 0 && !r.owned {
			r.changed = true
		}
		// Some kernels list the objects of all tables.
		if attrs := m.attrs(); string(bytes.TrimSuffix(attribute(attrs, table), []byte{0})) == name {
			return visit(attrs)
		}
		return nil
	})
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) && !r.owned {
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	return err
}

func (r *tableReader) rule(attrs []byte) error {
	chain := text(attribute(attrs, unix.NFTA_RULE_CHAIN))
	r.rules[chain] = append(r.rules[chain], rawRule{
		expressions: slices.Clone(attribute(attrs, unix.NFTA_RULE_EXPRESSIONS)),
		more:        attribute(attrs, unix.NFTA_RULE_USERDATA) != nil || attribute(attrs, unix.NFTA_RULE_COMPAT) != nil,
	})
	return nil
}

// otherHook is the hook of a chain that is not of type nat, or drops by policy.
const otherHook nft.HookName = 0xff

func (r *tableReader) chain(attrs []byte) *nft.Chain {
	have := &nft.Chain{Name: text(attribute(attrs, unix.NFTA_CHAIN_NAME))}
	if hook := attribute(attrs, unix.NFTA_CHAIN_HOOK); hook != nil {
		have.Hook = &nft.Hook{
			Name:     nft.HookName(attributeUint32(hook, unix.NFTA_HOOK_HOOKNUM)),
			Priority: int32(attributeUint32(hook, unix.NFTA_HOOK_PRIORITY)),
		}
		if text(attribute(attrs, unix.NFTA_CHAIN_TYPE)) != natChain || attributeUint32(attrs, unix.NFTA_CHAIN_POLICY) != uint32(nft.Accept) {
			have.Hook.Name = otherHook
		}
	}
	want, _ := r.want.Chains.Get(have.Name)
	rules := r.rules[have.Name]
	if want != nil && sameHook(want.Hook, have.Hook) && r.sameRules(want.Rules, rules) {
		return want
	}
	for _, raw := range rules {
		rule, ok := recognise(raw, r.want.Family)
		if !ok {
			rule = nft.Rule{nft.Unknown{}}
		}
		have.Rules = append(have.Rules, rule)
	}
	return have
}

func sameHook(a, b *nft.Hook) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

func (r *tableReader) sameRules(want []nft.Rule, have []rawRule) bool {
	return slices.EqualFunc(want, have, func(w nft.Rule, h rawRule) bool { return sameRule(w, h, r.want.Family) })
}

func (r *tableReader) set(attrs []byte) *nft.SetContents {
	name := text(attribute(attrs, unix.NFTA_SET_NAME))
	want := r.want.Set(name)
	switch {
	case want == nil || !declaredAs(attrs, want, r.want.Family):
		want = &nft.Set{Name: name}
	case want.Room > 0:
		have := *want
		have.Size, have.Room = attributeUint32(attribute(attrs, unix.NFTA_SET_DESC), unix.NFTA_SET_DESC_SIZE), 0
		want = &have
	}
	// The count is there since Linux 6.16, and no more than a hint: with a hash
	// that is full of it, nothing is copied while it is filled.
	return &nft.SetContents{Set: want, Elements: make(map[nft.Value]nft.Element, min(attributeUint32(attrs, attrSetCount), 1<<20))}
}

// attrSetCount is NFTA_SET_COUNT, which x/sys/unix lacks.
const attrSetCount = 20

func (r *tableReader) elements(s *nft.SetContents) error {
	if len(s.Set.Key) == 0 || s.Set.Dynamic {
		return nil
	}
	d := elementDecoder{set: s.Set, shape: shapeOf(s.Set, r.want.Family), chains: r.names}
	seen := 0
	err := r.dump(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, func(e *encoder) {
		e.string(unix.NFTA_SET_ELEM_LIST_SET, s.Set.Name)
	}, func(attrs []byte) error {
		n := d.decode(attribute(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS), s.Elements)
		seen += n
		return nil
	})
	if err != nil {
		return err
	}
	if d.foreign {
		s.Set, s.Elements = &nft.Set{Name: s.Set.Name}, map[nft.Value]nft.Element{}
		return nil
	}
	// A hash that the kernel resizes during the dump gives some elements twice
	// and, one must suppose, some not at all.
	if seen != len(s.Elements) {
		r.changed = true
	}
	return nil
}

package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// readTries is how often ReadTable reads a table until no foreign transaction came in
// between. In a busy namespace one may always come. Then the last read counts, since
// transactions on other tables do no harm.
const readTries = 4

// errChanged says that a table changed while it was read.
var errChanged = errors.New("the ruleset changed during the dump")

// Read returns the tables of the program want, as the kernel has them. For a set or chain that is
// exactly as wanted, it returns want's own pointer. Other ones are returned as follows:
//   - a set: as a Set without key and elements if it is declared otherwise than wanted (but
//     for a counter), or if no program could have its declaration or one of its elements;
//   - a dynamic map: without the elements that rules have added (see Learned);
//   - a chain: with nft.Unknown at the end of each rule that has more than the statements of
//     package nft, such as a comment. The statements before it are those that the rule begins with.
//
// Read reads a table until no transaction came in between, at most four times. A table
// that this Conn owns cannot change, so one read is enough.
//
// A set of 250,000 elements and more is looked up key by key where the kernel says how many elements
// it has, and dumped otherwise. Both give the same contents.
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

// ReadTable reads one table as Read does. It returns nil if the kernel has no such table.
func (c *Conn) ReadTable(want *nft.Table) (*nft.Contents, error) {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	owned, err := c.Owned(want.ID())
	if err != nil {
		return nil, err
	}
	contents, err := readAgain(func() (*nft.Contents, bool, error) { return c.readOnce(want, owned) })
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", want.ID(), err)
	}
	return contents, nil
}

// readAgain reads until no transaction came in between, readTries times at most.
func readAgain[T any](once func() (read T, changed bool, err error)) (T, error) {
	for try := 1; ; try++ {
		read, changed, err := once()
		if again := changed || errors.Is(err, errChanged); !again || try == readTries {
			return read, err
		}
	}
}

// ReadSet reads one set of a table, as ReadTable does; nil if the kernel has no such set. If
// transactions come in between again and again, some elements may be missing.
func (c *Conn) ReadSet(table *nft.Table, name string) (*nft.SetContents, error) {
	s, err := readAgain(func() (*nft.SetContents, bool, error) { return c.readSetOnce(table, name) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read set %s %s: %w", table.ID(), name, err)
	}
	return s, nil
}

func (c *Conn) readSetOnce(table *nft.Table, name string) (s *nft.SetContents, changed bool, err error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	r := newTableReader(c, table, false)
	attrs, err := c.reader.Get(unix.NFT_MSG_GETSET, uint8(table.Family), new(nfnetlink.Encoder).Text(unix.NFTA_SET_TABLE,
		table.Name).Text(unix.NFTA_SET_NAME, name).B)
	if err != nil {
		return nil, false, err
	}
	s = r.setOf(attrs)
	if err = r.readElements(s); err != nil {
		return nil, false, err
	}
	return s, r.changed, nil
}

// Chains returns the names of a table's chains, none if the kernel has no such table.
func (c *Conn) Chains(id nft.TableID) (names []string, err error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	r := newTableReader(c, &nft.Table{Family: id.Family, Name: id.Name}, false)
	err = r.dumpObjects(unix.NFT_MSG_GETCHAIN, nil, func(attrs nfnetlink.Attributes) error {
		names = append(names, attrs.Text(unix.NFTA_CHAIN_NAME))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list chains of table %s: %w", id, err)
	}
	return names, nil
}

// readOnce reads the table. changed says that it may have changed meanwhile.
func (c *Conn) readOnce(want *nft.Table, owned bool) (contents *nft.Contents, changed bool, err error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	before, err := c.generation()
	if err != nil {
		return nil, false, err
	}
	r := newTableReader(c, want, owned)
	if contents, err = r.readTable(); err != nil {
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
	// owned says that only this process can change the table. Then the kernel's hint that a
	// dump was interrupted is about other tables.
	owned bool
	// changed says that a dump may be incomplete.
	changed bool
	rules   map[string][]rawRule
	names   map[string]string
	// counts is how many elements each set has, on kernels that say so (Linux 6.16).
	counts map[string]int
	// small are the sets of few elements that were read.
	small []*nft.SetContents
}

func newTableReader(c *Conn, want *nft.Table, owned bool) *tableReader {
	return &tableReader{
		conn: c, want: want, owned: owned,
		rules: map[string][]rawRule{}, names: map[string]string{}, counts: map[string]int{},
	}
}

// rawRule is a rule as the kernel dumps it.
type rawRule struct {
	// userdata has the comment.
	expressions, userdata nfnetlink.Attributes
	// compat says that another program reads more in the expressions than they say.
	compat bool
}

// readTable returns nil if there is no such table.
func (r *tableReader) readTable() (*nft.Contents, error) {
	id := r.want.ID()
	_, err := r.conn.reader.Get(unix.NFT_MSG_GETTABLE, uint8(id.Family), new(nfnetlink.Encoder).Text(unix.NFTA_TABLE_NAME,
		id.Name).B)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	contents := nft.NewContents(id)
	err = r.dumpObjects(unix.NFT_MSG_GETRULE, nil, r.keepRule)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	err = r.dumpObjects(unix.NFT_MSG_GETCHAIN, nil, func(attrs nfnetlink.Attributes) error {
		chain := r.chainOf(attrs)
		contents.Chains[chain.Name] = chain
		r.names[chain.Name] = chain.Name
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	err = r.dumpObjects(unix.NFT_MSG_GETSET, nil, func(attrs nfnetlink.Attributes) error {
		s := r.setOf(attrs)
		contents.Sets[s.Set.Name] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sets: %w", err)
	}
	if err := r.readTimeouts(contents.Timeouts); err != nil {
		return nil, fmt.Errorf("time-outs: %w", err)
	}
	// Small sets come first: their keys tell of pools in large ones.
	bySize := func(a, b *nft.SetContents) int { return cmp.Compare(r.counts[a.Set.Name], r.counts[b.Set.Name]) }
	for _, s := range slices.SortedFunc(maps.Values(contents.Sets), bySize) {
		name := s.Set.Name
		if err := r.readElements(s); err != nil {
			return nil, fmt.Errorf("elements of %s: %w", name, err)
		}
		if r.counts[name] < r.conn.lookUpFrom {
			r.small = append(r.small, s)
		}
	}
	return contents, nil
}

// dumpObjects visits the table's objects of a kind. The first attribute has the table's
// name, in the request and in each object, whatever the kind.
func (r *tableReader) dumpObjects(kind uint16, more []byte, visit func(nfnetlink.Attributes) error) error {
	const table = unix.NFTA_RULE_TABLE
	name := r.want.Name
	request := append(new(nfnetlink.Encoder).Text(table, name).B, more...)
	err := r.conn.reader.Receive(kind, unix.NLM_F_DUMP, uint8(r.want.Family), request, func(m nfnetlink.Message) error {
		if m.Flags&unix.NLM_F_DUMP_INTR != 0 && !r.owned {
			r.changed = true
		}
		// Some kernels list the objects of all tables.
		if attrs := m.Attributes(); string(attrs.Get(table).WithoutZero()) == name {
			return visit(attrs)
		}
		return nil
	})
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) && !r.owned {
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	return err
}

func (r *tableReader) keepRule(attrs nfnetlink.Attributes) error {
	chain := attrs.Text(unix.NFTA_RULE_CHAIN)
	r.rules[chain] = append(r.rules[chain], rawRuleOf(attrs))
	return nil
}

// otherHook stands for the hook of a chain that is not of type nat, or whose policy is
// not accept.
const otherHook nft.HookName = 0xff

func (r *tableReader) chainOf(attrs nfnetlink.Attributes) *nft.Chain {
	have := &nft.Chain{Name: attrs.Text(unix.NFTA_CHAIN_NAME)}
	if hook := attrs.Get(unix.NFTA_CHAIN_HOOK); hook != nil {
		have.Hook = &nft.Hook{
			Name:     nft.HookName(hook.Uint32(unix.NFTA_HOOK_HOOKNUM)),
			Priority: int32(hook.Uint32(unix.NFTA_HOOK_PRIORITY)),
		}
		if attrs.Text(unix.NFTA_CHAIN_TYPE) != natChain || attrs.Uint32(unix.NFTA_CHAIN_POLICY) != uint32(nft.Accept) {
			have.Hook.Name = otherHook
		}
	}
	want, _ := r.want.Chains.Get(have.Name)
	rules := r.rules[have.Name]
	same := func(w nft.Rule, h rawRule) bool { return sameRule(w, h, r.want.Family) }
	if want != nil && want.SameHook(have) && slices.EqualFunc(want.Rules, rules, same) {
		return want
	}
	for _, raw := range rules {
		have.Rules = append(have.Rules, recogniseRule(raw, r.want.Family))
	}
	return have
}

func (r *tableReader) setOf(attrs nfnetlink.Attributes) *nft.SetContents {
	name := attrs.Text(unix.NFTA_SET_NAME)
	want := r.want.Set(name)
	switch {
	case want == nil:
		want = recogniseSet(attrs, name, r.want.Family)
	case !declaredAs(attrs, want, r.want.Family):
		want = r.declaredOtherwise(attrs, want)
	}
	if want.MinSize > 0 {
		have := *want
		have.Size, have.MinSize = attrs.Get(unix.NFTA_SET_DESC).Uint32(unix.NFTA_SET_DESC_SIZE), 0
		want = &have
	}
	count := attrs.Get(attrSetCount)
	if count != nil {
		r.counts[name] = int(count.Number32())
	}
	// The map need not grow if the count is known. Elements of other sets are not read: each full map of
	// clients would take 8 MB.
	size := uint32(0)
	if len(want.Key) > 0 && !want.Dynamic {
		size = min(count.Number32(), 1<<20)
	}
	return &nft.SetContents{Set: want, Elements: make(map[nft.Value]nft.Element, size)}
}

func (r *tableReader) decoderOf(s *nft.SetContents) elementDecoder {
	return elementDecoder{set: s.Set, shape: shapeOf(s.Set, r.want.Family), chains: r.names, ends: map[nft.Value]bool{}}
}

// declaredOtherwise is the declaration of a set that is not as wanted: only its name, unless just the
// counter is missing or too much.
func (r *tableReader) declaredOtherwise(attrs nfnetlink.Attributes, want *nft.Set) *nft.Set {
	have := *want
	have.Counter = !want.Counter
	if declaredAs(attrs, &have, r.want.Family) {
		return &have
	}
	return &nft.Set{Name: want.Name}
}

// attrSetCount is NFTA_SET_COUNT, which x/sys/unix lacks.
const attrSetCount = 20

func (r *tableReader) readElements(s *nft.SetContents) error {
	if len(s.Set.Key) == 0 || s.Set.Dynamic {
		return nil
	}
	if r.lookUpElements(s) {
		return nil
	}
	d := r.decoderOf(s)
	seen := 0
	err := r.dumpObjects(unix.NFT_MSG_GETSETELEM,
		new(nfnetlink.Encoder).Text(unix.NFTA_SET_ELEM_LIST_SET, s.Set.Name).B, func(attrs nfnetlink.Attributes) error {
			d.reset()
			d.gather(attrs.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS))
			seen += d.keep(s.Elements)
			return nil
		})
	if err != nil {
		return err
	}
	// If the kernel resizes a hash during the dump, it gives some elements twice and may
	// leave out others.
	if seen != len(s.Elements)+len(d.ends) {
		r.changed = true
	}
	if d.foreign || d.shape.paired && !pairIntervals(s.Elements, d.ends, d.shape) {
		s.Set, s.Elements = &nft.Set{Name: s.Set.Name}, map[nft.Value]nft.Element{}
	}
	return nil
}

package ruleset

import (
	"maps"
	"net/netip"
	"slices"

	"nftproxy/internal/service"
	"nftproxy/internal/treap"
	"nftproxy/nft"
)

// Compile compiles a snapshot from scratch.
func Compile(cfg Config, s service.Snapshot) *nft.Program { return NewCompiler(cfg).Compile(s) }

// Compiler compiles one snapshot after the other and builds only what has
// changed in between: the cost follows the changed services. It is not safe
// for concurrent use; the programs are.
type Compiler struct {
	tables [2]*tableCompiler
	last   service.Snapshot
	// restricted are the services whose source ranges are compared with the
	// node's addresses.
	restricted map[service.Name]bool
}

// NewCompiler makes a compiler for one configuration.
func NewCompiler(cfg Config) *Compiler {
	c := &Compiler{last: service.Snapshot{Node: &service.Node{}}, restricted: map[service.Name]bool{}}
	for i, f := range nft.Families() {
		c.tables[i] = newTableCompiler(cfg, f)
	}
	return c
}

// Compile returns the program for the snapshot. It equals what Compile from
// scratch gives; what has not changed keeps its pointers.
func (c *Compiler) Compile(s service.Snapshot) *nft.Program {
	changed := c.changed(s)
	node, ranges := s.Node != c.last.Node, s.ServiceCIDRs != c.last.ServiceCIDRs
	for _, t := range c.tables {
		if ranges {
			t.setRanges(s.ServiceCIDRs)
		}
		if node || ranges {
			t.setNode(s)
		}
		t.setServices(changed, s)
		t.applyEdits()
		if l := t.leaving(); node || ranges || !slices.Equal(l.learning, t.left.learning) || l.unlisted != t.left.unlisted {
			t.setLeaving(l)
		}
	}
	for _, name := range changed {
		c.setRestricted(name, s)
	}
	c.last = s
	return &nft.Program{IPv4: c.tables[0].program(), IPv6: c.tables[1].program()}
}

// changed lists the services that may compile to something else than before,
// sorted, each once.
func (c *Compiler) changed(s service.Snapshot) []service.Name {
	var names []service.Name
	// Which endpoints are local, and near, depends on the node.
	everywhere := s.Node.Name != c.last.Node.Name || s.Node.Zone != c.last.Node.Zone
	if everywhere {
		for name := range s.Services.All() {
			names = append(names, name)
		}
	}
	for d := range treap.Diff(c.last.Services, s.Services) {
		if !d.HasNew || !everywhere {
			names = append(names, d.Key)
		}
	}
	if everywhere {
		return sorted(names)
	}
	for d := range treap.Diff(c.last.Conflicts, s.Conflicts) {
		names = append(names, d.Key)
	}
	for d := range treap.Diff(c.last.Restrictions, s.Restrictions) {
		names = append(names, d.Key)
	}
	// Who may reach a restricted address depends on the node's own.
	if !slices.Equal(s.Node.Addresses, c.last.Node.Addresses) {
		names = slices.AppendSeq(names, maps.Keys(c.restricted))
	}
	return sorted(names)
}

func sorted(names []service.Name) []service.Name {
	slices.Sort(names)
	return slices.Compact(names)
}

// setRestricted keeps the list of services with a restricted address.
func (c *Compiler) setRestricted(name service.Name, s service.Snapshot) {
	svc, ok := s.Services.Get(name)
	if ok && (svc.Sources != nil && len(svc.LoadBalancerIPs) > 0 || s.Restrictions.At(name) != nil) {
		c.restricted[name] = true
		return
	}
	delete(c.restricted, name)
}

// tableCompiler holds the table as compiled so far and what is counted in it.
type tableCompiler struct {
	cfg    Config
	family nft.Family
	// address and nodePort are the ways in to services.
	address, nodePort *entrance
	sets              []*nft.Set
	chains            treap.Map[string, *nft.Chain]
	// parts are those of the last program, and edits what this one has
	// otherwise, nil for a part that goes. They go in all at once.
	parts treap.Map[string, *nft.Part]
	edits map[string]*nft.Part
	// node is what local endpoints are compared with.
	node *service.Node
	// pods is how they are told at present.
	pods pods
	// shared are the shared chains in use, by name.
	shared map[string]*use
	// ranges are those that cluster IPs come from, and outside is how many cluster
	// IPs are in none of them.
	ranges  treap.Map[string, netip.Prefix]
	outside int
	// learners counts, by entrance, the elements that point to chains that
	// remember clients.
	learners map[*entrance]int
	// left is what the chains depend on that see connections last.
	left leaving
	// local holds the local endpoint addresses of each service that has any,
	// and locals counts the services of each address.
	local  map[service.Name][]netip.Addr
	locals map[netip.Addr]int
}

func newTableCompiler(cfg Config, f nft.Family) *tableCompiler {
	t := &tableCompiler{
		cfg: cfg, family: f, address: byAddress(), nodePort: byNodePort(), sets: sets(),
		edits:    map[string]*nft.Part{},
		shared:   map[string]*use{},
		learners: map[*entrance]int{},
		local:    map[service.Name][]netip.Addr{},
		locals:   map[netip.Addr]int{},
	}
	for _, chain := range fixedChains() {
		t.chains = t.chains.Set(chain.Name, chain)
	}
	t.setPods(pods{})
	return t
}

// use is a shared chain and the number of elements that point to it.
type use struct {
	chain    sharedChain
	elements int
}

func (t *tableCompiler) program() *nft.Table {
	return &nft.Table{Family: t.family, Name: t.cfg.Table, Sets: t.sets, Chains: t.chains, Parts: t.parts}
}

// nodePart holds the elements that belong to the node itself. It cannot be
// taken for a service, whose name has a slash.
const nodePart = "node"

// setNode compiles what is not about single services.
func (t *tableCompiler) setNode(s service.Snapshot) {
	t.node = s.Node
	if p := t.cfg.pods(t.family, s.Node); p != t.pods {
		t.setPods(p)
	}
	t.chains = t.chains.Set(dispatch, dispatchChain(&t.cfg, t.family, s))
	addrs, _ := t.cfg.NodePortAddresses.On(s.Node, t.family == nft.IPv6)
	if len(addrs) == 0 {
		t.edits[nodePart] = nil
		return
	}
	elements := make([]nft.Element, len(addrs))
	for i, a := range addrs {
		elements[i] = nft.Element{Set: nodePortAddresses, Key: nft.Value(nft.AppendAddr(nil, a))}
	}
	t.edits[nodePart] = nft.NewPart(elements, nil)
}

// setPods builds the chains that tell pods from others.
func (t *tableCompiler) setPods(p pods) {
	t.pods = p
	for _, e := range []*entrance{t.address, t.nodePort} {
		t.chains = t.chains.Set(e.external, e.externalLocalChain(&t.cfg, p))
	}
	for name, u := range t.shared {
		if u.chain.tellsPods() {
			t.chains = t.chains.Set(name, u.chain.chain(&t.cfg, p))
		}
	}
}

// setRanges is about what is in t.parts; edits are counted when they are made.
func (t *tableCompiler) setRanges(ranges treap.Map[string, netip.Prefix]) {
	t.ranges, t.outside = ranges, 0
	for _, part := range t.parts.All() {
		for _, e := range part.Elements {
			t.countOutside(e, 1)
		}
	}
}

// countOutside keeps track of cluster IPs that are in no range.
func (t *tableCompiler) countOutside(e nft.Element, by int) {
	if e.Set != clusterIPs {
		return
	}
	a := addrOf(e.Key)
	for _, r := range t.ranges.All() {
		if r.Contains(a) {
			return
		}
	}
	t.outside += by
}

// leaving is what services need of the chains that see connections last.
func (t *tableCompiler) leaving() leaving {
	l := leaving{unlisted: t.outside > 0}
	for _, e := range []*entrance{t.address, t.nodePort} {
		if t.learners[e] > 0 {
			l.learning = append(l.learning, e)
		}
	}
	return l
}

// setLeaving builds the chains that see connections last.
func (t *tableCompiler) setLeaving(l leaving) {
	t.left = l
	for _, chain := range leavingChains(&t.cfg, t.family, t.ranges, l) {
		t.chains = t.chains.Set(chain.Name, chain)
	}
}

// setServices compiles services of the snapshot, and takes away those that it
// has no longer.
func (t *tableCompiler) setServices(names []service.Name, s service.Snapshot) {
	compiled := make([]compiledService, len(names))
	inParallel(len(names), func(i int) { compiled[i] = t.compile(names[i], s) })
	for i, name := range names {
		t.setService(name, compiled[i])
	}
}

// compiledService is what a service compiles to; the zero value is nothing.
type compiledService struct {
	part *nft.Part
	// local are the addresses of endpoints on the node, each once.
	local []netip.Addr
	// wanted are the shared chains that the elements point to, by name.
	wanted map[string]sharedChain
}

// compile changes nothing in t, so services can be compiled side by side.
func (t *tableCompiler) compile(name service.Name, s service.Snapshot) compiledService {
	svc, ok := s.Services.Get(name)
	if !ok {
		return compiledService{}
	}
	c := serviceCompiler{
		tableCompiler: t, svc: svc,
		lost: s.Conflicts.At(name), restrictions: s.Restrictions.At(name),
	}
	return c.compile()
}

// setService puts a compiled service in place of what it was.
func (t *tableCompiler) setService(name service.Name, c compiledService) {
	for name, chain := range c.wanted {
		if t.shared[name] == nil {
			t.shared[name] = &use{chain: chain}
			t.chains = t.chains.Set(name, chain.chain(&t.cfg, t.pods))
		}
	}
	key := string(name)
	old := t.parts.At(key)
	t.count(c.part, 1)
	t.count(old, -1)
	if c.part != nil || old != nil {
		t.edits[key] = c.part
	}
	t.setLocal(name, c.local)
}

// count keeps track of who points to which shared chain; one that nobody
// points to any more leaves the program.
func (t *tableCompiler) count(part *nft.Part, by int) {
	if part == nil {
		return
	}
	for _, e := range part.Elements {
		t.countOutside(e, by)
		chain := e.Verdict.Chain
		if chain == "" || fixed(chain) {
			continue
		}
		u := t.shared[chain]
		if u.chain.learn > 0 {
			t.learners[u.chain.entrance] += by
		}
		if u.elements += by; u.elements == 0 {
			delete(t.shared, chain)
			t.chains = t.chains.Delete(chain)
		}
	}
}

// fixed says that a chain is there whoever points to it.
func fixed(chain string) bool {
	return chain == refuse || chain == externalLocal || chain == nodePortExternalLocal || chain == sourceRanges
}

// setLocal keeps one hairpin element for each address of a local endpoint,
// however many services it is behind.
func (t *tableCompiler) setLocal(name service.Name, addrs []netip.Addr) {
	old := t.local[name]
	for _, a := range addrs {
		t.locals[a]++
	}
	for _, a := range old {
		t.locals[a]--
	}
	for _, a := range addrs {
		t.setHairpin(a)
	}
	for _, a := range old {
		t.setHairpin(a)
	}
	if len(addrs) == 0 {
		delete(t.local, name)
		return
	}
	t.local[name] = addrs
}

// setHairpin adds or removes the element of an address by how many services it
// is behind now.
func (t *tableCompiler) setHairpin(a netip.Addr) {
	name := hairpinPart(a)
	_, there := t.parts.Get(name)
	switch wanted := t.locals[a] > 0; {
	case wanted == there:
		delete(t.edits, name)
	case wanted:
		key := nft.Value(nft.AppendAddr(nft.AppendAddr(nil, a), a))
		t.edits[name] = nft.NewPart([]nft.Element{{Set: hairpin, Key: key}}, nil)
	default:
		t.edits[name] = nil
	}
	if t.locals[a] == 0 {
		delete(t.locals, a)
	}
}

// applyEdits makes the parts what the edits say.
func (t *tableCompiler) applyEdits() {
	t.parts = t.parts.Apply(treap.Edits(t.edits))
	t.edits = map[string]*nft.Part{} // to clear a large one would cost as much each time
}

func hairpinPart(a netip.Addr) string { return "endpoint " + a.String() }

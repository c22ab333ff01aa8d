package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/parallel"
	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// Compile compiles a snapshot from scratch.
func Compile(cfg Config, s service.Snapshot) *nft.Program { return NewCompiler(cfg).Compile(s) }

// Compiler compiles one snapshot after the other. It builds only what has changed in between, so
// its cost grows with the changed Services. A Compiler is not safe for concurrent use; the programs
// are.
type Compiler struct {
	config Config
	// settings are those of the node that the tables were compiled with, nil for the
	// configuration's.
	settings *service.Settings
	tables   ip.PerFamily[*tableCompiler]
	last     service.Snapshot
	// restricted has the services whose source ranges are compared with the node's
	// addresses.
	restricted map[service.Name]bool
}

// NewCompiler makes a compiler for one configuration.
func NewCompiler(cfg Config) *Compiler {
	c := &Compiler{config: cfg, last: service.Snapshot{Node: &service.Node{}}, restricted: map[service.Name]bool{}}
	for i, f := range nft.Families() {
		c.tables[i] = newTableCompiler(cfg, f)
	}
	return c
}

// Compile returns the program for the snapshot. It equals the program that Compile
// makes from scratch. Parts that have not changed keep their pointers.
func (c *Compiler) Compile(s service.Snapshot) *nft.Program {
	if want := s.Node.Settings; want != nil && want != c.settings {
		// Nothing that was compiled with other settings counts.
		cfg := c.config
		cfg.Settings = *want
		*c = *NewCompiler(cfg)
		c.settings = want
	}
	changed := c.changed(s)
	node, ranges := s.Node != c.last.Node, s.ServiceCIDRs != c.last.ServiceCIDRs
	for _, t := range c.tables {
		if ranges {
			t.setRanges(s.ServiceCIDRs)
		}
		if node {
			t.setNode(s.Node)
		}
	}
	parallel.Chunks(changed, func(svc changedService) compiledTwice { return c.compileTwice(svc, s) },
		func(some []changedService, compiled []compiledTwice) { c.setServices(some, compiled, s) })
	for _, t := range c.tables {
		t.setReachable()
		rangedChanged := t.setRanged()
		t.applyEdits()
		if t.refuses != (t.absent > 0) || rangedChanged {
			t.setPrerouting()
		}
		l := t.leaving()
		if ranges || l.spared != t.spared {
			t.setSpared(l.spared)
			t.setPings()
			t.setDispatch()
		} else if rangedChanged {
			t.setDispatch()
		}
		if node || ranges || !slices.Equal(l.learning, t.left.learning) || l.unlisted != t.left.unlisted ||
			l.spared != t.left.spared {
			t.setLeaving(l)
		}
	}
	c.last = s
	return &nft.Program{IPv4: c.tables[0].program(), IPv6: c.tables[1].program()}
}

// changedService is a service that may compile to something else than last time; nil if it has gone.
type changedService struct {
	name service.Name
	*service.Service
}

// changed lists the services that may compile to something else than last time,
// sorted, each once.
func (c *Compiler) changed(s service.Snapshot) []changedService {
	var list []changedService
	// The node decides which endpoints are local and which are near.
	moved := s.Node.Name != c.last.Node.Name || s.Node.Zone != c.last.Node.Zone || !slices.Equal(s.Node.PodCIDRs,
		c.last.Node.PodCIDRs)
	if moved {
		list = make([]changedService, 0, s.Services.Len())
		for name, svc := range s.Services.All() {
			list = append(list, changedService{name, svc})
		}
	}
	for d := range treap.Diff(c.last.Services, s.Services) {
		if !d.HasNew || !moved {
			list = append(list, changedService{d.Key, d.New})
		}
	}
	if moved {
		return sortedOnce(list)
	}
	add := func(name service.Name) { list = append(list, changedService{name, s.Services.At(name)}) }
	for d := range treap.Diff(c.last.Conflicts, s.Conflicts) {
		add(d.Key)
	}
	for d := range treap.Diff(c.last.Restrictions, s.Restrictions) {
		add(d.Key)
	}
	// The node's own addresses decide who may reach a restricted address.
	if !slices.Equal(s.Node.Addresses, c.last.Node.Addresses) {
		for name := range c.restricted {
			add(name)
		}
	}
	return sortedOnce(list)
}

// sortedOnce sorts the services by name and drops duplicates, in place.
func sortedOnce(list []changedService) []changedService {
	slices.SortFunc(list, func(a, b changedService) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(list, func(a, b changedService) bool { return a.name == b.name })
}

// compiledTwice is what a service compiles to in each table.
type compiledTwice ip.PerFamily[compiledService]

// compileTwice compiles a service for both families at once, while the processor has it at hand.
func (c *Compiler) compileTwice(svc changedService, s service.Snapshot) (compiled compiledTwice) {
	if svc.Service != nil {
		for f, t := range c.tables {
			compiled[f] = t.compile(svc.Service, s)
		}
	}
	return compiled
}

// setServices replaces what services of the snapshot, sorted by name, compiled to last time in both tables.
func (c *Compiler) setServices(list []changedService, compiled []compiledTwice, s service.Snapshot) {
	for f, t := range c.tables {
		// No chain goes before all services have come: a service relies on the chains that were there when it was compiled.
		for i := range list {
			t.addService(list[i].name, &compiled[i][f])
		}
		var edits []treap.Edit[string, *nft.Part]
		for i := range list {
			old, part := t.parts.At(string(list[i].name)), compiled[i][f].part
			t.countElements(old, -1)
			if part != nil || old != nil {
				edits = append(edits, treap.Edit[string, *nft.Part]{Key: string(list[i].name), Value: part, Gone: part == nil})
			}
		}
		t.parts = t.parts.Apply(edits)
	}
	for _, svc := range list {
		c.setRestricted(svc, s)
	}
}

// setRestricted notes whether the service has a restricted address.
func (c *Compiler) setRestricted(svc changedService, s service.Snapshot) {
	if svc.Service != nil && (svc.Sources != nil && len(svc.LoadBalancerIPs) > 0 || s.Restrictions.At(svc.name) != nil) {
		c.restricted[svc.name] = true
		return
	}
	delete(c.restricted, svc.name)
}

// tableCompiler holds the table as last compiled, with its counts.
type tableCompiler struct {
	cfg    Config
	family nft.Family
	// address, nodePort and byRanges are the ways to reach services.
	address, nodePort, byRanges *access
	sets                        treap.Map[string, *nft.Set]
	chains                      treap.Map[string, *nft.Chain]
	// parts has the parts of the last program. edits has the parts of no service that the
	// next program changes, nil for a part that goes. They go in all at once.
	parts treap.Map[string, *nft.Part]
	edits map[string]*nft.Part
	// node decides which endpoints are local.
	node *service.Node
	// pods tells pods from others.
	pods pods
	// shared has the shared chains in use, by name.
	shared map[string]*chainUse
	// lists has the lists of source ranges in use, and nodePortLists is the number of those in front of node ports.
	lists         listUses
	nodePortLists int
	// rangeLists has the lists of port ranges in use. ranged says that the table has what they share.
	rangeLists listUses
	ranged     bool
	// clientMaps counts the shared chains that refer to each map of clients.
	clientMaps map[string]int
	// timeouts has the objects of time-outs that shared chains refer to.
	timeouts timeoutUses
	// ranges are the ServiceCIDRs. outside counts the cluster IPs that are in none.
	ranges  treap.Map[string, netip.Prefix]
	outside int
	// inRange counts the lists of endpoints with one in a range.
	inRange int
	// reachable has the networks and API servers in the set of that name, and spared says
	// what the chains spare.
	reachable []netip.Prefix
	spared    spared
	// learners counts, for each access, the elements that lead to chains which remember
	// clients.
	learners map[*access]int
	// identities counts, for each access, the endpoints that may be remembered and are where the client goes anyway.
	identities map[*access]int
	// absent counts the node ports that have no endpoint on this node, with policy Local, and refuses says
	// whether prerouting knows that there are any.
	absent  int
	refuses bool
	// left is what the chains were built for that see connections last.
	left leaving
	// local holds the endpoints that are or may be on the node of each service that has any, and
	// locals counts those of each address.
	local  map[service.Name][]portOnNode
	locals map[netip.Addr]onNode
	// ports has the last lists of services with many endpoints.
	ports map[service.Name][]portLists
	// ping says how echo requests are answered. pinged counts the services by which each address answers, and pingsOf has
	// the addresses of each service.
	ping    pings
	pinged  map[netip.Addr]int
	pingsOf map[service.Name][]netip.Addr
}

func newTableCompiler(cfg Config, f nft.Family) *tableCompiler {
	t := &tableCompiler{
		cfg: cfg, family: f, address: byAddress(), nodePort: byNodePort(), byRanges: byRange(), sets: sets(&cfg),
		edits:  map[string]*nft.Part{},
		shared: map[string]*chainUse{}, clientMaps: map[string]int{}, timeouts: timeoutUses{users: map[string]int{}},
		lists: newListUses(), rangeLists: newListUses(),
		learners: map[*access]int{}, identities: map[*access]int{},
		local:  map[service.Name][]portOnNode{},
		locals: map[netip.Addr]onNode{},
		ports:  map[service.Name][]portLists{},
		pinged: map[netip.Addr]int{}, pingsOf: map[service.Name][]netip.Addr{},
	}
	for _, chain := range fixedChains(&t.cfg) {
		t.chains = t.chains.Set(chain.Name, chain)
	}
	t.chains = t.chains.Set(output, outputChain(&t.cfg, f, nil))
	t.setPods(pods{})
	t.setPrerouting()
	return t
}

// chainUse is a shared chain and the number of elements and chains that lead to it.
type chainUse struct {
	chain sharedChain
	users int
}

func (t *tableCompiler) program() *nft.Table {
	return &nft.Table{Family: t.family, Name: t.cfg.Table, Sets: t.sets, Chains: t.chains, Timeouts: t.timeouts.objects,
		Parts: t.parts}
}

// nodePart names the part with the node's own elements. No service has this name,
// since services have a slash in theirs.
const nodePart = "node"

// setNode compiles what depends on the node alone.
func (t *tableCompiler) setNode(node *service.Node) {
	t.node = node
	if p := t.cfg.pods(t.family, node); !p.equal(t.pods) {
		t.setPods(p)
	}
	t.setPings()
	t.setDispatch()
	t.setPrerouting()
	t.chains = t.chains.Set(output, outputChain(&t.cfg, t.family, node))
	addrs, _ := t.cfg.NodePortAddresses.On(node, t.family)
	if len(addrs) == 0 {
		t.edits[nodePart] = nil
		return
	}
	elements := make([]nft.Element, len(addrs))
	for i, a := range addrs {
		elements[i] = nft.Element{Set: nodePortAddresses, Key: addrValue(a)}
	}
	t.edits[nodePart] = nft.NewPart(elements, nil)
}

// setDispatch builds the chain dispatch.
func (t *tableCompiler) setDispatch() {
	t.chains = t.chains.Set(dispatch, dispatchChain(&t.cfg, t.family, t.node, t.spared, t.ping, t.ranged))
}

// setPods builds the chains that tell pods from others.
func (t *tableCompiler) setPods(p pods) {
	t.pods = p
	for _, a := range []*access{t.address, t.nodePort} {
		t.chains = t.chains.Set(a.externalChain, a.externalLocalChain(&t.cfg, p))
	}
	if t.ranged {
		t.chains = t.chains.Set(t.byRanges.externalChain, t.byRanges.externalLocalChain(&t.cfg, p))
	}
	for name, u := range t.shared {
		if u.chain.tellsPods() {
			t.chains = t.chains.Set(name, u.chain.chain(&t.cfg, p))
		}
	}
}

// setRanges sets the ServiceCIDRs, and counts the cluster IPs outside of them and the endpoints inside again. It
// counts t.parts only; addService counts new parts.
func (t *tableCompiler) setRanges(ranges treap.Map[string, netip.Prefix]) {
	t.ranges, t.outside, t.inRange = ranges, 0, 0
	for _, part := range t.parts.All() {
		t.countInRange(part, 1)
		for _, e := range part.Elements {
			t.countOutside(e, 1)
		}
	}
}

// countOutside counts the element if it is a cluster IP that is in no range.
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

// leaving says which rules the services need in the chains that see connections last.
func (t *tableCompiler) leaving() leaving {
	l := leaving{unlisted: t.outside > 0}
	l.spared = spared{networks: len(t.reachable) > 0, translated: t.inRange > 0, ranged: t.ranged && t.inRange > 0}
	if t.cfg.MasqueradeToNode {
		l.source = t.node.OwnAddress(t.family)
	}
	for _, a := range []*access{t.address, t.nodePort} {
		if t.learners[a] > 0 {
			l.learning = append(l.learning, learner{a, t.identities[a] > 0})
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

// compiledService is what a service compiles to; the zero value is nothing.
type compiledService struct {
	part *nft.Part
	// local has the endpoints on the node, of each port that has any.
	local []portOnNode
	// wanted has the shared chains that the elements lead to and the table did not have, some of them several times.
	wanted []wantedChain
	// sourceLists has the lists of source ranges that they lead to, some of them several times.
	sourceLists []sourceList
	// rangesUsed has the lists of port ranges that they lead to.
	rangesUsed []rangeList
	// ports has the lists to keep for the next compilation; nil for none.
	ports []portLists
	// pings has the addresses that answer echo requests.
	pings []netip.Addr
}

// wantedChain is a shared chain with its name.
type wantedChain struct {
	name string
	sharedChain
}

// compile compiles one service. It changes nothing in t, so services can be compiled
// side by side.
func (t *tableCompiler) compile(svc *service.Service, s service.Snapshot) compiledService {
	c := serviceCompiler{
		tableCompiler: t, svc: svc,
		conflicts: s.Conflicts.At(svc.Name), restrictions: s.Restrictions.At(svc.Name), last: t.ports[svc.Name],
	}
	return c.compile()
}

// addService replaces what the service compiled to last time, but for its part, whose chains it adds.
func (t *tableCompiler) addService(name service.Name, c *compiledService) {
	for _, chain := range c.wanted {
		t.addChain(chain.name, chain.sharedChain)
	}
	addLists(t, t.lists, c.sourceLists)
	addLists(t, t.rangeLists, c.rangesUsed)
	t.countElements(c.part, 1)
	t.setLocal(name, c.local)
	t.setPinged(name, c.pings)
	if c.ports != nil {
		t.ports[name] = c.ports
	} else {
		delete(t.ports, name)
	}
}

// countElements counts the part's elements for the chains that they lead to. A chain
// leaves the program with its last element.
func (t *tableCompiler) countElements(part *nft.Part, by int) {
	if part == nil {
		return
	}
	t.countInRange(part, by)
	absent := t.nodePort.refusalSet(NoLocalEndpoints)
	for _, e := range part.Elements {
		t.countOutside(e, by)
		t.countIdentity(e, by)
		if e.Set == absent {
			t.absent += by
		}
		chain := e.Verdict.Chain
		if chain == "" || fixed(chain) {
			continue
		}
		if t.countList(t.lists, chain, by) || t.countList(t.rangeLists, chain, by) {
			continue
		}
		if u := t.shared[chain]; u.chain.learn > 0 {
			t.learners[u.chain.access] += by
		}
		t.countUser(chain, by)
	}
}

// addChain adds a shared chain and what it refers to, unless the program has it.
func (t *tableCompiler) addChain(name string, chain sharedChain) {
	if t.shared[name] != nil {
		return
	}
	t.shared[name] = &chainUse{chain: chain}
	t.chains = t.chains.Set(name, chain.chain(&t.cfg, t.pods))
	for _, name := range chain.clientMaps() {
		if t.clientMaps[name]++; t.clientMaps[name] == 1 {
			t.sets = t.sets.Set(name, affinityMap(name))
		}
	}
	t.timeouts.count(chain.timeouts, 1)
	if next, ok := chain.next(); ok {
		t.addChain(next.name(), next)
		t.countUser(next.name(), 1)
	}
}

// countUser counts the elements and chains that lead to a shared chain. The chain
// leaves the program with the last of them.
func (t *tableCompiler) countUser(name string, by int) {
	u := t.shared[name]
	if u.users += by; u.users > 0 {
		return
	}
	delete(t.shared, name)
	t.chains = t.chains.Delete(name)
	for _, name := range u.chain.clientMaps() {
		if t.clientMaps[name]--; t.clientMaps[name] == 0 {
			delete(t.clientMaps, name)
			t.sets = t.sets.Delete(name)
		}
	}
	t.timeouts.count(u.chain.timeouts, -1)
	if next, ok := u.chain.next(); ok {
		t.countUser(next.name(), -1)
	}
}

// applyEdits applies the edits to the parts.
func (t *tableCompiler) applyEdits() {
	if len(t.edits) > 0 {
		t.parts = t.parts.Apply(treap.Edits(t.edits))
		t.edits = map[string]*nft.Part{} // to clear a large one would cost as much each time
	}
}

package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/parallel"
	"nftproxy/model/service"
	"nftproxy/model/share"
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
		t.settle()
		t.setReachable()
		if len(t.edits) > 0 {
			t.parts = t.parts.Apply(treap.Edits(t.edits))
			t.edits = map[string]*nft.Part{} // to clear a large one would cost as much each time
		}
		if b := t.baseNow(); node || ranges || b != t.base {
			t.setBase(b)
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
	moved := !share.Alike(s.Node, c.last.Node)
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
			t.countPart(old, -1)
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

// tableCompiler holds the table as last compiled, and who needs what in it.
type tableCompiler struct {
	cfg    Config
	family nft.Family
	// address, nodePort and byRanges are the ways to reach services.
	address, nodePort, byRanges *access
	sets                        treap.Map[string, *nft.Set]
	chains                      treap.Map[string, *nft.Chain]
	timeouts                    treap.Map[string, nft.Timeout]
	// parts has the parts of the last program. edits has the parts of no service that the
	// next program changes, nil for a part that goes. They go in all at once.
	parts treap.Map[string, *nft.Part]
	edits map[string]*nft.Part
	// node decides which endpoints are local, and pods tells pods from others.
	node *service.Node
	pods pods
	// ranges are the ServiceCIDRs.
	ranges treap.Map[string, netip.Prefix]
	needs  needs
	// base is what the base chains were built for last.
	base base
	// local holds the endpoints that are or may be on the node of each service that has any, and pings the addresses of
	// each service that answer echo requests.
	local map[service.Name][]portOnNode
	pings map[service.Name][]netip.Addr
	// ports has the last lists of services with many endpoints.
	ports map[service.Name][]portLists
}

func newTableCompiler(cfg Config, f nft.Family) *tableCompiler {
	t := &tableCompiler{
		cfg: cfg, family: f, address: byAddress(), nodePort: byNodePort(), byRanges: byRange(), sets: sets(&cfg),
		edits: map[string]*nft.Part{}, needs: needs{of: map[need]*use{}}, local: map[service.Name][]portOnNode{},
		pings: map[service.Name][]netip.Addr{}, ports: map[service.Name][]portLists{},
	}
	for _, chain := range fixedChains(&t.cfg) {
		t.chains = t.chains.Set(chain.Name, chain)
	}
	return t
}

func (t *tableCompiler) program() *nft.Table {
	return &nft.Table{Family: t.family, Name: t.cfg.Table, Sets: t.sets, Chains: t.chains, Timeouts: t.timeouts,
		Parts: t.parts}
}

// nodePart names the part with the node's own elements. No service has this name,
// since services have a slash in theirs.
const nodePart = "node"

// setNode compiles what depends on the node alone, but for the base chains.
func (t *tableCompiler) setNode(node *service.Node) {
	t.node = node
	if p := t.cfg.pods(t.family, node); !p.equal(t.pods) {
		t.pods = p
		for _, u := range t.needs.of {
			if u.there && u.shared != nil {
				for _, c := range u.make(&t.cfg, p).chains {
					t.chains = t.chains.Set(c.Name, c)
				}
			}
		}
	}
	addrs, _ := t.cfg.NodePortAddresses.On(node, t.family)
	elements := make([]nft.Element, len(addrs))
	for i, a := range addrs {
		elements[i] = nft.Element{Set: nodePortAddresses, Key: addrValue(a)}
	}
	t.editElements(nodePart, elements)
}

// setRanges sets the ServiceCIDRs. It counts again what depends on them in t.parts only; addService counts new parts.
func (t *tableCompiler) setRanges(ranges treap.Map[string, netip.Prefix]) {
	for _, part := range t.parts.All() {
		t.countInRanges(part, -1)
	}
	t.ranges = ranges
	for _, part := range t.parts.All() {
		t.countInRanges(part, 1)
	}
}

// compiledService is what a service compiles to; the zero value is nothing.
type compiledService struct {
	part *nft.Part
	// local has the endpoints on the node, of each port that has any.
	local []portOnNode
	// wanted has the chains that the elements lead to and the table did not have, some of them several times.
	wanted []wanted
	// ports has the lists to keep for the next compilation; nil for none.
	ports []portLists
	// pings has the addresses that answer echo requests.
	pings []netip.Addr
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

// addService replaces what the service compiled to last time, but for its part, whose needs it adds.
func (t *tableCompiler) addService(name service.Name, c *compiledService) {
	for _, w := range c.wanted {
		t.needs.define(w)
	}
	t.countPart(c.part, 1)
	t.setLocal(name, c.local)
	t.setPings(name, c.pings)
	if c.ports != nil {
		t.ports[name] = c.ports
	} else {
		delete(t.ports, name)
	}
}

// countPart counts what a part needs.
func (t *tableCompiler) countPart(part *nft.Part, by int) {
	if part == nil {
		return
	}
	t.countInRanges(part, by)
	refusal := t.nodePort.refusalSet(NoLocalEndpoints)
	for i := range part.Elements {
		e := &part.Elements[i]
		if e.Verdict.Chain != "" {
			t.needs.count(need{needChain, e.Verdict.Chain}, by)
		}
		if e.Set == refusal {
			t.needs.count(need{kind: needRefusal}, by)
		}
		for _, a := range []*access{t.address, t.nodePort} {
			if a.isIdentity(e, t.family) {
				t.needs.count(need{needIdentity, a.verdicts}, by)
			}
		}
	}
}

// countInRanges counts what a part needs that depends on the ServiceCIDRs.
func (t *tableCompiler) countInRanges(part *nft.Part, by int) {
	for i := range part.Pools {
		for _, cidr := range t.ranges.All() {
			if t.family.Has(cidr.Addr()) && hasTargetIn(part.Pools[i].Targets, cidr) {
				t.needs.count(need{kind: needTranslated}, by)
			}
		}
	}
	for _, e := range elementsOf(part, clusterIPs) {
		if !t.inRanges(addrOf(e.Key)) {
			t.needs.count(need{kind: needUnlisted}, by)
		}
	}
}

// inRanges says whether the address is in a ServiceCIDR.
func (t *tableCompiler) inRanges(a netip.Addr) bool {
	for _, cidr := range t.ranges.All() {
		if cidr.Contains(a) {
			return true
		}
	}
	return false
}

// edit gives a part of no service to the next program, nil to have none. What stays the same keeps its pointer.
func (t *tableCompiler) edit(name string, part *nft.Part) {
	there := t.parts.At(name)
	if part == nil && there == nil || part != nil && there != nil && slices.Equal(part.Elements, there.Elements) {
		delete(t.edits, name)
		return
	}
	t.edits[name] = part
}

// editElements is edit for a part that is there while it has elements.
func (t *tableCompiler) editElements(name string, elements []nft.Element) {
	if len(elements) == 0 {
		t.edit(name, nil)
		return
	}
	t.edit(name, nft.NewPart(elements, nil))
}

package ruleset_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// lookups is the order in which a packet may ask sets and maps. The kernel changes all
// of them at one moment. Lookups before that moment see the old elements, lookups after
// it the new ones.
func lookups() [][]string {
	return [][]string{
		{"services"}, {"ping-addresses"}, {"port-ranges"}, {rangeLists}, {"range-services"}, {"cluster-ips"},
		{"reachable-networks"}, {"node-port-addresses"}, {"node-ports"},
		{sourceLists}, {"load-balancer-sources"}, {"services-restricted", "node-ports-restricted"},
		{"services-cluster", "services-local", "node-ports-cluster", "node-ports-local", "range-services-cluster",
			"range-services-local"},
		{"endpoints", "local-endpoints", "node-port-endpoints", "node-port-local-endpoints", "range-endpoints",
			"range-local-endpoints"},
		{againClusterIPs},
		{"affinity-services", "node-port-affinity-services"},
		{"affinity-endpoints", "local-affinity-endpoints", "node-port-affinity-endpoints",
			"node-port-local-affinity-endpoints"},
		// What counts refusals decides nothing, so it may be asked at any time.
		slices.AppendSeq([]string{"hairpin"}, maps.Keys(ruleset.RefusalSets())),
	}
}

// sourceLists stands for the sets of source ranges. The contents of such a set never
// change, but the set comes and goes.
const sourceLists = "source-ranges-"

// rangeLists stands for the sets of port ranges, in the same way.
const rangeLists = "port-ranges-"

// againClusterIPs stands for cluster-ips when postrouting looks into it.
const againClusterIPs = "cluster-ips again"

// TestInTheMiddle: a transaction comes between any two lookups of a packet. The packet
// must go to an endpoint that its address had before or has after the transaction. It may
// be dropped where policy Local or source ranges apply, or where the service had or has
// no endpoint. Otherwise index 0 must take it. It must not leave the node untranslated,
// unless the ServiceCIDR that kept it goes. The maps of clients must not remember an
// endpoint that the new program would sweep.
func TestInTheMiddle(t *testing.T) {
	seen := map[string]int{}
	seeds(t, 150, func(t *testing.T, rng *rand.Rand) {
		before := newTrial(t, rng, nil)
		for range 40 {
			before.connect(t)
		}
		node := *before.node
		if rng.IntN(4) == 0 {
			// These facts decide which sources are admitted, and which clients are pods.
			// The transaction does not change which addresses the routing table calls
			// local.
			node.Addresses = append(slices.Clip(node.Addresses), netip.MustParseAddr("10.0.0.2"),
				netip.MustParseAddr("fd00:1::2"))
			node.PodCIDRs = gen.PodCIDRs(rng)
		}
		after := &oracle{&node, changed(rng, before.services, &node), before.cfg, nil, before.nodePortAddresses, nil,
			netip.AddrPort{}, nil}
		fresh := ruleset.Compile(after.cfg, build(node, after.services))
		m := middle{before, after, fresh.Model(), ruleset.AffinityMaps(fresh), seen}
		for cut := range len(lookups()) + 1 {
			for _, leaving := range []bool{false, true} {
				m.check(t, cut, leaving)
			}
		}
	})
	for what, n := range map[string]int{
		"endpoint was": 5000, "endpoint is": 1000, "endpoint was and is": 5000, "remembered": 2000,
		"dropped": 2000, "dropped in the middle": 2000,
		"dropped, an endpoint is a cluster IP": 100, "dropped, a cluster IP comes or goes": 100, "refused": 2000,
		"untouched": 2000,
	} {
		if seen[what] < n && !testing.Short() {
			t.Errorf("%s: %d times, want %d: the cases are too narrow", what, seen[what], n)
		}
	}
}

// changed returns the services: some as they were, some changed, and some new.
func changed(rng *rand.Rand, services []*service.Service, node *service.Node) []*service.Service {
	next := randomServices(rng, node)
	for _, s := range services {
		i := slices.IndexFunc(next, func(n *service.Service) bool { return n.Name == s.Name })
		if i >= 0 && rng.IntN(3) > 0 {
			next[i] = gen.Mutated(rng, s)
		}
	}
	return next
}

// middle is a kernel between two programs.
type middle struct {
	before *trial
	after  *oracle
	fresh  *nft.Model
	// maps are the maps of clients of the new program.
	maps []ruleset.AffinityMap
	seen map[string]int
}

// check sends packets at one moment of the transaction. The old program answers the first
// lookups, up to cut. The rules are the old ones, but with leaving the rules of
// postrouting and input are already the new ones.
func (m *middle) check(t *testing.T, cut int, leaving bool) {
	kernel := m.kernel(t, cut, leaving)
	local := func(a netip.Addr) bool { return m.before.local(a) }
	for range 30 {
		p := gen.Packet(m.before.rng, m.before.node, m.before.services)
		if m.before.rng.IntN(2) == 0 {
			p = m.before.clients[m.before.rng.IntN(len(m.before.clients))]
		}
		for _, r := range strict.Outcomes(kernel, p, local) {
			m.wantFair(t, cut, p, r)
		}
		r := kernel.Trace(p, nft.Host{Local: local, Random: m.before.rng.Uint32N})
		if cut < 16 { // Only the new endpoints may be remembered.
			m.wantKept(t, p, r)
		}
	}
}

// kernel returns a model with old and new sets, and with rules of both programs: the old
// rules, and those of chains that only the new program has. So it looks as if an earlier
// transaction had added them.
func (m *middle) kernel(t *testing.T, cut int, leaving bool) *nft.Model {
	kernel := nft.NewModel()
	for _, f := range nft.Families() {
		id := nft.TableID{Family: f, Name: m.before.cfg.Table}
		old, fresh := m.before.kernel.Table(id), m.fresh.Table(id)
		c := nft.NewContents(id)
		again(old)
		again(fresh)
		sets := maps.Clone(old.Sets)
		maps.Copy(sets, fresh.Sets)
		for name, s := range sets {
			is := func(n string) bool {
				return n == name || (n == sourceLists || n == rangeLists) && strings.HasPrefix(name, n)
			}
			at := slices.IndexFunc(lookups(), func(names []string) bool { return slices.ContainsFunc(names, is) })
			from := fresh
			switch {
			case at < 0 && !s.Set.Dynamic:
				t.Fatalf("when is %s asked?", name)
			case at < cut && !s.Set.Dynamic:
				from = old
			}
			c.Sets[name] = from.Sets[name]
			if c.Sets[name] == nil { // The set comes, or it goes.
				c.Sets[name] = &nft.SetContents{Set: s.Set}
			}
		}
		for name, s := range old.Sets {
			if s.Set.Dynamic { // A change keeps the remembered clients.
				c.Sets[name] = s
			}
		}
		maps.Copy(c.Timeouts, fresh.Timeouts)
		maps.Copy(c.Timeouts, old.Timeouts)
		for name, chain := range fresh.Chains {
			c.Chains[name] = chain
		}
		for name, chain := range old.Chains {
			if !leaving || name != "postrouting" && name != "input" {
				c.Chains[name] = chain
			}
		}
		kernel.Put(c)
	}
	return kernel
}

// isClusterIP says whether the address is a cluster IP, or was one.
func (m *middle) isClusterIP(a netip.AddrPort) bool {
	return m.before.isClusterIP(a.Addr()) || m.after.isClusterIP(a.Addr())
}

// again gives postrouting a copy of the set of cluster IPs.
func again(c *nft.Contents) {
	c.Sets[againClusterIPs] = c.Sets["cluster-ips"]
	next := *c.Chains["postrouting"]
	next.Rules = slices.Clone(next.Rules)
	for i, r := range next.Rules {
		if s, ok := r[0].(nft.InSet); ok && s.Set == "cluster-ips" {
			s.Set = againClusterIPs
			next.Rules[i] = append(nft.Rule{s}, r[1:]...)
		}
	}
	c.Chains["postrouting"] = &next
}

// wantFair fails if the packet's outcome is right neither before nor after the
// transaction, nor excused in between.
func (m *middle) wantFair(t *testing.T, cut int, p nft.Packet, r nft.Result) {
	t.Helper()
	had, was := m.before.expected(p)
	has, is := m.after.expected(p)
	fates := append(was.fates, is.fates...)
	switch {
	case r.Fate == nft.DNATed && slices.Contains(had, r.To) && slices.Contains(has, r.To):
		m.seen["endpoint was and is"]++
	case r.Fate == nft.DNATed && slices.Contains(had, r.To):
		m.seen["endpoint was"]++
	case r.Fate == nft.DNATed && slices.Contains(has, r.To):
		m.seen["endpoint is"]++
	case r.Fate == nft.Untouched && slices.Contains(fates, nft.Untouched):
		m.seen["untouched"]++
	case r.Fate == nft.Untouched && m.before.inServiceCIDR(p.Dst.Addr()) && !m.after.inServiceCIDR(p.Dst.Addr()):
		m.seen["untouched, its ServiceCIDR goes"]++
	case r.Fate == nft.Dropped && slices.Contains(fates, nft.Dropped):
		m.seen["dropped"]++
	case r.Fate == nft.Dropped && slices.ContainsFunc(slices.Concat(had, has), m.isClusterIP):
		m.seen["dropped, an endpoint is a cluster IP"]++
	case r.Fate == nft.Dropped && m.before.isClusterIP(p.Dst.Addr()) != m.after.isClusterIP(p.Dst.Addr()):
		m.seen["dropped, a cluster IP comes or goes"]++
	case r.Fate != nft.Untouched && m.before.hasHosts(p.Dst.Addr()) && !m.after.inServiceCIDR(p.Dst.Addr()):
		m.seen["spared no more, the ServiceCIDR of its network goes"]++
	case r.Fate == nft.Dropped && (was.delicate || is.delicate || len(had) == 0 || len(has) == 0):
		m.seen["dropped in the middle"]++
	case (r.Fate == nft.Reset || r.Fate == nft.Unreachable) && (slices.Contains(fates, r.Fate) || len(had) == 0 ||
		len(has) == 0):
		m.seen["refused"]++
	case (r.Fate == nft.Reset || r.Fate == nft.Unreachable || r.Fate == nft.Untouched || r.Fate == nft.Dropped) &&
		m.handsOver(p):
		m.seen["between ranges and a port of its own"]++
	default:
		t.Fatalf("lookup %d sees the change: %s: %s\nwas %v %+v\n is %v %+v", cut, p, r, had, was, has, is)
	}
}

// handsOver says that the transaction takes the packet's port from ranges to a port of its own, or back. The first
// lookup may find no port yet, and the second no ranges any more (docs/internals/options.md).
func (m *middle) handsOver(p nft.Packet) bool {
	was, is := m.before.target(p), m.after.target(p)
	return was != nil && is != nil && was.port.IsRange() != is.port.IsRange()
}

// expectation is the set of allowed outcomes of a packet.
type expectation struct {
	fates []nft.Fate
	// delicate says that policy Local or source ranges may drop the packet.
	delicate bool
}

// expected returns the allowed outcomes of a packet, and the endpoints of its frontend.
func (o *oracle) expected(p nft.Packet) ([]netip.AddrPort, expectation) {
	var v expectation
	for _, r := range o.outcomes(p) {
		v.fates = append(v.fates, r.Fate)
	}
	t := o.target(p)
	if by, answers := o.answersPing(p); answers {
		return []netip.AddrPort{netip.AddrPortFrom(by, p.Dst.Port())}, v
	}
	if t == nil {
		return nil, v
	}
	v.delicate = t.s.InternalPolicy == service.Local || t.s.ExternalPolicy == service.Local || o.restricting(t) != nil ||
		o.direct(t) != nil
	lists := o.lists(t)
	return append(lists[all], lists[own]...), v
}

// wantKept fails if a sweep would remove a client that the packet left in a map.
func (m *middle) wantKept(t *testing.T, p nft.Packet, r nft.Result) {
	t.Helper()
	for _, l := range r.Learned {
		m.seen["remembered"]++
		for _, a := range m.maps {
			if a.Table == l.Table && a.Set.Name == l.Element.Set && !a.Keep(l.Element.Key, l.Element.Data) {
				t.Fatalf("%s: %s leaves %s : %s in %s", p, r, a.Set.Key.Format(l.Table.Family, l.Element.Key),
					a.Set.Data.Format(l.Table.Family, l.Element.Data), l.Element.Set)
			}
		}
	}
}

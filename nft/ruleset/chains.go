package ruleset

import (
	"net/netip"
	"slices"
	"strconv"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// The sets and maps of each table.
const (
	// services leads address . protocol . port to a shared chain.
	services = "services"
	// endpoints holds all endpoints of all addresses, by index.
	endpoints = "endpoints"
	// An address with external policy Local has two lists of endpoints. By
	// servicesCluster pods and the node get the list in endpoints. By servicesLocal all
	// other clients get the list in localEndpoints.
	servicesCluster = "services-cluster"
	servicesLocal   = "services-local"
	localEndpoints  = "local-endpoints"
	// clusterIPs holds the known cluster IPs. Their other ports are refused.
	clusterIPs = "cluster-ips"
	// Node ports have the same sets. Their keys have no address: a node port may be
	// served on all addresses of the node.
	nodePorts              = "node-ports"
	nodePortEndpoints      = "node-port-endpoints"
	nodePortsCluster       = "node-ports-cluster"
	nodePortsLocal         = "node-ports-local"
	nodePortLocalEndpoints = "node-port-local-endpoints"
	// Services with session affinity have more. affinityServices leads connections to
	// the chain that remembers them in the map of the Service port (affinityMap). That
	// map says where the client's next connection goes, to whichever address it comes.
	// affinityEndpoints holds the endpoints that may be remembered for an address: a
	// connection that is under way while an endpoint goes cannot bring it back.
	// localAffinityEndpoints holds the same for lists of endpoints on this node.
	affinityEndpoints              = "affinity-endpoints"
	affinityServices               = "affinity-services"
	localAffinityEndpoints         = "local-affinity-endpoints"
	nodePortAffinityEndpoints      = "node-port-affinity-endpoints"
	nodePortAffinityServices       = "node-port-affinity-services"
	nodePortLocalAffinityEndpoints = "node-port-local-affinity-endpoints"
	// The rules note in recentServices and recentNodePorts which addresses and ports had
	// a new connection lately (RecentFor). Both are sets that only rules fill.
	recentServices  = "recent-services"
	recentNodePorts = "recent-node-ports"
	// nodePortAddresses holds the addresses that serve node ports.
	nodePortAddresses = "node-port-addresses"
	// hairpin holds each endpoint that is or may be on the node twice, as source .
	// destination. A connection that comes back to its own pod must be masqueraded, or the
	// pod would answer itself directly.
	hairpin = "hairpin"
)

// The chains that are always there, besides those of refusalChains.
const (
	prerouting  = "prerouting"
	output      = "output"
	postrouting = "postrouting"
	input       = "input"
	dispatch    = "dispatch"
	// externalLocal and nodePortExternalLocal choose one of the two lists of
	// external policy Local.
	externalLocal         = "external-local"
	nodePortExternalLocal = "node-port-external-local"
)

// access is a way to reach services: by address, by node port, or by ranges of ports of an address. They work
// alike. Each has maps and chains of its own; access has their names.
type access struct {
	// key is the key of the maps. original is the same key as it was in the
	// connection's first packet, before translation.
	key, original nft.Fields
	// verdicts is the map from keys to chains, endpoints the map of endpoints.
	verdicts, endpoints string
	// externalChain serves external policy Local. It asks clusterVerdicts, whose
	// endpoints are in endpoints, or localVerdicts, whose endpoints are in
	// localEndpoints.
	externalChain, clusterVerdicts, localVerdicts, localEndpoints string
	// learners leads connections to the chain that remembers them. The sets
	// clusterRememberable and localRememberable hold the endpoints of each list that
	// may be remembered.
	learners, clusterRememberable, localRememberable string
	// recent is the set of keys that had a new connection lately.
	recent string
	// restricted takes the place of verdicts for keys that only some sources may reach. The chain of
	// the same name asks it.
	restricted string
	// chainPrefix begins the names of the shared chains.
	chainPrefix string
	// keepsPort says that endpoints have no port: the one that the packet asks for stays.
	keepsPort bool
}

func byAddress() *access {
	return &access{
		key: addressKey(), original: nft.Fields{nft.OrigDaddr, nft.L4Proto, nft.OrigDport},
		verdicts: services, endpoints: endpoints,
		externalChain: externalLocal, clusterVerdicts: servicesCluster, localVerdicts: servicesLocal,
		localEndpoints: localEndpoints,
		learners:       affinityServices, clusterRememberable: affinityEndpoints, localRememberable: localAffinityEndpoints,
		recent:     recentServices,
		restricted: servicesRestricted,
	}
}

// nodePortPrefix is the prefix of the chains for node ports.
const nodePortPrefix = "node-port-"

func byNodePort() *access {
	return &access{
		key: nodePortKey(), original: nft.Fields{nft.L4Proto, nft.OrigDport},
		verdicts: nodePorts, endpoints: nodePortEndpoints,
		externalChain: nodePortExternalLocal, clusterVerdicts: nodePortsCluster, localVerdicts: nodePortsLocal,
		localEndpoints: nodePortLocalEndpoints,
		learners:       nodePortAffinityServices, clusterRememberable: nodePortAffinityEndpoints,
		localRememberable: nodePortLocalAffinityEndpoints,
		recent:            recentNodePorts,
		restricted:        nodePortsRestricted,
		chainPrefix:       nodePortPrefix,
	}
}

// allAccess has the ways that every table has. Ranges are in few.
func allAccess() [2]*access { return [2]*access{byAddress(), byNodePort()} }

// accessWithRanges has the ways that a table may have.
func accessWithRanges() [3]*access { return [3]*access{byAddress(), byNodePort(), byRange()} }

// rememberable names the set of the list's endpoints that may be remembered.
func (a *access) rememberable(list clientList) string {
	if list == localList {
		return a.localRememberable
	}
	return a.clusterRememberable
}

// externalLocalChain serves external policy Local. Pods and the node itself may use every endpoint. Other clients may
// use the endpoints on this node. Without one the chain drops their packets, so that a load balancer tries another
// node.
//
// At addresses every pod counts: a pod of another node is translated there, before its packet gets here. At node ports
// it is not, since that node does not have the address: only pods that are known to be on this node count. Any other
// pod gets an endpoint of another node where this one has none, and is masqueraded: that endpoint would answer it
// directly, untranslated. Those that are another node's for certain do not come here (preroutingChain).
func (a *access) externalLocalChain(cfg *Config, p pods) *nft.Chain {
	cluster := nft.VMap{Key: a.key, Map: a.clusterVerdicts}
	pods, doubtful := p.all(), []nft.Statement(nil)
	if a.externalChain == nodePortExternalLocal {
		pods, doubtful = p.ofNode(), p.ofOtherNodes()
	}
	var rules []nft.Rule
	for _, pods := range pods {
		rules = append(rules, ForPods.rule(pods, cluster))
	}
	rules = append(rules,
		ForNode.rule(nft.MatchLocal{Field: nft.Saddr}, cfg.toMasquerade(), cluster),
		ForOutsiders.rule(nft.VMap{Key: a.key, Map: a.localVerdicts}))
	for _, pods := range doubtful {
		rules = append(rules, ForOtherPods.rule(pods, cfg.toMasquerade(), cluster))
	}
	return &nft.Chain{Name: a.externalChain, Rules: append(rules,
		DropNotLocal.rule(gotoChain(a.refusalChain(NoLocalEndpoints))))}
}

const (
	// PriorityDstnat is that of the chains that translate Services, in prerouting and output: other
	// programs expect a service proxy there (docs/internals/data-path.md, The moment of translation).
	PriorityDstnat int32 = -100
	// priorityLeaving comes before the source NAT of others. That would end nat
	// evaluation: the client's endpoint would not be remembered, and a mark of ours
	// would stay on the packet. Priorities order only nat chains among themselves. The
	// kernel wants a priority above -200.
	priorityLeaving int32 = -190
)

// The keys and data of the sets and maps.
func addressKey() nft.Fields  { return nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport} }
func sourceKey() nft.Fields   { return join(addressKey(), nft.Saddr) }
func nodePortKey() nft.Fields { return nft.Fields{nft.L4Proto, nft.Dport} }
func daddr() nft.Fields       { return nft.Fields{nft.Daddr} }
func target() nft.Fields      { return nft.Fields{nft.Daddr, nft.Dport} }
func pair() nft.Fields        { return nft.Fields{nft.Saddr, nft.Daddr} }

// claimValue is the key that a claim with a protocol has in the maps: an addressKey, the
// nodePortKey of a node port, or the rangeKey of ranges.
func claimValue(c service.Claim) nft.Value {
	var room [24]byte
	key := room[:0]
	if !c.Addr.IsUnspecified() {
		key = nft.AppendAddr(key, c.Addr)
	}
	key = nft.AppendProto(key, uint8(c.Protocol))
	if c.IsRange() {
		return nft.Value(key)
	}
	return nft.Value(nft.AppendPort(key, c.Port))
}

// addrValue is an address as a key.
func addrValue(a netip.Addr) nft.Value {
	var room [16]byte
	return nft.Value(nft.AppendAddr(room[:0], a))
}

// client is the key of the maps that remember clients.
func client() nft.Fields { return nft.Fields{nft.Saddr} }

// join is a concatenation with more fields.
func join(fields nft.Fields, more ...nft.Field) nft.Fields {
	return append(slices.Clip(fields), more...)
}

const (
	// minSize is how many elements a set has space for from the start. Its buckets take
	// 32 kB.
	minSize = 3072
	// minSizeBehind is the same for verdict maps that other verdicts lead to. Some
	// kernels do not remember which chains they have validated: they walk through all
	// buckets of such a map for every element that leads there.
	minSizeBehind = 48
)

// sets declares the table's sets and maps.
func sets(cfg *Config) treap.Map[string, *nft.Set] {
	list := []*nft.Set{
		{Name: clusterIPs, Key: daddr(), MinSize: minSize},
		{Name: hairpin, Key: pair(), MinSize: minSize},
		{Name: loadBalancerSources, Key: sourceKey(), MinSize: minSizeBehind},
		{Name: nodePortAddresses, Key: daddr(), MinSize: minSizeBehind},
		byAddress().restrictedSet(),
	}
	list = append(list, refusalSets()...)
	if cfg.AnswerPing {
		list = append(list, &nft.Set{Name: pingAddresses, Key: daddr(), MinSize: minSize})
	}
	for _, a := range allAccess() {
		list = append(list,
			&nft.Set{Name: a.verdicts, Key: a.key, Verdicts: true, MinSize: minSize},
			&nft.Set{Name: a.clusterVerdicts, Key: a.key, Verdicts: true, MinSize: minSizeBehind},
			&nft.Set{Name: a.localVerdicts, Key: a.key, Verdicts: true, MinSize: minSizeBehind},
			&nft.Set{Name: a.learners, Key: a.key, Verdicts: true, MinSize: minSize},
			a.recentSet(),
		)
		for _, name := range []string{a.endpoints, a.localEndpoints} {
			list = append(list, &nft.Set{Name: name, Key: join(a.key, nft.Index), Data: target(), MinSize: minSize})
		}
		for _, name := range []string{a.clusterRememberable, a.localRememberable} {
			list = append(list, &nft.Set{Name: name, Key: join(a.key, target()...), MinSize: minSize})
		}
	}
	cfg.count(list)
	return nft.SetsByName(list...)
}

// count gives the sets the counters that the configuration wants.
func (c *Config) count(list []*nft.Set) {
	switch {
	case c.Uncounted:
		for _, s := range list {
			s.Counter = false
		}
	case c.Counters:
		names := counted()
		for _, s := range list {
			s.Counter = s.Counter || slices.Contains(names, s.Name)
		}
	}
}

// fixedChains are the chains that are the same in every program. The base chains
// look for the address themselves: a jump to a chain that does so would make the
// set-up of each connection 0.9 % slower.
func fixedChains(cfg *Config) []*nft.Chain {
	return append(refusalChains(cfg), byAddress().restrictedChain(), &nft.Chain{Name: layoutPrefix + strconv.Itoa(Layout)})
}

// preroutingChain sees what comes in. Where a node port has policy Local and no endpoint on this node, rules refuse
// pods of other nodes: an endpoint of another node would answer them directly, untranslated.
func preroutingChain(cfg *Config, f ip.Family, node *service.Node, p pods, b *base) *nft.Chain {
	rules := arriving()
	if b.refuses && b.ranged { // a cluster IP may be one of the node's addresses
		rules = slices.Insert(rules, len(rules)-1, findRanges())
	}
	if b.refuses {
		rules = slices.Insert(rules, len(rules)-1, refuseOtherPods(cfg, f, node, p)...)
	}
	return &nft.Chain{Name: prerouting, Hook: &nft.Hook{Name: nft.Prerouting, Priority: PriorityDstnat}, Rules: rules}
}

// refuseOtherPods returns the rules that refuse pods of other nodes, whose packets come in by the interface that has
// the address they ask. (The kernel knows no such match where packets of the node pass, so the rules cannot stand in
// externalChain. They have the set last, whose elements count.) Addresses at which pods of the node arrive like that
// are left out.
func refuseOtherPods(cfg *Config, f ip.Family, node *service.Node, p pods) []nft.Rule {
	serving, all := cfg.NodePortAddresses.On(node, f)
	if all {
		serving = node.HostAddresses
	}
	var rest []nft.Statement
	left := 0
	for _, a := range serving {
		if f.Has(a) && p.arriveAt(a, node) {
			rest = append(rest, nft.MatchAddr{Field: nft.Daddr, Not: true, Prefix: netip.PrefixFrom(a, a.BitLen())})
			left++
		}
	}
	if !all && left == len(serving) {
		return nil
	}
	var rules []nft.Rule
	for _, other := range p.ofOtherNodes() {
		refusal := []nft.Statement{other}
		for _, here := range p.here {
			refusal = append(refusal, nft.MatchAddr{Field: nft.Saddr, Not: true, Prefix: here})
		}
		refusal = append(append(refusal, nft.MatchLocal{Field: nft.Daddr, Input: true}), rest...)
		if !all {
			refusal = append(refusal, nft.InSet{Key: daddr(), Set: nodePortAddresses})
		}
		a := byNodePort()
		refusal = append(refusal, nft.InSet{Key: a.key, Set: a.refusalSet(NoLocalEndpoints)},
			gotoChain(a.refusalChain(NoEndpoints)))
		rules = append(rules, RefuseOtherPods.rule(refusal...))
	}
	return rules
}

// arriving are the rules that look for a frontend.
func arriving() []nft.Rule {
	return []nft.Rule{FindFrontend.rule(nft.VMap{Key: addressKey(), Map: services}), FindOthers.rule(jump(dispatch))}
}

// outputChain sees what the node itself sends. Where the loopback address serves node ports, it has a rule for
// connections there from another address of the node: daemon/listen makes them for its clients on loopback. (The
// kernel routes nothing from a loopback address to another host without route_localnet, and for ::1 not at all.) No
// packet from outside meets it.
func outputChain(cfg *Config, f ip.Family, node *service.Node) *nft.Chain {
	rules := arriving()
	if a, serves := cfg.NodePortAddresses.Loopback(node, f); serves {
		rules = append(rules, FindOnLoopback.rule(nft.MatchAddr{Field: nft.Daddr, Prefix: netip.PrefixFrom(a, a.BitLen())},
			nft.MatchAddr{Field: nft.Saddr, Not: true, Prefix: loopback(f)}, nft.VMap{Key: nodePortKey(), Map: nodePorts}))
	}
	return &nft.Chain{Name: output, Hook: &nft.Hook{Name: nft.Output, Priority: PriorityDstnat}, Rules: rules}
}

// base says which rules the base chains have, and which chains these lead to. Each rule there makes the set-up of every
// connection 0.6 % slower or more, so the chains have no rule that no service needs.
type base struct {
	// refuses: some node port has policy Local and no endpoint on this node.
	refuses bool
	// ranged: some service has ranges of ports.
	ranged bool
	// learning has the access ways by which clients reach services with session
	// affinity. (nft 1.0.6 prints the rules that remember clients, but cannot read
	// them back.)
	learning [2]learner
	// unlisted says that there is a cluster IP which is in no ServiceCIDR.
	unlisted bool
	// spared says which packets to service addresses are not dropped.
	spared spared
	// source is the node's address that masqueraded connections get; if it is not valid, the kernel chooses.
	source netip.Addr
	// ping is the node's address that answers echo requests to services; if it is not valid, none does.
	ping netip.Addr
}

// baseNow is what the table's node and needs ask for.
func (t *tableCompiler) baseNow() base {
	ranged, translated := t.needs.has(need{kind: needRanges}), t.needs.has(need{kind: needTranslated})
	b := base{refuses: t.needs.has(need{kind: needRefusal}), ranged: ranged,
		unlisted: t.needs.has(need{kind: needUnlisted}),
		spared:   spared{networks: t.sets.At(reachable) != nil, translated: translated, ranged: ranged && translated}}
	for i, a := range []*access{t.address, t.nodePort} {
		if t.needs.has(need{needLearning, a.verdicts}) {
			b.learning[i] = learner{a, t.needs.has(need{needIdentity, a.verdicts})}
		}
	}
	if t.cfg.MasqueradeToNode {
		b.source = t.node.OwnAddress(t.family)
	}
	if t.cfg.AnswerPing {
		b.ping = t.node.OwnAddress(t.family)
	}
	return b
}

// setBase builds the base chains, and those that only they lead to.
func (t *tableCompiler) setBase(b base) {
	t.base = b
	ranges := t.rangesOfFamily()
	chains := append(leavingChains(&t.cfg, t.family, ranges, &b),
		preroutingChain(&t.cfg, t.family, t.node, t.pods, &b), outputChain(&t.cfg, t.family, t.node),
		dispatchChain(&t.cfg, t.family, t.node, &b))
	for _, a := range allAccess() {
		chains = append(chains, a.externalLocalChain(&t.cfg, t.pods))
	}
	for check := range checks() {
		t.chains = t.chains.Delete(check)
		if b.spared.at(check) != (spared{}) {
			chains = append(chains, b.spared.chain(check, ranges))
		}
	}
	t.chains = t.chains.Delete(string(TooManyPings))
	if b.ping.IsValid() {
		chains = append(chains, pingChain(&t.cfg, &b))
	}
	for _, chain := range chains {
		t.chains = t.chains.Set(chain.Name, chain)
	}
}

// leavingChains are the chains that see connections after translation. postrouting
// masquerades. input sees connections to endpoints on the node itself, which never
// get to postrouting: it has no source to hide, but perhaps a mark to clear. Both remember
// the clients that came by one of the learning access ways. They do so first, since
// masquerade ends the evaluation.
//
// postrouting also drops what would leave for an address of services that no service
// has. It is the first hook where every translation is over, ours and that of others:
// the kernel asks nat chains one after the other until one has translated, so chains
// of another service proxy may come behind ours. A nat chain of postrouting can drop
// but not refuse.
func leavingChains(cfg *Config, f nft.Family, ranges []netip.Prefix, b *base) []*nft.Chain {
	rules := learningRules(b.learning)
	unserved := rangeRules(ranges, b.spared)
	if b.unlisted {
		unserved = append(unserved, DropUntranslated.rule(toClusterIP(checkUntranslated, b.spared)...))
	}
	return []*nft.Chain{
		{
			Name:  postrouting,
			Hook:  &nft.Hook{Name: nft.Postrouting, Priority: priorityLeaving},
			Rules: slices.Concat(unserved, rules, cfg.masqueradeRules(f, b.source)),
		},
		{
			Name:  input,
			Hook:  &nft.Hook{Name: nft.Input, Priority: priorityLeaving},
			Rules: append(rules, cfg.arrivedRules()...),
		},
	}
}

// dispatchChain takes new connections that go to no service's address and port. It has echo requests answered,
// looks for ranges of ports if some Service has any, refuses other ports of cluster IPs and looks up node ports. It
// leaves other addresses of ServiceCIDRs alone: a Service of another proxy may have them.
func dispatchChain(cfg *Config, f nft.Family, node *service.Node, b *base) *nft.Chain {
	var rules []nft.Rule
	if b.ping.IsValid() {
		rules = append(rules, findPing())
	}
	if b.ranged {
		rules = append(rules, findRanges())
	}
	rules = append(rules, RefuseUnknownPort.rule(toClusterIP(checkUnknownPort, b.spared)...))
	lookup := nft.VMap{Key: nodePortKey(), Map: nodePorts}
	if _, all := cfg.NodePortAddresses.On(node, f); all {
		rules = append(rules, FindNodePort.rule(nft.MatchLocal{Field: nft.Daddr}, nft.MatchAddr{Field: nft.Daddr, Not: true,
			Prefix: loopback(f)}, lookup))
	} else {
		rules = append(rules, FindNodePort.rule(nft.InSet{Key: daddr(), Set: nodePortAddresses}, lookup))
	}
	return &nft.Chain{Name: dispatch, Rules: rules}
}

func loopback(f nft.Family) netip.Prefix {
	if f == nft.IPv6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

func jump(chain string) nft.Verdict { return nft.Verdict{Code: nft.Jump, Chain: chain} }

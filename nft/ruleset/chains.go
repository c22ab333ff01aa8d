package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"nftproxy/internal/service"
	"nftproxy/internal/treap"
	"nftproxy/nft"
)

// The sets and maps of each table.
const (
	// services sends address . protocol . port to a shared chain.
	services = "services"
	// endpoints holds all endpoints of all addresses, by index.
	endpoints = "endpoints"
	// An address with external policy Local has two lists: servicesCluster
	// sends pods and the node to the one in endpoints, servicesLocal everybody
	// else to the one in localEndpoints.
	servicesCluster = "services-cluster"
	servicesLocal   = "services-local"
	localEndpoints  = "local-endpoints"
	// clusterIPs are the known cluster IPs, whose other ports are refused.
	clusterIPs = "cluster-ips"
	// The same for node ports, which have no address: with all addresses
	// accepted they cannot be keyed by one.
	nodePorts              = "node-ports"
	nodePortEndpoints      = "node-port-endpoints"
	nodePortsCluster       = "node-ports-cluster"
	nodePortsLocal         = "node-ports-local"
	nodePortLocalEndpoints = "node-port-local-endpoints"
	// Services with session affinity. affinityServices sends connections to the
	// chain that remembers them in affinity, which then says where a client's
	// next goes; affinityEndpoints are the endpoints that may be remembered for
	// an address, so that a connection underway while one goes cannot bring it
	// back. Each list of endpoints has maps of its own, since what a client was
	// sent to by one may not be in the other.
	affinity                       = "affinity"
	affinityEndpoints              = "affinity-endpoints"
	affinityServices               = "affinity-services"
	localAffinity                  = "local-affinity"
	localAffinityEndpoints         = "local-affinity-endpoints"
	nodePortAffinity               = "node-port-affinity"
	nodePortAffinityEndpoints      = "node-port-affinity-endpoints"
	nodePortAffinityServices       = "node-port-affinity-services"
	nodePortLocalAffinity          = "node-port-local-affinity"
	nodePortLocalAffinityEndpoints = "node-port-local-affinity-endpoints"
	// nodePortAddresses are where node ports are served.
	nodePortAddresses = "node-port-addresses"
	// A load balancer's address that only some sources may reach goes through
	// the chain of the name sourceRanges: the set has who is let in to what, and
	// servicesRestricted what services would have had for the address.
	sourceRanges       = "source-ranges"
	servicesRestricted = "services-restricted"
	// hairpin holds local endpoints as pairs of themselves: a connection that
	// comes back to its own pod must be masqueraded, or the pod would answer
	// itself directly.
	hairpin = "hairpin"
)

// The chains that are always there.
const (
	prerouting  = "prerouting"
	output      = "output"
	postrouting = "postrouting"
	input       = "input"
	dispatch    = "dispatch"
	refuse      = "refuse"
	// externalLocal and nodePortExternalLocal choose between the two lists of
	// external policy Local.
	externalLocal         = "external-local"
	nodePortExternalLocal = "node-port-external-local"
)

// entrance is a way in to services: by address or by node port. Both work
// alike, each with maps and chains of its own.
type entrance struct {
	// key is what the maps are looked up by, and original the same of the
	// connection's first packet before it was translated.
	key, original nft.Fields
	// verdicts says what a service gets, and all has its endpoints.
	verdicts string
	all      pool
	// Under external policy Local the chain external chooses between the
	// verdicts of cluster and local; the endpoints of the latter are own.
	external, cluster, local string
	own                      pool
	// learners sends connections to the chain that remembers them.
	learners string
	// chains is how the names of its shared chains begin.
	chains string
}

// pool is the maps that have a list of endpoints for each service, and the
// clients that were sent to them.
type pool struct {
	endpoints, affinity, affinityEndpoints string
}

func byAddress() *entrance {
	return &entrance{
		key: addressKey(), original: nft.Fields{nft.OrigDaddr, nft.L4Proto, nft.OrigDport},
		verdicts: services, all: pool{endpoints, affinity, affinityEndpoints},
		external: externalLocal, cluster: servicesCluster, local: servicesLocal,
		own:      pool{localEndpoints, localAffinity, localAffinityEndpoints},
		learners: affinityServices,
	}
}

func byNodePort() *entrance {
	return &entrance{
		key: nodePortKey(), original: nft.Fields{nft.L4Proto, nft.OrigDport},
		verdicts: nodePorts, all: pool{nodePortEndpoints, nodePortAffinity, nodePortAffinityEndpoints},
		external: nodePortExternalLocal, cluster: nodePortsCluster, local: nodePortsLocal,
		own:      pool{nodePortLocalEndpoints, nodePortLocalAffinity, nodePortLocalAffinityEndpoints},
		learners: nodePortAffinityServices,
		chains:   "node-port-",
	}
}

func entrances() [2]*entrance { return [2]*entrance{byAddress(), byNodePort()} }

func (e *entrance) pools() [2]pool { return [2]pool{e.all, e.own} }

// externalLocalChain serves external policy Local: pods and the node itself
// may use every endpoint, everybody else those on this node. Where there is
// none, the packet is dropped, so that a load balancer looks elsewhere.
func (e *entrance) externalLocalChain(cfg *Config, p pods) *nft.Chain {
	cluster := nft.VMap{Key: e.key, Map: e.cluster}
	var rules []nft.Rule
	if pods, ok := p.match(false); ok {
		rules = append(rules, nft.Rule{pods, cluster})
	}
	return &nft.Chain{Name: e.external, Rules: append(rules,
		nft.Rule{nft.MatchLocal{Field: nft.Saddr}, nft.SetMark{Mask: cfg.mark()}, cluster},
		nft.Rule{nft.VMap{Key: e.key, Map: e.local}},
		nft.Rule{nft.Verdict{Code: nft.Drop}},
	)}
}

const (
	priorityDstnat int32 = -100
	// priorityLeaving is before the source NAT of anybody else, which would end
	// nat evaluation: our mark would stay on the packet, and what was chosen for
	// its client would not be remembered. Priorities order nat chains among
	// themselves only, wherever the hook has nat; the kernel asks for more than
	// -200.
	priorityLeaving int32 = -190
)

// The keys and data of the sets and maps.
func addressKey() nft.Fields  { return nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport} }
func sourceKey() nft.Fields   { return join(addressKey(), nft.Saddr) }
func nodePortKey() nft.Fields { return nft.Fields{nft.L4Proto, nft.Dport} }
func daddr() nft.Fields       { return nft.Fields{nft.Daddr} }
func target() nft.Fields      { return nft.Fields{nft.Daddr, nft.Dport} }
func pair() nft.Fields        { return nft.Fields{nft.Saddr, nft.Daddr} }

// clientKey is the key of what is remembered of a client.
func (e *entrance) clientKey() nft.Fields { return join(nft.Fields{nft.Saddr}, e.key...) }

// join is a concatenation with more fields.
func join(fields nft.Fields, more ...nft.Field) nft.Fields {
	return append(slices.Clip(fields), more...)
}

const (
	// room is what sets have room for from the start: buckets of 32 kB each.
	room = 3072
	// roomBehind is that of verdict maps behind other verdicts. A kernel that
	// does not remember which chains it has validated walks through all buckets
	// of such a map for every element that leads there.
	roomBehind = 48
)

// sets declares the table's sets and maps, sorted by name.
func sets() []*nft.Set {
	list := []*nft.Set{
		{Name: clusterIPs, Key: daddr(), Room: room},
		{Name: hairpin, Key: pair(), Room: room},
		{Name: nodePortAddresses, Key: daddr(), Room: roomBehind},
		{Name: servicesRestricted, Key: addressKey(), Verdicts: true, Room: roomBehind},
		{Name: sourceRanges, Key: sourceKey(), Interval: true},
	}
	for _, e := range entrances() {
		list = append(list,
			&nft.Set{Name: e.verdicts, Key: e.key, Verdicts: true, Room: room},
			&nft.Set{Name: e.cluster, Key: e.key, Verdicts: true, Room: roomBehind},
			&nft.Set{Name: e.local, Key: e.key, Verdicts: true, Room: roomBehind},
			&nft.Set{Name: e.learners, Key: e.key, Verdicts: true, Room: room},
		)
		for _, p := range e.pools() {
			list = append(list,
				&nft.Set{Name: p.endpoints, Key: join(e.key, nft.Index), Data: target(), Room: room},
				&nft.Set{Name: p.affinity, Key: e.clientKey(), Data: target(), Dynamic: true, Size: affinitySize},
				&nft.Set{Name: p.affinityEndpoints, Key: join(e.key, target()...), Room: room},
			)
		}
	}
	slices.SortFunc(list, func(a, b *nft.Set) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// sourceRangesChain lets in who may reach an address. It stands before
// translation and before refusal, so that outsiders cannot tell whether there
// is anything behind the address.
func sourceRangesChain() *nft.Chain {
	return &nft.Chain{Name: sourceRanges, Rules: []nft.Rule{
		{nft.InSet{Key: sourceKey(), Set: sourceRanges}, nft.VMap{Key: addressKey(), Map: servicesRestricted}},
		{nft.Verdict{Code: nft.Drop}},
	}}
}

// fixedChains are the chains that depend on nothing. The base chains look for the
// address themselves: a jump to a chain that does would cost each connection 0.9 %
// of what setting it up takes.
func fixedChains() []*nft.Chain {
	arriving := []nft.Rule{{nft.VMap{Key: addressKey(), Map: services}}, {jump(dispatch)}}
	return []*nft.Chain{
		sourceRangesChain(),
		{Name: prerouting, Hook: &nft.Hook{Name: nft.Prerouting, Priority: priorityDstnat}, Rules: arriving},
		{Name: output, Hook: &nft.Hook{Name: nft.Output, Priority: priorityDstnat}, Rules: arriving},
		{
			Name: refuse,
			// A reset reaches the client at once; after ICMP many give up only
			// when they have sent their SYN again, a second later.
			Rules: []nft.Rule{
				{nft.MatchProto{Protocol: uint8(service.TCP)}, nft.Reject{TCPReset: true}},
				{nft.Reject{}},
			},
		},
	}
}

// leaving is what the chains depend on that see connections last. Each rule there
// costs every connection that is set up 0.6 % or more, so they have none that no
// service needs.
type leaving struct {
	// learning are the entrances by which a service with session affinity is
	// reached. (nft 1.0.6 prints the rules that remember clients, but reads them
	// no more.)
	learning []*entrance
	// unlisted says that there is a cluster IP which is in no ServiceCIDR.
	unlisted bool
}

// leavingChains see connections once they are translated: what may have to be
// masqueraded, and what goes to an endpoint on the node itself, which never
// gets to postrouting; there is no source to hide, but a mark to take off. Both
// remember where clients were sent that came in by one of the learning entrances,
// before all that, since masquerade ends the evaluation.
//
// Nothing leaves for an address of services: what another table has translated
// before us never gets to dispatch, and may have been translated to one. nat
// chains of postrouting can drop but not refuse.
func leavingChains(cfg *Config, f nft.Family, ranges treap.Map[string, netip.Prefix], l leaving) []*nft.Chain {
	rules := learningRules(l.learning)
	unserved := rangeRules(f, ranges)
	if l.unlisted {
		unserved = append(unserved, clusterIPRule(nft.Verdict{Code: nft.Drop}))
	}
	return []*nft.Chain{
		{
			Name: postrouting,
			Hook: &nft.Hook{Name: nft.Postrouting, Priority: priorityLeaving},
			Rules: slices.Concat(unserved, rules, []nft.Rule{
				{nft.MatchMark{Mask: cfg.mark()}, nft.ClearMark{Mask: cfg.mark()}, nft.Masquerade{}},
				{nft.InSet{Key: pair(), Set: hairpin}, nft.MatchDNATed{}, nft.Masquerade{}},
			}),
		},
		{
			Name:  input,
			Hook:  &nft.Hook{Name: nft.Input, Priority: priorityLeaving},
			Rules: append(rules, nft.Rule{nft.MatchMark{Mask: cfg.mark()}, nft.ClearMark{Mask: cfg.mark()}}),
		},
	}
}

// notOwn spares addresses that are the node's own: a cluster IP that is bound
// there, as NodeLocal DNSCache does, keeps its other ports.
func notOwn() nft.Statement { return nft.MatchLocal{Field: nft.Daddr, Not: true} }

// clusterIPRule is for what goes to a cluster IP and is not to be translated.
func clusterIPRule(v nft.Verdict) nft.Rule {
	return nft.Rule{nft.InSet{Key: daddr(), Set: clusterIPs}, notOwn(), v}
}

// rangeRules drop what goes to an address that cluster IPs come from and is not to
// be translated: where no service has it, it would only wander about.
func rangeRules(f nft.Family, ranges treap.Map[string, netip.Prefix]) []nft.Rule {
	var rules []nft.Rule
	for _, cidr := range ranges.All() {
		if cidr.Addr().Is6() == (f == nft.IPv6) {
			rules = append(rules, nft.Rule{nft.MatchAddr{Field: nft.Daddr, Prefix: cidr}, notOwn(), nft.Verdict{Code: nft.Drop}})
		}
	}
	return rules
}

// dispatchChain finds out what a new connection is for that goes to no service's
// address and port.
func dispatchChain(cfg *Config, f nft.Family, s service.Snapshot) *nft.Chain {
	rules := append([]nft.Rule{clusterIPRule(nft.Verdict{Code: nft.Goto, Chain: refuse})}, rangeRules(f, s.ServiceCIDRs)...)
	lookup := nft.VMap{Key: nodePortKey(), Map: nodePorts}
	if _, all := cfg.NodePortAddresses.On(s.Node, f == nft.IPv6); all {
		rules = append(rules, nft.Rule{nft.MatchLocal{Field: nft.Daddr}, nft.MatchAddr{Field: nft.Daddr, Not: true, Prefix: loopback(f)}, lookup})
	} else {
		rules = append(rules, nft.Rule{nft.InSet{Key: daddr(), Set: nodePortAddresses}, lookup})
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

package ruleset

import (
	"fmt"
	"net/netip"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// The sets and maps of each table.
const (
	// services sends address . protocol . port to a shared chain.
	services = "services"
	// endpoints holds all endpoints of all addresses, by index.
	endpoints = "endpoints"
	// clusterIPs are the known cluster IPs, whose other ports are refused.
	clusterIPs = "cluster-ips"
	// nodePorts and nodePortEndpoints are the same for node ports, which have
	// no address: with all addresses accepted they cannot be keyed by one.
	nodePorts         = "node-ports"
	nodePortEndpoints = "node-port-endpoints"
	// nodePortAddresses are where node ports are served.
	nodePortAddresses = "node-port-addresses"
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
	dispatch    = "dispatch"
	refuse      = "refuse"
)

const (
	priorityDstnat int32 = -100
	prioritySrcnat int32 = 100
)

// The keys and data of the sets and maps.
func addressKey() nft.Fields  { return nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport} }
func nodePortKey() nft.Fields { return nft.Fields{nft.L4Proto, nft.Dport} }
func daddr() nft.Fields       { return nft.Fields{nft.Daddr} }
func target() nft.Fields      { return nft.Fields{nft.Daddr, nft.Dport} }
func pair() nft.Fields        { return nft.Fields{nft.Saddr, nft.Daddr} }

func indexed(fields nft.Fields) nft.Fields { return append(fields, nft.Index) }

// sets declares the table's sets and maps, sorted by name.
func sets() []*nft.Set {
	return []*nft.Set{
		{Name: clusterIPs, Key: daddr()},
		{Name: endpoints, Key: indexed(addressKey()), Data: target()},
		{Name: hairpin, Key: pair()},
		{Name: nodePortAddresses, Key: daddr()},
		{Name: nodePortEndpoints, Key: indexed(nodePortKey()), Data: target()},
		{Name: nodePorts, Key: nodePortKey(), Verdicts: true},
		{Name: services, Key: addressKey(), Verdicts: true},
	}
}

// fixedChains are the chains that depend on the configuration only.
func fixedChains(cfg *Config) []*nft.Chain {
	return []*nft.Chain{
		{Name: prerouting, Hook: &nft.Hook{Name: nft.Prerouting, Priority: priorityDstnat}, Rules: []nft.Rule{{jump(dispatch)}}},
		{Name: output, Hook: &nft.Hook{Name: nft.Output, Priority: priorityDstnat}, Rules: []nft.Rule{{jump(dispatch)}}},
		{
			Name: postrouting,
			// One before srcnat: another table's masquerade there ends nat
			// evaluation, and our mark would stay on the packet.
			Hook: &nft.Hook{Name: nft.Postrouting, Priority: prioritySrcnat - 1},
			Rules: []nft.Rule{
				{nft.MatchMark{Mask: cfg.mark()}, nft.ClearMark{Mask: cfg.mark()}, nft.Masquerade{}},
				{nft.InSet{Key: pair(), Set: hairpin}, nft.MatchDNATed{}, nft.Masquerade{}},
			},
		},
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

// dispatchChain finds out what a new connection is for. The refusal spares
// addresses that are the node's own: a cluster IP that is bound there, as
// NodeLocal DNSCache does, keeps its other ports.
func dispatchChain(cfg *Config, f nft.Family, node *service.Node) *nft.Chain {
	rules := []nft.Rule{
		{nft.VMap{Key: addressKey(), Map: services}},
		{nft.InSet{Key: daddr(), Set: clusterIPs}, nft.MatchLocal{Not: true}, nft.Verdict{Code: nft.Goto, Chain: refuse}},
	}
	lookup := nft.VMap{Key: nodePortKey(), Map: nodePorts}
	if _, all := cfg.NodePortAddresses.On(node, f == nft.IPv6); all {
		rules = append(rules, nft.Rule{nft.MatchLocal{}, nft.MatchAddr{Field: nft.Daddr, Not: true, Prefix: loopback(f)}, lookup})
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

// masquerading says which connections of a shared chain are masqueraded.
type masquerading uint8

const (
	// fromOutside masquerades what does not come from the cluster CIDR.
	fromOutside masquerading = iota
	always
)

// sharedChain is what a chain depends on that services with the same number of
// endpoints share; its name says it all.
type sharedChain struct {
	endpoints  int
	masquerade masquerading
	nodePort   bool
}

func (s sharedChain) name() string {
	switch {
	case s.endpoints == 0:
		return refuse
	case s.nodePort:
		return fmt.Sprintf("node-port-endpoints-%d", s.endpoints)
	case s.masquerade == always:
		return fmt.Sprintf("endpoints-%d-masquerade", s.endpoints)
	}
	return fmt.Sprintf("endpoints-%d", s.endpoints)
}

// chain builds the shared chain. Maps and rules change in one transaction, but
// a packet in between two lookups may see the old count and the new endpoints:
// then index 0, which is there as long as there is any endpoint, takes it; and
// where there is none, it must not leave the node as it came.
func (s sharedChain) chain(cfg *Config, f nft.Family) *nft.Chain {
	var rules []nft.Rule
	mark := nft.SetMark{Mask: cfg.mark()}
	if s.masquerade == always {
		rules = append(rules, nft.Rule{mark})
	} else if cidr, ok := cfg.clusterCIDR(f); ok {
		rules = append(rules, nft.Rule{nft.MatchAddr{Field: nft.Saddr, Not: true, Prefix: cidr}, mark})
	}
	dnat := nft.DNAT{Key: addressKey(), Mod: uint32(s.endpoints), Map: endpoints}
	if s.nodePort {
		dnat.Key, dnat.Map = nodePortKey(), nodePortEndpoints
	}
	rules = append(rules, nft.Rule{dnat})
	if s.endpoints > 1 {
		dnat.Mod = 1
		rules = append(rules, nft.Rule{dnat})
	}
	return &nft.Chain{Name: s.name(), Rules: append(rules, nft.Rule{nft.Verdict{Code: nft.Drop}})}
}

package gen

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft/ruleset"
)

// Config returns a random configuration, and its value of --nodeport-addresses.
func Config(rng *rand.Rand) (ruleset.Config, []string) {
	cidrs := [][]string{
		nil, {"10.0.0.0/29"}, {"fd00:1::/125"}, {"10.0.0.0/8", "fd00:1::/64"}, {"10.0.0.5/28", "10.0.0.0/8"},
		{"10.0.0.0/29", "10.0.0.16/28", "fd00:1::/125", "fd00:1::10/124"},
	}[rng.IntN(6)]
	cfg := ruleset.Config{Table: ruleset.DefaultTable, Unlabelled: rng.IntN(8) == 0}
	if rng.IntN(2) == 0 {
		cfg.MasqueradeMark = 1 << rng.IntN(32)
	}
	for _, c := range cidrs {
		cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, netip.MustParsePrefix(c))
	}
	cfg.NodeCIDR = rng.IntN(3) == 0
	cfg.MasqueradeAll = rng.IntN(4) == 0
	if rng.IntN(3) == 0 {
		cfg.PodInterface = []service.Interface{{Name: "cni0"}, {Name: "veth", Prefix: true}}[rng.IntN(2)]
	}
	for _, c := range [][]string{nil, nil, {"10.0.0.4/30", "fd00:1::4/126"}, {"0.0.0.0/0"}}[rng.IntN(4)] {
		cfg.NoMasquerade = append(cfg.NoMasquerade, netip.MustParsePrefix(c))
	}
	cfg.MasqueradeToNode = rng.IntN(3) == 0
	cfg.AnswerPing = rng.IntN(2) == 0
	cfg.Uncounted = rng.IntN(4) == 0
	list := nodePortLists()[rng.IntN(len(nodePortLists()))]
	var err error
	if cfg.NodePortAddresses, err = service.ParseNodePortAddresses(list); err != nil {
		panic(err) // the lists are right
	}
	// This follows from the rest, so that it changes nothing else of what is drawn.
	sum := fnv.New32a()
	fmt.Fprint(sum, cfg)
	cfg.Flows = []service.Flows{service.FlowsAsNode, service.FlowsOff, 1, 16}[sum.Sum32()%4]
	return cfg, list
}

func nodePortLists() [][]string {
	return [][]string{
		nil, {"primary"}, {"0.0.0.0/0", "::/0"}, {"192.168.0.0/24"}, {"192.168.1.0/24", "2001:db8::/64"},
		{"127.0.0.0/8", "::/0"},
		{"primary", "127.0.0.0/8", "::1/128"},
	}
}

// ServiceCIDRs returns ranges that contain cluster IPs of the pools and a few more
// addresses. Some ranges are nested.
func ServiceCIDRs(rng *rand.Rand) []netip.Prefix {
	var list []netip.Prefix
	for _, s := range []string{"10.96.0.0/28", "10.96.0.0/29", "fd00:96::/124", "fd00:96::/125"} {
		if rng.IntN(4) == 0 {
			list = append(list, netip.MustParsePrefix(s))
		}
	}
	return list
}

// Node returns PlainNode, often with other addresses. One of them is a cluster
// IP that is bound on the node. Two of them, if they are there, are on a link that pods share.
func Node(rng *rand.Rand) service.Node {
	n := PlainNode()
	more := []netip.Addr{
		netip.MustParseAddr("10.96.0.3"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.168.1.2"),
		netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddr("fd00:96::3"), netip.MustParseAddr("::1"),
	}
	for _, a := range more {
		if rng.IntN(2) == 0 {
			n.HostAddresses = append(n.HostAddresses, a)
		}
	}
	slices.SortFunc(n.HostAddresses, netip.Addr.Compare)
	for _, a := range n.HostAddresses {
		if a == more[2] || a == more[3] {
			n.SharedAddresses = append(n.SharedAddresses, a)
		}
	}
	switch rng.IntN(5) {
	case 0:
		n.Addresses = nil
	case 1:
		n.Addresses = n.Addresses[:1]
	case 2:
		slices.Reverse(n.Addresses)
	}
	n.PodCIDRs = PodCIDRs(rng)
	for _, p := range []string{"10.96.0.4/30", "10.96.0.8/29", "10.0.0.0/8", "fd00:96::4/126", "fd00:96::/64"} {
		if rng.IntN(6) == 0 {
			n.Networks = append(n.Networks, netip.MustParsePrefix(p))
		}
	}
	for _, a := range []string{"10.96.0.2", "10.96.0.13", "fd00:96::2", "fd00:96::d"} {
		if rng.IntN(6) == 0 {
			n.APIServers = append(n.APIServers, netip.MustParseAddr(a))
		}
	}
	return n
}

// Services returns up to 14 services. Some endpoints have the node's address, as pods on
// the host's network have.
func Services(rng *rand.Rand, node *service.Node) []*service.Service {
	var list []*service.Service
	for i := range 14 {
		if rng.IntN(3) == 0 {
			continue
		}
		s := NamedService(rng, Name(i), Everything())
		if rng.IntN(4) == 0 {
			s = onHost(rng, s, node)
		}
		if rng.IntN(3) == 0 {
			s = anyConditions(rng, s)
		}
		list = append(list, s)
	}
	return list
}

// Cluster returns a random configuration, a node and its services, and a builder that has
// them, some with growing endpoints.
func Cluster(rng *rand.Rand) (ruleset.Config, *service.Node, []*service.Service, *snapshots.Builder) {
	cfg, _ := Config(rng)
	node := Node(rng)
	services := Services(rng, &node)
	b := snapshots.NewBuilder(node)
	for _, s := range services {
		b.Set(s)
	}
	b.SetGrowing(Growth(rng, b.Snapshot()))
	return cfg, &node, services, b
}

// onHost adds the node as an endpoint of one of the ports.
func onHost(rng *rand.Rand, s *service.Service, node *service.Node) *service.Service {
	next := *s
	next.Ports = slices.Clone(s.Ports)
	p := &next.Ports[rng.IntN(len(next.Ports))]
	endpoints := slices.Collect(p.Endpoints.All())
	for _, a := range node.HostAddresses[:1] {
		if slices.ContainsFunc(s.ClusterIPs, func(c netip.Addr) bool { return c.Is6() == a.Is6() }) {
			endpoints = append(endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 9100), Node: node.Name, Ready: true,
				Serving: true})
		}
	}
	p.Endpoints = service.MergeEndpoints(endpoints)
	next.SetRangePorts()
	return &next
}

// anyConditions gives the endpoints every mix of conditions, also those that no
// controller makes.
func anyConditions(rng *rand.Rand, s *service.Service) *service.Service {
	next := *s
	next.Ports = slices.Clone(s.Ports)
	for i := range next.Ports {
		p := &next.Ports[i]
		list := slices.Collect(p.Endpoints.All())
		for j := range list {
			e := &list[j]
			e.Ready, e.Serving, e.Terminating = rng.IntN(4) == 0, rng.IntN(2) == 0, rng.IntN(2) == 0
		}
		p.Endpoints = service.MergeEndpoints(list)
	}
	next.SetRangePorts()
	return &next
}

// Mutated is the service with a small change or, now and then, a larger one.
func Mutated(rng *rand.Rand, s *service.Service) *service.Service {
	switch rng.IntN(8) {
	case 0:
		return NamedService(rng, s.Name, Everything())
	case 1:
		return anyConditions(rng, s)
	}
	return Mutate(rng, s, Everything())
}

// Everything makes services with all features.
func Everything() Options {
	return Options{LoadBalancers: true, Affinity: true, Annotations: true}
}

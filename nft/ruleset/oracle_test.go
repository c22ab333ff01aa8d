package ruleset_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// oracle tells what becomes of a new connection, in the slowest and plainest
// way: it asks every service in turn. It is written from what kube-proxy does
// (TCP is refused with a reset instead of ICMP) and knows nothing of programs.
type oracle struct {
	node     *service.Node
	services []*service.Service
	cfg      ruleset.Config
	// serviceCIDRs are what cluster IPs come from.
	serviceCIDRs []netip.Prefix
	// nodePortAddresses is what --nodeport-addresses was given.
	nodePortAddresses []string
}

// outcomes lists everything that may become of the packet, sorted.
func (o *oracle) outcomes(p nft.Packet) []nft.Result {
	dst, protocol := p.Dst.Addr(), service.Protocol(p.Protocol)
	if s, port := o.owner(p.Dst, protocol); s != nil {
		if slices.Contains(s.ClusterIPs, dst) {
			return o.internal(p, s, port)
		}
		return o.external(p, s, port)
	}
	if o.isClusterIP(dst) && !o.local(dst) {
		return refusal(p)
	}
	if slices.ContainsFunc(o.serviceCIDRs, func(c netip.Prefix) bool { return c.Contains(dst) }) && !o.local(dst) {
		return []nft.Result{{Fate: nft.Dropped}}
	}
	if s, port := o.nodePortOwner(p.Dst.Port(), protocol, dst.Is6()); port != nil && o.servesNodePorts(dst) {
		return o.external(p, s, port)
	}
	return []nft.Result{{Fate: nft.Untouched}}
}

// owner is the oldest service that has the address as cluster IP or external
// address and serves the port on it.
func (o *oracle) owner(dst netip.AddrPort, protocol service.Protocol) (*service.Service, *service.Port) {
	for _, s := range o.byAge() {
		if !slices.Contains(s.ClusterIPs, dst.Addr()) && !slices.Contains(s.ExternalIPs, dst.Addr()) || !inFamily(s, dst.Addr().Is6()) {
			continue
		}
		for i, p := range s.Ports {
			if p.Protocol == protocol && p.Port == dst.Port() {
				return s, &s.Ports[i]
			}
		}
	}
	return nil, nil
}

// internal is the row of a cluster IP.
func (o *oracle) internal(p nft.Packet, s *service.Service, port *service.Port) []nft.Result {
	v6 := p.Dst.Addr().Is6()
	chosen := o.choose(port, v6, s.InternalPolicy == service.Local)
	if len(chosen) == 0 && s.InternalPolicy == service.Local && len(o.choose(port, v6, false)) > 0 {
		return []nft.Result{{Fate: nft.Dropped}}
	}
	pod, known := o.fromPod(p)
	return o.deliver(p, chosen, o.cfg.MasqueradeAll || known && !pod)
}

// external is the rows of external addresses and node ports.
func (o *oracle) external(p nft.Packet, s *service.Service, port *service.Port) []nft.Result {
	v6 := p.Dst.Addr().Is6()
	everywhere := o.choose(port, v6, false)
	pod, _ := o.fromPod(p)
	switch {
	case len(everywhere) == 0:
		return refusal(p)
	case s.ExternalPolicy == service.Cluster:
		return o.deliver(p, everywhere, true)
	case pod:
		return o.deliver(p, everywhere, false)
	case o.local(p.Src.Addr()):
		return o.deliver(p, everywhere, true)
	}
	here := o.choose(port, v6, true)
	if len(here) == 0 {
		return []nft.Result{{Fate: nft.Dropped}}
	}
	return o.deliver(p, here, false)
}

// fromPod: whether a pod of the cluster sends it, if that can be told: by the
// interface, or by the first cluster CIDR of the family.
func (o *oracle) fromPod(p nft.Packet) (pod, known bool) {
	if i := o.cfg.PodInterface; i.Name != "" {
		if i.Prefix {
			return strings.HasPrefix(p.Input, i.Name), true
		}
		return p.Input == i.Name, true
	}
	for _, c := range o.cfg.ClusterCIDRs {
		if c.Addr().Is6() == p.Src.Addr().Is6() {
			return c.Contains(p.Src.Addr()), true
		}
	}
	return false, false
}

// nodePortOwner is the port of the oldest service of the family that has the
// node port.
func (o *oracle) nodePortOwner(number uint16, protocol service.Protocol, v6 bool) (*service.Service, *service.Port) {
	for _, s := range o.byAge() {
		for i, p := range s.Ports {
			if p.NodePort == 0 || p.NodePort != number || p.Protocol != protocol {
				continue
			}
			if inFamily(s, v6) {
				return s, &s.Ports[i]
			}
		}
	}
	return nil, nil
}

// inFamily: a service exists in a family if it has a cluster IP there.
func inFamily(s *service.Service, v6 bool) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is6() == v6 })
}

func (o *oracle) byAge() []*service.Service {
	return slices.SortedFunc(slices.Values(o.services), func(a, b *service.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(string(a.Name), string(b.Name)))
	})
}

func (o *oracle) isClusterIP(a netip.Addr) bool {
	return slices.ContainsFunc(o.services, func(s *service.Service) bool { return slices.Contains(s.ClusterIPs, a) })
}

// deliver sends the packet to each endpoint that the port may choose.
func (o *oracle) deliver(p nft.Packet, chosen []netip.AddrPort, masquerade bool) []nft.Result {
	if len(chosen) == 0 {
		return refusal(p)
	}
	var all []nft.Result
	for _, to := range chosen {
		r := nft.Result{Fate: nft.DNATed, To: to}
		hairpin := to.Addr() == p.Src.Addr() && o.onNode(to.Addr())
		switch {
		case o.local(to.Addr()) && !p.FromNode:
			// It stays on the node: there is no source to hide.
		case masquerade || hairpin:
			r.Masqueraded = true
		}
		all = append(all, r)
	}
	return all
}

// choose: ready endpoints, or else those that serve while they terminate; of
// all or of this node's.
func (o *oracle) choose(p *service.Port, v6, here bool) []netip.AddrPort {
	near := func(service.Endpoint) bool { return true }
	if !here {
		near = o.topology(p, v6)
	}
	var ready, terminating []netip.AddrPort
	for _, e := range p.Endpoints {
		switch {
		case e.Addr.Addr().Is6() != v6 || here && e.Node != o.node.Name:
		case e.Ready && near(e):
			ready = append(ready, e.Addr)
		case e.Ready:
		case e.Serving && e.Terminating:
			terminating = append(terminating, e.Addr)
		}
	}
	chosen := ready
	if len(ready) == 0 {
		chosen = terminating
	}
	slices.SortFunc(chosen, netip.AddrPort.Compare)
	return chosen
}

// onNode: some service sends connections to the address, on this node.
func (o *oracle) onNode(a netip.Addr) bool {
	for _, s := range o.services {
		for i := range s.Ports {
			for _, to := range o.reachable(s, &s.Ports[i], a.Is6()) {
				if to.Addr() == a && slices.ContainsFunc(s.Ports[i].Endpoints, func(e service.Endpoint) bool {
					return e.Addr == to && e.Node == o.node.Name
				}) {
					return true
				}
			}
		}
	}
	return false
}

// topology: if all ready endpoints have node hints and one is for this node,
// those; else the same with zones; else all.
func (o *oracle) topology(p *service.Port, v6 bool) func(service.Endpoint) bool {
	ready := slices.DeleteFunc(slices.Clone(p.Endpoints), func(e service.Endpoint) bool { return !e.Ready || e.Addr.Addr().Is6() != v6 })
	forNode := func(e service.Endpoint) bool {
		return slices.Contains(strings.Split(string(e.Nodes), ","), o.node.Name)
	}
	forZone := func(e service.Endpoint) bool {
		return o.node.Zone != "" && slices.Contains(strings.Split(string(e.Zones), ","), o.node.Zone)
	}
	noNodes := func(e service.Endpoint) bool { return e.Nodes == "" }
	noZones := func(e service.Endpoint) bool { return e.Zones == "" }
	switch {
	case slices.ContainsFunc(ready, forNode) && !slices.ContainsFunc(ready, noNodes):
		return forNode
	case slices.ContainsFunc(ready, forZone) && !slices.ContainsFunc(ready, noZones):
		return forZone
	}
	return func(service.Endpoint) bool { return true }
}

// reachable are all endpoints that some connection to the port may get.
func (o *oracle) reachable(s *service.Service, p *service.Port, v6 bool) []netip.AddrPort {
	var all []netip.AddrPort
	external := p.NodePort != 0 || len(s.ExternalIPs) > 0
	if s.InternalPolicy == service.Cluster || external {
		all = append(all, o.choose(p, v6, false)...)
	}
	if s.InternalPolicy == service.Local || external && s.ExternalPolicy == service.Local {
		all = append(all, o.choose(p, v6, true)...)
	}
	return all
}

func (o *oracle) local(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(o.node.HostAddresses, a)
}

// servesNodePorts: with "primary" the node's first address of the family, with
// CIDRs the local ones in them. Loopback addresses never do. A family without
// any CIDR, or with one that holds everything, is served on all local ones.
func (o *oracle) servesNodePorts(a netip.Addr) bool {
	if a.IsLoopback() {
		return false
	}
	var cidrs []netip.Prefix
	if list := o.nodePortAddresses; len(list) == 0 || list[0] == "primary" {
		for _, own := range o.node.Addresses {
			if own.Is6() == a.Is6() {
				return own == a
			}
		}
	} else {
		for _, s := range list {
			if c := netip.MustParsePrefix(s); c.Addr().Is6() == a.Is6() {
				cidrs = append(cidrs, c)
			}
		}
	}
	return o.local(a) && (len(cidrs) == 0 || slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) }))
}

func refusal(p nft.Packet) []nft.Result {
	if p.Protocol == uint8(service.TCP) {
		return []nft.Result{{Fate: nft.Reset}}
	}
	return []nft.Result{{Fate: nft.Unreachable}}
}

// randomPacket aims at what a service has, or next to it.
func randomPacket(rng *rand.Rand, node *service.Node, services []*service.Service) nft.Packet {
	const icmp = 1
	p := nft.Packet{Protocol: []uint8{6, 6, 17, 132, icmp}[rng.IntN(5)]}
	formats := [][]string{
		{"10.96.0.%d", "198.51.100.%d", "10.0.0.%d", "192.168.0.%d", "192.168.1.%d", "127.0.0.%d"},
		{"fd00:96::%x", "2001:db8:99::%x", "fd00:1::%x", "2001:db8::%x", "2001:db8:1::%x", "::%x"},
	}[rng.IntN(2)]
	pick := func(formats []string, n int) netip.Addr {
		return netip.MustParseAddr(fmt.Sprintf(formats[rng.IntN(len(formats))], 1+rng.IntN(n)))
	}
	dst, src := pick(formats, 13), pick(formats[1:5], 13)
	port := uint16([]int{80, 30000}[rng.IntN(2)] + rng.IntN(5))
	if len(services) > 0 && rng.IntN(4) > 0 {
		s := services[rng.IntN(len(services))]
		sp := &s.Ports[rng.IntN(len(s.Ports))]
		p.Protocol, port = uint8(sp.Protocol), sp.Port
		dst = s.Addresses()[rng.IntN(len(s.Addresses()))]
		if sp.NodePort != 0 && rng.IntN(2) == 0 {
			dst, port = node.HostAddresses[rng.IntN(len(node.HostAddresses))], sp.NodePort
		}
		if n := len(sp.Endpoints); n > 0 && rng.IntN(2) == 0 { // a hairpin, perhaps
			src = sp.Endpoints[rng.IntN(n)].Addr.Addr()
		}
	}
	p.Input = []string{"", "cni0", "cni01", "veth7", "eth0"}[rng.IntN(5)]
	if src.Is6() != dst.Is6() || rng.IntN(4) == 0 {
		src = netip.MustParseAddr(map[bool]string{false: "203.0.113.9", true: "2001:db8:77::9"}[dst.Is6()])
	}
	if rng.IntN(3) == 0 {
		p.FromNode, p.Input = true, ""
		if own := slices.DeleteFunc(slices.Clone(node.HostAddresses), func(a netip.Addr) bool { return a.Is6() != dst.Is6() }); len(own) > 0 {
			src = own[rng.IntN(len(own))]
		}
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(dst, port)
	return p
}

// checkCluster compiles a random cluster and compares the fates of n packets.
func checkCluster(t *testing.T, rng *rand.Rand, n int, count map[nft.Fate]int) {
	cfg, list := randomConfig(t, rng)
	node := randomNode(rng)
	services := randomServices(rng, &node)
	ranges := randomCIDRs(rng)
	o := &oracle{&node, services, cfg, ranges, list}
	snapshot := build(node, services, ranges...)
	m := ruleset.Compile(cfg, snapshot).Model()
	for range n {
		p := randomPacket(rng, &node, services)
		want, got := describe(o.outcomes(p)), describe(m.Outcomes(p, o.local))
		if want != got {
			t.Fatalf("%s\nwant %s\n got %s\ncluster CIDRs %v, node-port addresses %v\n%s",
				p, want, got, cfg.ClusterCIDRs, list, snapshot)
		}
		for _, r := range m.Outcomes(p, o.local) {
			count[r.Fate]++
		}
	}
}

func describe(results []nft.Result) string {
	var words []string
	for _, r := range results {
		words = append(words, r.String())
	}
	return strings.Join(words, " | ")
}

// TestOracle: the program does with every packet what the oracle says.
func TestOracle(t *testing.T) {
	count := map[nft.Fate]int{}
	seeds(t, 400, func(t *testing.T, rng *rand.Rand) { checkCluster(t, rng, 100, count) })
	for _, fate := range []nft.Fate{nft.Untouched, nft.DNATed, nft.Reset, nft.Unreachable, nft.Dropped} {
		if count[fate] < 1000 && !testing.Short() {
			t.Errorf("only %d packets were %s: the cases are too narrow", count[fate], fate)
		}
	}
}

// FuzzOracle lets the fuzzer choose cluster and packets.
func FuzzOracle(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(strings.Repeat("nftproxy", 100)))
	f.Fuzz(func(t *testing.T, b []byte) { checkCluster(t, newScript(b), 20, map[nft.Fate]int{}) })
}

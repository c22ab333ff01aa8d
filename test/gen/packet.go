package gen

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// Packet returns a packet to an address and port of a service, or to one beside it.
func Packet(rng *rand.Rand, node *service.Node, services []*service.Service) nft.Packet {
	p := nft.Packet{Protocol: []uint8{6, 6, 17, 132, nft.ICMP}[rng.IntN(5)]}
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
		if sp.IsRange() {
			port = []uint16{79, 80, 81, 82, 83, 84, 85, 86, 30001, 65535}[rng.IntN(10)]
		}
		dst = s.Addresses()[rng.IntN(len(s.Addresses()))]
		if sp.NodePort != 0 && rng.IntN(2) == 0 {
			dst, port = node.HostAddresses[rng.IntN(len(node.HostAddresses))], sp.NodePort
		}
		switch n := sp.Endpoints.Len(); {
		case n > 0 && rng.IntN(2) == 0: // a hairpin, perhaps
			src = slices.Collect(sp.Endpoints.All())[rng.IntN(n)].Addr.Addr()
		case len(s.LoadBalancerIPs) > 0 && rng.IntN(4) == 0: // bound on the node, perhaps
			src = s.LoadBalancerIPs[rng.IntN(len(s.LoadBalancerIPs))]
		}
	}
	p.Input = []string{"", "cni0", "cni01", "veth7", "eth0"}[rng.IntN(5)]
	if src.Is6() != dst.Is6() || rng.IntN(4) == 0 {
		src = netip.MustParseAddr(map[bool]string{false: "203.0.113.9", true: "2001:db8:77::9"}[dst.Is6()])
	}
	if rng.IntN(3) == 0 {
		p.FromNode, p.Input = true, ""
		if own := slices.DeleteFunc(slices.Clone(node.HostAddresses), func(a netip.Addr) bool {
			return a.Is6() != dst.Is6()
		}); len(own) > 0 {
			src = own[rng.IntN(len(own))]
		}
	}
	p.ToInput = (p.Input == "eth0" || p.Input == "veth7") && !dst.IsLoopback() && slices.Contains(node.HostAddresses, dst)
	switch {
	case p.Protocol == nft.ICMP, rng.IntN(20) == 0: // an echo request to an address of a service, too
		p.Protocol = nft.EchoProtocol(ip.Of(dst))
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(dst, port)
	return p
}

package watch

import "net/netip"

// purpose is what an object has an address for.
type purpose byte

const (
	asNodeAddress purpose = iota
	// asClusterIP: the address is from a range that the administrator chose.
	asClusterIP
	// asEndpoint: packets to a Service are sent to the address.
	asEndpoint
	// asExternal: the author of a Service, or a load balancer's controller, chose the address.
	asExternal
)

// parseAddrFor reads an address as parseAddr does. An address that is not one host's, or that means something else on
// each host, is an error where it has no use: a Service would take broadcasts of the node's neighbours, or what the
// node's processes say to each other, or to the cloud's metadata server.
//
// An API server refuses loopback and link-local addresses of endpoints and in spec.externalIPs, and multicast ones of
// 224.0.0.0/24 and ff02::/16 (ValidateNonSpecialIP). It takes all other multicast addresses, 255.255.255.255, and any
// address in status.loadBalancer. Manifests, and objects from before these checks, may have all of them.
func parseAddrFor(use purpose, text string) (netip.Addr, error) {
	addr, err := parseAddr(text)
	if err == nil {
		if why := use.excludes(addr); why != "" {
			return netip.Addr{}, &ValueError{Value: text, Reason: why}
		}
	}
	return addr, err
}

// excludes says why an address has no use for the purpose; empty if it may have one.
func (use purpose) excludes(a netip.Addr) string {
	switch {
	case a.IsMulticast():
		return "a multicast address is not the address of one host"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address is not the address of one host"
	case a.IsLoopback():
		return "a loopback address is each host's own"
	case use != asClusterIP && a.IsLinkLocalUnicast():
		return "a link-local address means another host on each link"
	}
	return ""
}

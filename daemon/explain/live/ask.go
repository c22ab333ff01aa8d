package live

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/daemon/explain"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// sourcePort stands for the one that the client's kernel would choose. No rule asks for it.
const sourcePort = 40000

// ErrQuestion says that a text names no packet.
var ErrQuestion = errors.New("not a packet")

// FromNode is the text for a packet that the node itself sends.
const FromNode = "node"

// ParseDestination reads ADDR:PORT, ADDR:PORT/PROTOCOL or ADDR/icmp. Without a protocol it is TCP. The error
// matches ErrQuestion.
func ParseDestination(text string) (to netip.AddrPort, protocol uint8, err error) {
	rest, name, found := cutLast(text, "/")
	if !found {
		rest, name = text, "tcp"
	}
	name = strings.ToLower(name)
	if name == "icmp" {
		a, err := netip.ParseAddr(strings.Trim(rest, "[]"))
		if err != nil {
			return to, 0, fmt.Errorf("%w: %q: want an address before /icmp", ErrQuestion, text)
		}
		protocol = protocolOf("icmp")
		if a = a.Unmap(); a.Is6() {
			protocol = protocolOf("ipv6-icmp")
		}
		return netip.AddrPortFrom(a, 0), protocol, nil
	}
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, name) {
		return to, 0, fmt.Errorf("%w: protocol %q: want tcp, udp, sctp or icmp", ErrQuestion, name)
	}
	to, err = netip.ParseAddrPort(rest)
	if err != nil || to.Port() == 0 || to.Addr().Zone() != "" {
		return to, 0, fmt.Errorf("%w: %q: want ADDR:PORT or ADDR:PORT/PROTOCOL, such as 10.96.0.10:53/udp or [fd00:96::a]:53", ErrQuestion, text)
	}
	return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), protocolOf(name), nil
}

// cutLast is strings.Cut at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}

func protocolOf(name string) uint8 {
	for n := range 256 {
		if nft.ProtocolText(uint8(n)) == name {
			return uint8(n)
		}
	}
	return 0
}

// Ask makes the question about a packet to an address and port. from is ADDR, ADDR@INTERFACE, FromNode or
// empty: then a likely client is chosen. The errors of bad texts match ErrQuestion.
func (n *Node) Ask(from string, to netip.AddrPort, protocol uint8) (explain.Question, error) {
	q := explain.Question{Packet: nft.Packet{Dst: to, Protocol: protocol}, Guessed: from == ""}
	text, device, _ := strings.Cut(from, "@")
	if text == "" && device != "" {
		return q, fmt.Errorf("%w: --from %q: want an address before the interface", ErrQuestion, from)
	}
	var src netip.Addr
	switch text {
	case "":
		src = n.likelyClient(&q)
	case FromNode:
		if device != "" {
			return q, fmt.Errorf("%w: --from %q: packets of the node come in by no interface", ErrQuestion, from)
		}
		src = n.ownAddress(&q)
	default:
		var err error
		if src, err = netip.ParseAddr(text); err != nil || src.Zone() != "" {
			return q, fmt.Errorf("%w: --from %q: want an address, an address and an interface as ADDR@INTERFACE, or %q", ErrQuestion, from, FromNode)
		}
		src = src.Unmap()
	}
	if src.Is6() != to.Addr().Is6() {
		return q, fmt.Errorf("%w: --from %s and %s are of different families", ErrQuestion, src, to.Addr())
	}
	port := uint16(sourcePort)
	if to.Port() == 0 {
		port = 0
	}
	q.Packet.Src = netip.AddrPortFrom(src, port)
	if q.Packet.FromNode = device == "" && n.local(src); q.Packet.FromNode {
		q.From = "the node itself"
		return q, n.failed
	}
	n.enter(&q, src, device)
	return q, n.failed
}

// enter chooses the interface by which the packet comes in.
func (n *Node) enter(q *explain.Question, src netip.Addr, device string) {
	route := n.route(src)
	if q.Packet.Input = device; device == "" {
		q.Packet.Input = route.Device
		switch {
		case route.Device == "":
			q.Assumed = append(q.Assumed, fmt.Sprintf("the node has no route to %s, so the interface by which the packet comes in is not known", src))
		default:
			q.Assumed = append(q.Assumed, fmt.Sprintf("the packet comes in by %s, since the route to %s leads there (--from %s@INTERFACE names another one)", route.Device, src, src))
		}
	}
	q.From = "a client outside"
	config := ruleset.ReadBackConfig(n.Tables, n.Facts.Table)
	inRange := slices.ContainsFunc(config.ClusterCIDRs, func(p netip.Prefix) bool { return p.Contains(src) })
	onLink := route.Device != "" && !route.Via.IsValid() && !route.Default
	byInterface := config.PodInterface.Name != "" && (q.Packet.Input == config.PodInterface.Name || config.PodInterface.Prefix && strings.HasPrefix(q.Packet.Input, config.PodInterface.Name))
	switch {
	case byInterface, inRange && onLink:
		q.From = "a pod of this node"
	case inRange:
		q.From = "a pod of another node"
	}
}

// ownAddress returns the address that a process of the node would send from.
func (n *Node) ownAddress(q *explain.Question) netip.Addr {
	to := q.Packet.Dst.Addr()
	src := n.route(to).Source
	switch {
	case src.IsValid():
	case n.local(to):
		src = to
	case to.Is6():
		src = netip.IPv6Loopback()
	default:
		src = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	q.Assumed = append(q.Assumed, fmt.Sprintf("the node sends from %s", src))
	return src
}

// likelyClient chooses a client: for a cluster IP a pod of this node, or the node itself if it knows no pod;
// for any other address a client outside.
func (n *Node) likelyClient(q *explain.Question) netip.Addr {
	to := q.Packet.Dst.Addr()
	contents := n.Tables.Table(nft.TableID{Family: familyOf(to), Name: n.Facts.Table})
	if contents != nil && (ruleset.ClusterIPOwner(contents, to) != "" || ruleset.InServiceCIDR(contents, to)) {
		if pod, known := n.localPod(contents); known {
			q.Assumed = append(q.Assumed, fmt.Sprintf("the client is a pod of this node, %s, since %s is a Service's address in the cluster (--from names another client)", pod, to))
			return pod
		}
		src := n.ownAddress(q)
		q.Assumed = append(q.Assumed, "the client is the node itself, since the tables name no pod of this node (--from names another client)")
		return src
	}
	outside := exampleAddress(to.Is6())
	q.Assumed = append(q.Assumed, fmt.Sprintf("the client is outside of the cluster, with the address %s (--from names another client)", outside))
	return outside
}

// exampleAddress stands for a client outside. The ranges of RFC 5737 and RFC 3849 are for examples: no host has
// them.
func exampleAddress(v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	}
	return netip.AddrFrom4([4]byte{203, 0, 113, 1})
}

func familyOf(a netip.Addr) nft.Family {
	if a.Is6() {
		return nft.IPv6
	}
	return nft.IPv4
}

// localPod returns the first endpoint on this node: that is a pod for certain.
func (n *Node) localPod(contents *nft.Contents) (netip.Addr, bool) {
	for _, a := range ruleset.LocalEndpoints(contents) {
		if !n.local(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

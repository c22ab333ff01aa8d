package forwarding

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
)

// Packet is one that comes in by an interface, or that the node itself sends where In is empty. A port of 0 is one that
// is not known.
type Packet struct {
	Src, Dst netip.AddrPort
	Protocol uint8
	In       string
	Mark     uint32
}

// Route is what the kernel does with a packet, by its rules of routing and all tables.
type Route struct {
	// Refusal says why there is none; None if there is one.
	Refusal Refusal
	// Local says that a process of the node gets the packet.
	Local bool
	// Device is the interface by which it leaves, and Via the next hop; not valid where the destination is on the link.
	Device string
	Via    netip.Addr
}

// Refusal is why the kernel does not pass a packet on.
type Refusal string

// The refusals. The kernel gives Unreachable also for a packet of IPv4 that comes in where it does not forward, and
// Dropped for one whose source cannot come in there: by the reverse path filter, or as of the node's own.
const (
	None        Refusal = ""
	NoRoute     Refusal = "no route"
	Unreachable Refusal = "a route of type unreachable"
	Prohibited  Refusal = "a route of type prohibit"
	Dropped     Refusal = "a route of type blackhole"
	NoHost      Refusal = "a route that leads to no host"
)

// Lookup asks the kernel for the way of a packet (RTM_GETROUTE). ok is false where it cannot tell, such as of an
// interface that is not there. It does not ask whether the node forwards packets of IPv6.
func Lookup(p Packet) (r Route, ok bool, err error) {
	request, err := p.request()
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return Route{}, false, nil
	}
	var messages [][]byte
	if err == nil {
		messages, err = request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	}
	for errno, refusal := range map[unix.Errno]Refusal{
		unix.ENETUNREACH: NoRoute, unix.EHOSTUNREACH: Unreachable, unix.EACCES: Prohibited, unix.EINVAL: Dropped,
		unix.EXDEV: Dropped,
	} {
		if errors.Is(err, errno) {
			return Route{Refusal: refusal}, true, nil
		}
	}
	switch {
	case err != nil:
		return Route{}, false, fmt.Errorf("look up the route from %s to %s: %w", p.Src.Addr(), p.Dst.Addr(), err)
	case len(messages) == 0 || len(messages[0]) < unix.SizeofRtMsg:
		return Route{}, false, nil
	}
	return routeOf(messages[0], p.Dst.Addr())
}

// request asks with all that a rule of routing (ip rule) may go by. The kernel takes ports of TCP and UDP only.
func (p *Packet) request() (*nl.NetlinkRequest, error) {
	bits := uint8(p.Dst.Addr().BitLen())
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(ip.Of(p.Dst.Addr())), Dst_len: bits, Src_len: bits,
		Flags: unix.RTM_F_LOOKUP_TABLE}})
	request.AddData(nl.NewRtAttr(unix.RTA_DST, p.Dst.Addr().AsSlice()))
	request.AddData(nl.NewRtAttr(unix.RTA_SRC, p.Src.Addr().AsSlice()))
	if p.In != "" {
		link, err := netlink.LinkByName(p.In)
		if err != nil {
			return nil, err
		}
		request.AddData(nl.NewRtAttr(unix.RTA_IIF, nl.Uint32Attr(uint32(link.Attrs().Index))))
	}
	if p.Mark != 0 {
		request.AddData(nl.NewRtAttr(unix.RTA_MARK, nl.Uint32Attr(p.Mark)))
	}
	if p.Protocol != unix.IPPROTO_TCP && p.Protocol != unix.IPPROTO_UDP {
		return request, nil
	}
	request.AddData(nl.NewRtAttr(unix.RTA_IP_PROTO, []byte{p.Protocol}))
	for kind, port := range map[int]uint16{unix.RTA_SPORT: p.Src.Port(), unix.RTA_DPORT: p.Dst.Port()} {
		if port != 0 {
			request.AddData(nl.NewRtAttr(kind, binary.BigEndian.AppendUint16(nil, port)))
		}
	}
	return request, nil
}

// routeOf reads the kernel's answer about a destination.
func routeOf(message []byte, to netip.Addr) (r Route, ok bool, err error) {
	switch nl.DeserializeRtMsg(message).Type {
	case unix.RTN_LOCAL:
		return Route{Local: true}, true, nil
	case unix.RTN_UNICAST:
	case unix.RTN_BLACKHOLE:
		return Route{Refusal: Dropped}, true, nil
	case unix.RTN_UNREACHABLE:
		return Route{Refusal: Unreachable}, true, nil
	case unix.RTN_PROHIBIT:
		return Route{Refusal: Prohibited}, true, nil
	default: // such as a broadcast address
		return Route{Refusal: NoHost}, true, nil
	}
	values := attributes(message[unix.SizeofRtMsg:])
	via := values[unix.RTA_GATEWAY]
	if other := values[unix.RTA_VIA]; len(other) > 2 { // of the other family, behind two bytes with the family
		via = other[2:]
	}
	if a, is := netip.AddrFromSlice(via); is {
		r.Via = a.Unmap()
	}
	out := values[unix.RTA_OIF]
	if len(out) != 4 {
		return Route{}, false, nil
	}
	link, err := netlink.LinkByIndex(int(binary.NativeEndian.Uint32(out)))
	if err != nil {
		return Route{}, false, fmt.Errorf("look up the interface of the route to %s: %w", to, err)
	}
	r.Device = link.Attrs().Name
	return r, true, nil
}

// Neighbour says whether a host has an address on the link of an interface.
type Neighbour string

// What the kernel knows of a neighbour. Unknown is one to which it has sent nothing lately.
const (
	Unknown Neighbour = ""
	Answers Neighbour = "answers"
	Asked   Neighbour = "has not answered so far" // INCOMPLETE
	Absent  Neighbour = "does not answer"         // FAILED
)

// Neighbours are those of one interface and family, by their addresses.
type Neighbours struct {
	known map[netip.Addr]Neighbour
	// needless says that the interface needs none: a tunnel, or one without ARP.
	needless bool
}

// Of tells of one of them.
func (n *Neighbours) Of(a netip.Addr) Neighbour {
	if n.needless {
		return Answers
	}
	return n.known[a]
}

// ListNeighbours asks the kernel for the neighbours by an interface.
func ListNeighbours(device string, f ip.Family) (*Neighbours, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", device, err)
	}
	if link.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT) != 0 {
		return &Neighbours{needless: true}, nil
	}
	list, err := netlink.NeighList(link.Attrs().Index, int(f))
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then some are unknown
		return nil, fmt.Errorf("list the neighbours by %s: %w", device, err)
	}
	n := &Neighbours{known: map[netip.Addr]Neighbour{}}
	for _, at := range list {
		a, is := netip.AddrFromSlice(at.IP)
		if !is {
			continue
		}
		switch {
		case at.State&unix.NUD_FAILED != 0:
			n.known[a.Unmap()] = Absent
		case at.State&unix.NUD_INCOMPLETE != 0:
			n.known[a.Unmap()] = Asked
		case at.State != unix.NUD_NONE:
			n.known[a.Unmap()] = Answers
		}
	}
	return n, nil
}

// Unasked lists what rules of routing (ip rule) go by, beside what Lookup asks with, in words.
func Unasked(f ip.Family) ([]string, error) {
	rules, err := netlink.RuleList(int(f))
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list the rules of routing: %w", err)
	}
	var found []string
	add := func(has bool, what string) {
		if has && !slices.Contains(found, what) {
			found = append(found, what)
		}
	}
	for i := range rules {
		r := &rules[i]
		add(r.Mark != 0 || r.Mask != nil, "the packet's mark by other programs")
		add(r.Sport != nil, "the client's port")
		add(r.Tos != 0, "the packet's type of service")
		add(r.UIDRange != nil, "the user of a process that sends it")
	}
	return found, nil
}

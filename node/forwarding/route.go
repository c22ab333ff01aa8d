package forwarding

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
)

// Packet is one that comes in by an interface, or that the node itself sends where In is empty.
type Packet struct {
	Src, Dst netip.Addr
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
	o := &netlink.RouteGetOptions{Iif: p.In, SrcAddr: p.Src.AsSlice(), Mark: p.Mark}
	found, err := netlink.RouteGetWithOptions(p.Dst.AsSlice(), o)
	for errno, refusal := range map[unix.Errno]Refusal{
		unix.ENETUNREACH: NoRoute, unix.EHOSTUNREACH: Unreachable, unix.EACCES: Prohibited, unix.EINVAL: Dropped,
		unix.EXDEV: Dropped,
	} {
		if errors.Is(err, errno) {
			return Route{Refusal: refusal}, true, nil
		}
	}
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}), err == nil && len(found) == 0:
		return Route{}, false, nil
	case err != nil:
		return Route{}, false, fmt.Errorf("look up the route from %s to %s: %w", p.Src, p.Dst, err)
	}
	route := found[0]
	switch route.Type {
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
	if via, is := netip.AddrFromSlice(route.Gw); is {
		r.Via = via.Unmap()
	}
	link, err := netlink.LinkByIndex(route.LinkIndex)
	if err != nil {
		return Route{}, false, fmt.Errorf("look up the interface of the route to %s: %w", p.Dst, err)
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

// RulesByMark says whether rules of routing (ip rule) go by a packet's mark.
func RulesByMark(f ip.Family) (bool, error) {
	rules, err := netlink.RuleList(int(f))
	for i := range rules {
		if rules[i].Mark != 0 || rules[i].Mask != nil {
			return true, nil
		}
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return false, fmt.Errorf("list the rules of routing: %w", err)
	}
	return false, nil
}

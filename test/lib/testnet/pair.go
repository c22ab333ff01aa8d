package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// End is one end of a pair of interfaces.
type End struct {
	NS   *Namespace
	Link string
}

func (e End) String() string { return e.NS.String() + ":" + e.Link }

// Pair joins two namespaces by a pair of interfaces, which pass packets when it
// returns. They have no addresses but link-local ones of IPv6.
func Pair(a, b End) error {
	if err := connect(a.NS, a.Link, b.NS, b.Link); err != nil {
		return err
	}
	return linkUp(a, b)
}

// Bridge makes a bridge that is up.
func (ns *Namespace) Bridge(name string) error { return ns.addBridge(name) }

// Port makes an interface a port of a bridge of its namespace, which also sends
// packets back by it.
func (e End) Port(bridge string) error {
	return errors.Join(e.NS.addPort(bridge, e.Link, true), e.NS.awaitCarrier(bridge))
}

// Remove removes the interface and with it its pair, its routes and neighbours.
func (e End) Remove() error { return e.NS.delLink(e.Link) }

// Meet adds a permanent neighbour entry for an address at one end, with the interface at
// the other end. The kernel then needs no ARP or neighbour discovery.
func (e End) Meet(address netip.Addr, at End) error {
	err := e.meet(address, at)
	if err != nil {
		return fmt.Errorf("introduce %v of %v to %v: %w", address, at, e, err)
	}
	return nil
}

func (e End) meet(address netip.Addr, at End) error {
	near, err := e.NS.handle.LinkByName(e.Link)
	if err != nil {
		return err
	}
	far, err := at.NS.handle.LinkByName(at.Link)
	if err != nil {
		return err
	}
	return e.NS.handle.NeighSet(&netlink.Neigh{
		LinkIndex: near.Attrs().Index, Family: family(address), State: netlink.NUD_PERMANENT,
		IP: address.AsSlice(), HardwareAddr: far.Attrs().HardwareAddr,
	})
}

// Route sends packets to dst out of the interface: to the neighbour via, or
// straight to the destination if via is the zero Addr. A route to dst that is
// there is replaced.
func (e End) Route(dst netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{Dst: ipNet(dst), Scope: netlink.SCOPE_LINK}
	if via.IsValid() {
		r.Gw, r.Scope, r.Flags = via.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	return e.changeRoute(e.NS.handle.RouteReplace, "add", r)
}

// RouteFrom sends packets to dst straight out of the interface. Those of the namespace itself come from src, if they
// have no source of their own yet.
func (e End) RouteFrom(dst netip.Prefix, src netip.Addr) error {
	return e.NS.addLinkRoute(dst, e.Link, src)
}

// Unroute takes a route away again.
func (e End) Unroute(dst netip.Prefix) error {
	return e.changeRoute(e.NS.handle.RouteDel, "delete", &netlink.Route{Dst: ipNet(dst), Scope: netlink.SCOPE_NOWHERE})
}

func (e End) changeRoute(change func(*netlink.Route) error, verb string, r *netlink.Route) error {
	l, err := e.NS.handle.LinkByName(e.Link)
	if err == nil {
		r.LinkIndex = l.Attrs().Index
		err = change(r)
	}
	if err != nil {
		return fmt.Errorf("%s route %v to %v: %w", verb, r.Dst, e, err)
	}
	return nil
}

// connect joins two namespaces by a pair of interfaces. They are not up yet.
func connect(a *Namespace, aName string, b *Namespace, bName string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	err := a.handle.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(netns.NsHandle(b.Fd())),
	})
	if err != nil {
		return fmt.Errorf("connect %s:%s and %s:%s: %w", a, aName, b, bName, err)
	}
	return nil
}

// linkUp sets both ends of a pair up and returns once packets pass.
func linkUp(ends ...End) error {
	for _, e := range ends {
		if err := e.NS.setUp(e.Link); err != nil {
			return err
		}
	}
	for _, e := range ends {
		if err := errors.Join(e.NS.awaitCarrier(e.Link), e.NS.awaitAddrs(e.Link)); err != nil {
			return err
		}
	}
	return nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

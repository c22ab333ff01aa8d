package testnet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// AddAddr gives an interface of the namespace an address, usable at once (no
// duplicate address detection).
func (ns *Namespace) AddAddr(link string, address netip.Prefix) error {
	return ns.addAddr(link, address, unix.RT_SCOPE_UNIVERSE)
}

func (ns *Namespace) addAddr(link string, address netip.Prefix, scope int) error {
	return ns.changeAddr(ns.handle.AddrReplace, "add", link, address, scope)
}

// DelAddr takes an address away again.
func (ns *Namespace) DelAddr(link string, address netip.Prefix) error {
	return ns.changeAddr(ns.handle.AddrDel, "delete", link, address, unix.RT_SCOPE_UNIVERSE)
}

func (ns *Namespace) changeAddr(change func(netlink.Link, *netlink.Addr) error, verb, link string, address netip.Prefix, scope int) error {
	l, err := ns.handle.LinkByName(link)
	if err == nil {
		addr := &netlink.Addr{IPNet: ipNet(address), Scope: scope}
		if address.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		err = change(l, addr)
	}
	if err != nil {
		return fmt.Errorf("%s address %v on %s in %s: %w", verb, address, link, ns.name, err)
	}
	return nil
}

// AddRoute adds a route to dst through the gateway via, which must be on a
// network of the namespace.
func (ns *Namespace) AddRoute(dst netip.Prefix, via netip.Addr) error {
	return ns.addRoute(&netlink.Route{Dst: ipNet(dst), Gw: via.AsSlice()})
}

// addLinkRoute routes dst straight to an interface. src, if valid, is the
// address that the namespace's own packets to dst come from.
func (ns *Namespace) addLinkRoute(dst netip.Prefix, link string, src netip.Addr) error {
	l, err := ns.handle.LinkByName(link)
	if err != nil {
		return fmt.Errorf("route %v to %s in %s: %w", dst, link, ns.name, err)
	}
	return ns.addRoute(&netlink.Route{
		LinkIndex: l.Attrs().Index, Dst: ipNet(dst), Scope: netlink.SCOPE_LINK, Src: src.AsSlice(),
	})
}

// addDefaultRoute sends everything of via's family through via on link, whether
// or not an address of link makes via reachable.
func (ns *Namespace) addDefaultRoute(link string, via netip.Addr) error {
	l, err := ns.handle.LinkByName(link)
	if err != nil {
		return fmt.Errorf("default route via %v in %s: %w", via, ns.name, err)
	}
	everything, _ := via.Prefix(0)
	return ns.addRoute(&netlink.Route{
		LinkIndex: l.Attrs().Index, Dst: ipNet(everything), Gw: via.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
	})
}

func (ns *Namespace) addRoute(r *netlink.Route) error {
	if err := ns.handle.RouteAdd(r); err != nil {
		return fmt.Errorf("add route %v in %s: %w", r, ns.name, err)
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

// addBridge makes a bridge that forwards from the first packet on.
func (ns *Namespace) addBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	// Without an address of its own a bridge takes on that of a port, another
	// one whenever ports come and go, and its neighbours would lose it.
	attrs.HardwareAddr = make(net.HardwareAddr, 6)
	if _, err := rand.Read(attrs.HardwareAddr); err != nil {
		return fmt.Errorf("add bridge %s in %s: %w", name, ns.name, err)
	}
	attrs.HardwareAddr[0] = attrs.HardwareAddr[0]&^1 | 2 // unicast, locally administered
	snooping := false                                    // there is no querier to learn multicast, and so neighbour discovery, from
	if err := ns.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("add bridge %s in %s: %w", name, ns.name, err)
	}
	return ns.setUp(name)
}

// addPort makes an interface a port of a bridge. A hairpin port also sends
// packets back where they came from.
func (ns *Namespace) addPort(bridge, port string, hairpin bool) error {
	b, err := ns.handle.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s in %s: %w", bridge, ns.name, err)
	}
	p, err := ns.handle.LinkByName(port)
	if err == nil {
		err = ns.handle.LinkSetMasterByIndex(p, b.Attrs().Index)
	}
	if err == nil && hairpin {
		err = ns.handle.LinkSetHairpin(p, true)
	}
	if err != nil {
		return fmt.Errorf("make %s a port of %s in %s: %w", port, bridge, ns.name, err)
	}
	return nil
}

func (ns *Namespace) delLink(name string) error {
	l, err := ns.handle.LinkByName(name)
	if err == nil {
		err = ns.handle.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("delete interface %s in %s: %w", name, ns.name, err)
	}
	return nil
}

func (ns *Namespace) setUp(link string) error {
	l, err := ns.handle.LinkByName(link)
	if err == nil {
		err = ns.handle.LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("set up interface %s in %s: %w", link, ns.name, err)
	}
	return nil
}

// carrierTimeout bounds the wait for an interface whose peer is up. Kernels
// take milliseconds.
const carrierTimeout = 10 * time.Second

// awaitCarrier returns once the interface passes packets. After both ends of a
// pair are up the kernel still drops what is sent until a work queue has run;
// since Linux 6.8 asking for the link makes that happen.
func (ns *Namespace) awaitCarrier(link string) error {
	updates := make(chan netlink.LinkUpdate, 16)
	done := make(chan struct{})
	subscribed := false
	defer func() {
		close(done)
		if subscribed {
			for range updates { // the library closes it when its goroutine has ended
			}
		}
	}()
	timeout := time.After(carrierTimeout)
	for {
		l, err := ns.handle.LinkByName(link)
		if err != nil {
			return fmt.Errorf("await carrier of %s in %s: %w", link, ns.name, err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if !subscribed {
			if err := netlink.LinkSubscribeAt(netns.NsHandle(ns.Fd()), updates, done); err != nil {
				return fmt.Errorf("await carrier of %s in %s: %w", link, ns.name, err)
			}
			subscribed = true
			continue // it may have come up before
		}
		select {
		case _, open := <-updates:
			if !open {
				return fmt.Errorf("await carrier of %s in %s: %w", link, ns.name, errors.New("link events ended"))
			}
		case <-timeout:
			return fmt.Errorf("interface %s in %s has no carrier after %v", link, ns.name, carrierTimeout)
		}
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

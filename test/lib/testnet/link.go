package testnet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// AddAddrs gives an interface single addresses. If it is up, they are ready when
// AddAddrs returns.
func (ns *Namespace) AddAddrs(link string, addresses ...netip.Addr) error {
	for _, a := range addresses {
		if err := ns.changeAddr(ns.handle.AddrReplace, "add", link, netip.PrefixFrom(a, a.BitLen()),
			unix.RT_SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	return ns.awaitAddrs(link)
}

// AddAddr gives an interface of the namespace an address. If the interface is
// up, the address is ready when AddAddr returns.
func (ns *Namespace) AddAddr(link string, address netip.Prefix) error {
	return ns.addAddr(link, address, unix.RT_SCOPE_UNIVERSE)
}

func (ns *Namespace) addAddr(link string, address netip.Prefix, scope int) error {
	return errors.Join(
		ns.changeAddr(ns.handle.AddrReplace, "add", link, address, scope),
		ns.awaitAddrs(link),
	)
}

// DelAddr takes an address away again.
func (ns *Namespace) DelAddr(link string, address netip.Prefix) error {
	return ns.changeAddr(ns.handle.AddrDel, "delete", link, address, unix.RT_SCOPE_UNIVERSE)
}

func (ns *Namespace) changeAddr(change func(netlink.Link, *netlink.Addr) error, verb, link string, address netip.Prefix,
	scope int) error {
	l, err := ns.handle.LinkByName(link)
	if err == nil {
		err = change(l, &netlink.Addr{IPNet: ipNet(address), Scope: scope})
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

// dropUnrouted keeps the namespace silent about packets that arrive on link and
// that it has no route for. IPv4 is, where nothing is forwarded; IPv6 answers
// "no route", which ends attempts to connect.
func (ns *Namespace) dropUnrouted(link string) error {
	rule := netlink.NewRule()
	rule.Family, rule.IifName, rule.Type = unix.AF_INET6, link, unix.FR_ACT_BLACKHOLE
	rule.Priority = 32767 // after that of the main table
	if err := ns.handle.RuleAdd(rule); err != nil {
		return fmt.Errorf("add rule %v in %s: %w", rule, ns.name, err)
	}
	return nil
}

func (ns *Namespace) addRoute(r *netlink.Route) error {
	if err := ns.handle.RouteAdd(r); err != nil {
		return fmt.Errorf("add route %v in %s: %w", r, ns.name, err)
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
	// there is no querier to learn multicast, and so neighbour discovery, from
	snooping := false
	if err := ns.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("add bridge %s in %s: %w", name, ns.name, err)
	}
	return ns.setUp(name)
}

// CallRules sets for each family what a bridge itself says of the packets that it forwards: whether the namespace's
// rules see them (nf_call_iptables, nf_call_ip6tables).
func (ns *Namespace) CallRules(bridge string, v4, v6 bool) error {
	link, err := ns.handle.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s in %s: %w", bridge, ns.name, err)
	}
	value := map[bool][]byte{false: {0}, true: {1}}
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(link.Attrs().Index)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_BR_NF_CALL_IPTABLES, value[v4])
	data.AddRtAttr(nl.IFLA_BR_NF_CALL_IP6TABLES, value[v6])
	return ns.Do(func() error {
		request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		request.AddData(message)
		request.AddData(info)
		if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("set bridge %s in %s: %w", bridge, ns.name, err)
		}
		return nil
	})
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

// delLink deletes an interface. One that is gone is no error: its pair goes with
// a namespace at the other end, some time after that was closed.
func (ns *Namespace) delLink(name string) error {
	l, err := ns.handle.LinkByName(name)
	if err == nil {
		err = ns.handle.LinkDel(l)
	}
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil
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

// readyTimeout bounds the wait for what kernels do in milliseconds.
const readyTimeout = 10 * time.Second

// awaitCarrier returns once the interface passes packets. After both ends of a
// pair are up the kernel still drops what is sent until a work queue has run;
// since Linux 6.8 asking for the link makes that happen.
func (ns *Namespace) awaitCarrier(link string) error {
	subscribe := func(events chan<- netlink.LinkUpdate, done <-chan struct{}) error {
		return netlink.LinkSubscribeAt(netns.NsHandle(ns.Fd()), events, done)
	}
	err := await(subscribe, func() (bool, error) {
		l, err := ns.handle.LinkByName(link)
		return err == nil && l.Attrs().OperState == netlink.OperUp, err
	})
	if err != nil {
		return fmt.Errorf("await carrier of %s in %s: %w", link, ns.name, err)
	}
	return nil
}

// awaitAddrs returns once the IPv6 addresses of an interface that is up are
// ready. The kernel joins the multicast group at which neighbours ask for an
// address in a work queue; until then it is tentative, even where duplicates
// are not looked for (but not with IFA_F_NODAD, which only hides it).
func (ns *Namespace) awaitAddrs(link string) error {
	subscribe := func(events chan<- netlink.AddrUpdate, done <-chan struct{}) error {
		return netlink.AddrSubscribeAt(netns.NsHandle(ns.Fd()), events, done)
	}
	err := await(subscribe, func() (bool, error) {
		l, err := ns.handle.LinkByName(link)
		if err != nil || l.Attrs().Flags&net.FlagUp == 0 {
			return true, err
		}
		list, err := ns.handle.AddrList(l, unix.AF_INET6)
		for errors.Is(err, netlink.ErrDumpInterrupted) { // by other links that come and go
			list, err = ns.handle.AddrList(l, unix.AF_INET6)
		}
		tentative := func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }
		return !slices.ContainsFunc(list, tentative), err
	})
	if err != nil {
		return fmt.Errorf("await addresses of %s in %s: %w", link, ns.name, err)
	}
	return nil
}

// await returns once ready does. It asks at first and after each event.
func await[T any](subscribe func(chan<- T, <-chan struct{}) error, ready func() (bool, error)) error {
	if ok, err := ready(); ok || err != nil {
		return err
	}
	events, done := make(chan T, 16), make(chan struct{})
	if err := subscribe(events, done); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	defer func() {
		close(done)
		for range events { // closed when the library's goroutine has ended
		}
	}()
	timeout := time.After(readyTimeout)
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case _, open := <-events:
			if !open {
				return errors.New("the kernel's events ended")
			}
		case <-timeout:
			return fmt.Errorf("not within %v", readyTimeout)
		}
	}
}

// FlushConntrack forgets all connections of the namespace.
func (ns *Namespace) FlushConntrack() error {
	return ns.Do(func() error {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return fmt.Errorf("flush conntrack in %s: %w", ns.name, err)
		}
		return nil
	})
}

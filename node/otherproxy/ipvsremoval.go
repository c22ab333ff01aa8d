package otherproxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/node/hostaddr"
)

// ErrInUse says that connections go through what IPVS mode left, or have an address of its device. Without it they
// would end.
var ErrInUse = errors.New("connections that were opened before are still open; what they use stays until they end")

// ErrOthersServer says that the device has to stay.
var ErrOthersServer = errors.New("virtual servers of other programs have addresses of the device")

// settleIPVS makes ready to remove what IPVS mode left: from now on, the node's own processes reach the addresses of
// its device from an address of the node. Otherwise the kernel takes the Service's address as the source, and the
// connection ends with that address.
func settleIPVS() error {
	device, err := hostaddr.FindServiceDevice()
	if err != nil || device == nil {
		return err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, localRoutesOf(device),
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF|netlink.RT_FILTER_TYPE)
		if err != nil {
			return fmt.Errorf("list the routes of %s: %w", hostaddr.ServiceDevice, err)
		}
		var source net.IP
		for _, r := range routes {
			if r.Protocol != unix.RTPROT_KERNEL || r.Dst == nil || r.Dst.IP.IsLinkLocalUnicast() {
				continue // settled before
			}
			if source == nil {
				if source = sourceOf(family, device); source == nil {
					break // without another address there is no other source
				}
			}
			if err := settleRoute(family, r, source); err != nil {
				return fmt.Errorf("change the route to %s: %w", r.Dst, err)
			}
		}
	}
	return nil
}

func localRoutesOf(device netlink.Link) *netlink.Route {
	return &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, LinkIndex: device.Attrs().Index}
}

// settleRoute gives a local route a source. IPv6 takes no route to a device that is down, as kube-proxy's is, and a
// route of a user's has another metric. So there the loopback device gets a route, and the kernel's own goes then: the
// destination is local all the time.
func settleRoute(family int, r netlink.Route, source net.IP) error {
	settled := r
	settled.Src, settled.Protocol, settled.MultiPath = source, unix.RTPROT_STATIC, nil
	if family == netlink.FAMILY_V4 {
		return netlink.RouteReplace(&settled)
	}
	settled.LinkIndex, settled.Priority = loopbackIndex, settledMetric
	if err := netlink.RouteReplace(&settled); err != nil {
		return err
	}
	if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

const (
	loopbackIndex = 1 // of the first device of each network namespace (Linux, loopback_net_init)
	settledMetric = 1024
)

// sourceOf returns the address from which the node reaches others, or any of its own that is not for links alone; nil
// if there is none.
func sourceOf(family int, device netlink.Link) net.IP {
	others := net.IPv4(192, 0, 2, 1) // for documentation, so reached like most (RFC 5737, RFC 3849)
	if family == netlink.FAMILY_V6 {
		others = net.ParseIP("2001:db8::1")
	}
	if routes, err := netlink.RouteGet(others); err == nil && len(routes) > 0 && routes[0].Src != nil &&
		routes[0].LinkIndex != device.Attrs().Index {
		return routes[0].Src
	}
	addrs, err := netlink.AddrList(nil, family)
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if a.LinkIndex != device.Attrs().Index && a.IP.IsGlobalUnicast() {
			return a.IP
		}
	}
	return nil
}

// removeIPVS removes what IPVS mode left, apart from what connections use, unless end says that these may end. gone has
// what it removed, stays what is still there. Chains of iptables that use the ipsets are to be removed before.
func removeIPVS(exclude []netip.Prefix, end bool) (gone, stays *ipvsLeft, err error) {
	l, err := readIPVS(exclude)
	if err != nil {
		return nil, nil, err
	}
	gone, stays = &ipvsLeft{}, &ipvsLeft{others: l.others}
	if err := l.removeServers(gone, stays, end); err != nil {
		return gone, l, err
	}
	if err := l.removeAddresses(gone, stays, end); err != nil {
		return gone, l, err
	}
	if len(stays.servers) > 0 {
		stays.sets = l.sets // they tell which virtual servers are kube-proxy's
	} else if err := l.removeSets(gone, stays); err != nil {
		return gone, stays, err
	}
	switch {
	case len(stays.servers) > 0 || slices.ContainsFunc(stays.addresses, func(a netip.Addr) bool { return !l.others[a] }):
		return gone, stays, ErrInUse
	case stays.device != nil:
		return gone, stays, ErrOthersServer
	}
	return gone, stays, nil
}

func (l *ipvsLeft) removeServers(gone, stays *ipvsLeft, end bool) error {
	v, err := dialIPVS()
	if v == nil {
		return err
	}
	defer v.close()
	for _, s := range l.servers {
		if s.connections > 0 && !end {
			stays.servers = append(stays.servers, s)
			continue
		}
		if err := v.remove(s); err != nil {
			return err
		}
		gone.servers = append(gone.servers, s)
	}
	return nil
}

// removeAddresses removes the device, or those of its addresses that no virtual server and no socket has.
func (l *ipvsLeft) removeAddresses(gone, stays *ipvsLeft, end bool) error {
	if l.device == nil {
		return nil
	}
	used := map[netip.Addr]bool{}
	if err := hostaddr.Sockets("/proc", []string{"tcp", "tcp6", "udp", "udp6"}, func(at netip.AddrPort, _ bool) {
		used[at.Addr()] = true
	}); err != nil {
		return err
	}
	for _, s := range stays.servers {
		used[s.Addr.Addr()] = true
	}
	for _, a := range l.addresses {
		if used[a] && !end || l.others[a] {
			stays.addresses = append(stays.addresses, a)
		} else {
			gone.addresses = append(gone.addresses, a)
		}
	}
	for _, a := range gone.addresses {
		if err := removeAddress(l.device, a); err != nil {
			return fmt.Errorf("remove address %s from %s: %w", a, hostaddr.ServiceDevice, err)
		}
	}
	if len(stays.addresses) > 0 {
		stays.device = l.device
		return nil
	}
	gone.device = l.device
	if err := netlink.LinkDel(l.device); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", hostaddr.ServiceDevice, err)
	}
	return nil
}

// removeAddress removes an address, and the route that settleIPVS has changed.
func removeAddress(device netlink.Link, a netip.Addr) error {
	to := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
	if err := netlink.AddrDel(device, &netlink.Addr{IPNet: to}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	// Of IPv4 the kernel removes only a route without a source or with its own.
	route := localRoutesOf(device)
	route.Dst, route.Protocol = to, unix.RTPROT_STATIC
	if a.Is4() {
		route.Scope = unix.RT_SCOPE_HOST
	} else {
		route.LinkIndex, route.Priority = loopbackIndex, settledMetric
	}
	if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func (l *ipvsLeft) removeSets(gone, stays *ipvsLeft) error {
	var errs []error
	for _, name := range l.sets {
		if err := destroySet(name); err != nil {
			errs, stays.sets = append(errs, err), append(stays.sets, name)
			continue
		}
		gone.sets = append(gone.sets, name)
	}
	return errors.Join(errs...)
}

// StrictARP says that the node answers ARP as kube-proxy's ipvs.strictARP has it (arp_ignore 1 and arp_announce 2 for
// all interfaces). What it was before is not known.
func StrictARP() bool {
	for name, value := range map[string]string{"arp_ignore": "1", "arp_announce": "2"} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/" + name)
		if err != nil || strings.TrimSpace(string(text)) != value {
			return false
		}
	}
	return true
}

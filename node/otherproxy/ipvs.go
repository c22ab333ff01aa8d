package otherproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
	"nftproxy/node/hostaddr"
)

// What kube-proxy's IPVS mode leaves beside its chains of iptables: virtual servers, the device with the addresses of
// Services, and ipsets. None of it comes before our rules. IPVS takes packets after prerouting and, of the node's own
// processes, after the nat chains of output (include/uapi/linux/netfilter_ipv4.h, NF_IP_PRI_NAT_DST + 2 since before
// Linux 5.10), and looks at the destination that these have translated.

// ipvsLeft is what IPVS mode left.
type ipvsLeft struct {
	device netlink.Link // or nil
	// addresses are those of the device, without link-local ones.
	addresses []netip.Addr
	// servers are kube-proxy's. others has the addresses of all other virtual servers.
	servers []virtualServer
	others  map[netip.Addr]bool
	sets    []string
}

func (l *ipvsLeft) empty() bool {
	return l.device == nil && len(l.servers)+len(l.addresses)+len(l.sets) == 0
}

// rules names what was found, or a part of it.
func (l *ipvsLeft) rules() Rules {
	var parts []string
	for _, p := range []struct {
		n            int
		what, plural string
	}{{len(l.servers), "virtual server", "s"}, {len(l.addresses), "address", "es"}, {len(l.sets), "ipset", "s"}} {
		switch p.n {
		case 0:
		case 1:
			parts = append(parts, "1 "+p.what)
		default:
			parts = append(parts, fmt.Sprintf("%d %s%s", p.n, p.what, p.plural))
		}
	}
	return Rules{Kind: IPVS, Table: hostaddr.ServiceDevice, parts: strings.Join(parts, ", ")}
}

// ipvsThere says whether the device or an ipset of IPVS mode is there.
func ipvsThere() (bool, error) {
	device, err := hostaddr.FindServiceDevice()
	if err != nil || device != nil {
		return device != nil, err
	}
	names, err := setNames()
	return len(names) > 0, err
}

// readIPVS reads what IPVS mode left. Virtual servers of excluded addresses are not kube-proxy's.
func readIPVS(exclude []netip.Prefix) (l *ipvsLeft, err error) {
	l = &ipvsLeft{others: map[netip.Addr]bool{}}
	if l.device, err = hostaddr.FindServiceDevice(); err != nil {
		return nil, err
	}
	if l.device != nil {
		if l.addresses, err = addressesOf(l.device); err != nil {
			return nil, err
		}
	}
	if l.sets, err = setNames(); err != nil {
		return nil, err
	}
	if l.empty() {
		return l, nil // virtual servers without them cannot be kube-proxy's
	}
	nodePorts, err := l.nodePorts()
	if err != nil {
		return nil, err
	}
	v, err := dialIPVS()
	if v == nil {
		return l, err
	}
	defer v.close()
	servers, err := v.servers()
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		if s.ofKubeProxy(l.addresses, nodePorts, exclude) {
			l.servers = append(l.servers, s)
		} else {
			l.others[s.Addr.Addr()] = true
		}
	}
	return l, nil
}

// addressesOf returns the device's addresses.
func addressesOf(device netlink.Link) (list []netip.Addr, err error) {
	found, err := netlink.AddrList(device, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", hostaddr.ServiceDevice, err)
	}
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.Unmap().IsLinkLocalUnicast() {
			list = append(list, addr.Unmap())
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), nil
}

// nodePort is a port of a protocol, in one family.
type nodePort struct {
	family   ip.Family
	protocol uint8
	port     uint16
}

// nodePorts returns the node ports in kube-proxy's sets, whose elements are ports of a protocol.
func (l *ipvsLeft) nodePorts() (map[nodePort]bool, error) {
	ports := map[nodePort]bool{}
	for name, protocol := range map[string]uint8{"KUBE-NODE-PORT-TCP": unix.IPPROTO_TCP,
		"KUBE-NODE-PORT-UDP": unix.IPPROTO_UDP, "KUBE-NODE-PORT-SCTP-HASH": unix.IPPROTO_SCTP} {
		for _, f := range ip.Families() {
			set := name
			if f == ip.V6 {
				set = ipsetNameOf6(name)
			}
			if !slices.Contains(l.sets, set) {
				continue
			}
			if err := setPorts(set, func(port uint16) { ports[nodePort{f, protocol, port}] = true }); err != nil {
				return nil, err
			}
		}
	}
	return ports, nil
}

// ofKubeProxy says whether kube-proxy can have made the virtual server: it takes a Service's address on the device, or
// a node port, by address, protocol and port, and its servers get packets with a translated address. Somebody may have
// told kube-proxy that the address is not for it (excludeCIDRs).
func (s *virtualServer) ofKubeProxy(addresses []netip.Addr, nodePorts map[nodePort]bool, exclude []netip.Prefix) bool {
	addr := s.Addr.Addr()
	if s.mark != 0 || !s.whole || !s.natted || !slices.Contains([]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP,
		unix.IPPROTO_SCTP}, s.Protocol) ||
		slices.ContainsFunc(exclude, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return false
	}
	if _, bound := slices.BinarySearchFunc(addresses, addr, netip.Addr.Compare); bound {
		return true
	}
	return nodePorts[nodePort{ip.Of(addr), s.Protocol, s.Addr.Port()}]
}

// addVirtualServers adds the frontends of kube-proxy's virtual servers, without node ports, once the family has its
// chains. kube-proxy writes these after all virtual servers and their endpoints. Before, some virtual servers refuse
// connections, and what has to be masqueraded is not.
func addVirtualServers(c *conn, found Frontends) error {
	left, err := readIPVS(nil)
	if err != nil || len(left.servers) == 0 {
		return err
	}
	var complete ip.PerFamily[bool]
	for _, f := range ip.Families() {
		there, err := c.hasServiceRules(f)
		if err != nil {
			return err
		}
		*complete.Of(f) = there
	}
	for _, s := range left.servers {
		addr := s.Addr.Addr()
		if _, bound := slices.BinarySearchFunc(left.addresses, addr, netip.Addr.Compare); bound && *complete.Of(ip.Of(addr)) {
			found[s.Frontend] = true
		}
	}
	return nil
}

// hasServiceRules says whether kube-proxy's chain for Services has a rule, in either interface of iptables. kube-proxy
// makes the chain before its virtual servers, and the rules after.
func (c *conn) hasServiceRules(f ip.Family) (there bool, err error) {
	const table, chain = "nat", "KUBE-SERVICES"
	err = c.rules(f, table, chain, func(nfnetlink.Attributes) error { there = true; return nil })
	if err != nil {
		return false, fmt.Errorf("read chain %s in table %s: %w", chain, tableName(f, table), err)
	}
	if there {
		return true, nil
	}
	b, err := readLegacy(f, table)
	if err != nil {
		return false, fmt.Errorf("read table %s of iptables-legacy: %w", tableName(f, table), err)
	}
	// each chain ends with an entry that returns, which is none of these
	return slices.ContainsFunc(b.entries, func(e entry) bool {
		return e.chain == chain && !e.head && (e.accepts || e.target != "" || e.extension != "")
	}), nil
}

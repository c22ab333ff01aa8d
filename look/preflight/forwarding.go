package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/nft/ruleset"
	"nftproxy/node/forwarding"
)

// newInterfaces stands for those that are not made yet, as a pod's.
const newInterfaces = "new interfaces"

// forwarding tells of settings about packets that are not the node's own. What holds is said, by interface: the kernel
// has several names for each setting.
func (o Options) forwarding(tables ownTables) []Finding {
	const probe = "sysctl: net.ipv4.ip_forward"
	s, err := forwarding.Read(o.Proc)
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	found := []Finding{forwardsIPv4(s)}
	if serves, err := serving(tables, s); err != nil {
		found = append(found, failed("sysctl: net.ipv6.conf.all.forwarding", err))
	} else {
		found = append(found, forwardsIPv6(s, *serves.Of(ip.V6)), hasIPv6(s, *serves.Of(ip.V6)))
	}
	found = append(found, reversePath(s), o.routeLoopback(s, tables))
	return append(found, bridged(s, tables)...)
}

// entrances are the interfaces by which packets come in.
func entrances(s *forwarding.Settings) []forwarding.Interface {
	return slices.DeleteFunc(slices.Clone(s.Interfaces), func(i forwarding.Interface) bool {
		return !i.Up || i.Master != "" || i.Kind == "dummy"
	})
}

// which names the interfaces with a setting, and newInterfaces where these get it. all says that there are no others.
func which(s *forwarding.Settings, has func(forwarding.Conf) bool) (names []string, all bool) {
	all = true
	for _, i := range entrances(s) {
		if has(i.Conf) {
			names = append(names, i.Name)
			continue
		}
		all = false
	}
	if has(s.New) {
		return append(names, newInterfaces), all
	}
	return names, false
}

// forwardsIPv4 goes by the interface that a packet comes in by: net.ipv4.ip_forward only sets what each one has.
func forwardsIPv4(s *forwarding.Settings) Finding {
	const probe = "sysctl: net.ipv4.ip_forward"
	names, all := which(s, func(c forwarding.Conf) bool { return !*c.Forwards.Of(ip.V4) })
	switch {
	case len(names) == 0:
		return green(probe, "is 1, for each interface")
	case all:
		return red(probe, "is 0: the node forwards no packets of IPv4: pods on other nodes are not reached",
			"sysctl -w net.ipv4.ip_forward=1")
	}
	return yellow(probe, "packets of IPv4 that come in by "+shortList(names)+" are not forwarded: "+
		"net.ipv4.conf.INTERFACE.forwarding is 0 there",
		"sysctl -w net.ipv4.ip_forward=1 sets it for each interface, and for new ones")
}

// forwardsIPv6 goes by the setting for all interfaces: that of one interface says only whether it heeds router
// advertisements. From Linux 6.17 on, force_forwarding has an interface forward without.
func forwardsIPv6(s *forwarding.Settings, needed bool) Finding {
	const probe = "sysctl: net.ipv6.conf.all.forwarding"
	names, all := which(s, func(c forwarding.Conf) bool { return !*c.Forwards.Of(ip.V6) })
	switch {
	case len(names) == 0:
		return green(probe, "is 1")
	case !needed:
		return green(probe, "is 0, and the node has no Services of IPv6")
	case all:
		return yellow(probe, "is 0: the node forwards no packets of IPv6", "in a cluster with IPv6: sysctl -w "+
			"net.ipv6.conf.all.forwarding=1")
	}
	return yellow(probe, "is 0: packets of IPv6 that come in by "+shortList(names)+" are not forwarded",
		"in a cluster with IPv6: sysctl -w net.ipv6.conf.all.forwarding=1")
}

// hasIPv6 goes by the setting of each interface: that of all only sets what each one has.
func hasIPv6(s *forwarding.Settings, needed bool) Finding {
	const probe = "sysctl: net.ipv6.conf.*.disable_ipv6"
	names, _ := which(s, func(c forwarding.Conf) bool { return c.WithoutIPv6 })
	switch {
	case len(names) == 0:
		return green(probe, "is 0, for each interface")
	case !needed:
		return green(probe, "is 1 for "+shortList(names)+", and the node has no Services of IPv6")
	}
	return yellow(probe, "is 1 for "+shortList(names)+": the kernel drops packets of IPv6 there",
		"if clients or endpoints of IPv6 are there: sysctl -w net.ipv6.conf.INTERFACE.disable_ipv6=0")
}

// routeLoopback tells of interfaces by which others reach servers on 127.0.0.1. The CNI plugin portmap opens those that
// lead to pods with host ports: that alone is no finding.
func (o Options) routeLoopback(s *forwarding.Settings, tables ownTables) Finding {
	const probe = "sysctl: net.ipv4.conf.*.route_localnet"
	names, all := which(s, func(c forwarding.Conf) bool { return c.RoutesLoopback })
	pods, err := podDevices(tables, ip.V4)
	if err != nil {
		return failed(probe, err)
	}
	outside := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		i := s.Interface(name)
		return i != nil && (i.Kind == "veth" && !*i.Addressed.Of(ip.V4) || slices.Contains(pods, name))
	})
	switch {
	case len(names) == 0:
		return green(probe, "is 0, for each interface")
	case len(outside) == 0:
		return green(probe, "is 1 only for "+shortList(names)+", which lead to pods: these reach servers on 127.0.0.1 of "+
			"this node (the CNI plugin portmap sets it)")
	case all:
		return yellow(probe, "is 1: other hosts on the LAN can reach servers on 127.0.0.1 of this node (kube-proxy's "+
			"iptables mode sets net.ipv4.conf.all.route_localnet)",
			"once kube-proxy is gone: sysctl -w net.ipv4.conf.all.route_localnet=0, and of INTERFACE where that has it too")
	}
	return yellow(probe, "is 1 for "+shortList(outside)+": hosts there can reach servers on 127.0.0.1 of this node",
		"if nothing needs it: sysctl -w net.ipv4.conf.INTERFACE.route_localnet=0")
}

// serving says for which families nftproxy has Services. Before it has run, the node's addresses tell.
func serving(tables ownTables, s *forwarding.Settings) (serves ip.PerFamily[bool], err error) {
	list, err := tables()
	for _, f := range ip.Families() {
		if len(list) == 0 {
			*serves.Of(f) = slices.ContainsFunc(s.Interfaces, func(i forwarding.Interface) bool { return *i.Addressed.Of(f) })
		}
		for _, c := range list {
			*serves.Of(f) = *serves.Of(f) || c.Table.Family == f && ruleset.HasServices(c)
		}
	}
	return serves, err
}

func reversePath(s *forwarding.Settings) Finding {
	const probe, strict = "sysctl: net.ipv4.conf.*.rp_filter", 1
	names, _ := which(s, func(c forwarding.Conf) bool { return c.ReversePath == strict })
	if len(names) == 0 {
		return green(probe, "is strict for no interface: the greater of all and INTERFACE holds")
	}
	return yellow(probe, "is 1 for "+shortList(names)+": the kernel drops packets of IPv4 that come in there if their "+
		"answers would take another interface; some CNI plugins need loose mode",
		"if a CNI plugin has several ways to a pod: sysctl -w net.ipv4.conf.all.rp_filter=2, which holds for all interfaces")
}

// bridged tells of bridges with pods whose packets to each other rules do not see. A pod's packet to a Service goes
// through the node, where it is translated. The endpoint's answer stays on the bridge if both are there.
func bridged(s *forwarding.Settings, tables ownTables) []Finding {
	probes := ip.PerFamily[string]{"sysctl: net.bridge.bridge-nf-call-iptables",
		"sysctl: net.bridge.bridge-nf-call-ip6tables"}
	var found []Finding
	var tagged []string
	for _, f := range ip.Families() {
		probe := *probes.Of(f)
		bridges, err := podBridges(s, tables, f)
		if err != nil {
			return append(found, failed(probe, err))
		}
		var blind []string
		for _, b := range bridges {
			switch {
			case !s.Sees(b, f):
				blind = append(blind, b.Name)
			case !s.Bridged.VLAN && slices.ContainsFunc(s.Ports(b), func(p *forwarding.Interface) bool { return p.Tagged }):
				tagged = append(tagged, b.Name)
			}
		}
		found = append(found, callFinding(s, probe, f, bridges, blind))
	}
	if s.Bridged != nil {
		slices.Sort(tagged)
		found = append(found, taggedFinding(s, slices.Compact(tagged)),
			green("sysctl: net.bridge.bridge-nf-filter-pppoe-tagged", isText(s.Bridged.PPPoE)+
				"; pods' packets have no header of PPPoE"))
	}
	return found
}

// callFinding is about the bridges with pods of a family, of which rules do not see what some forward.
func callFinding(s *forwarding.Settings, probe string, f ip.Family, bridges []*forwarding.Interface,
	blind []string) Finding {
	is := "the kernel has no such setting: the module br_netfilter is not loaded"
	if s.Bridged != nil {
		is = isText(*s.Bridged.Calls.Of(f))
	}
	switch name := strings.TrimPrefix(probe, "sysctl: "); {
	case len(blind) > 0:
		return yellow(probe, fmt.Sprintf("%s. Rules do not see what %s forwards: a pod gets no answer from a Service of %s "+
			"that chooses an endpoint on the same bridge", is, shortList(blind), f.Name()),
			"if these are bridges of pods: modprobe br_netfilter && sysctl -w "+name+"=1, at each start of the node "+
				"(/etc/modules-load.d, /etc/sysctl.d)")
	case s.Bridged != nil && *s.Bridged.Calls.Of(f):
		return green(probe, is)
	case len(bridges) > 0:
		return green(probe, is+", but each bridge with two pods asks for it itself")
	}
	return green(probe, is+"; there is no bridge with two pods of "+f.Name()+", which would need it")
}

func taggedFinding(s *forwarding.Settings, bridges []string) Finding {
	const name = "net.bridge.bridge-nf-filter-vlan-tagged"
	switch {
	case len(bridges) > 0:
		return yellow("sysctl: "+name, fmt.Sprintf("is 0, and ports of %s send packets with a VLAN's tag: rules do not see "+
			"those that stay on the bridge, as the answers between pods there", shortList(bridges)),
			"sysctl -w "+name+"=1")
	case s.Bridged.VLAN:
		return green("sysctl: "+name, "is 1")
	}
	return green("sysctl: "+name, "is 0; no port to a pod has a VLAN with tags")
}

// podBridges returns the bridges that several pods of a family may use: those to endpoints in the tables, or where
// these have none, all with an address of the family.
func podBridges(s *forwarding.Settings, tables ownTables, f ip.Family) ([]*forwarding.Interface, error) {
	devices, err := podDevices(tables, f)
	var bridges []*forwarding.Interface
	for i := range s.Interfaces {
		b := &s.Interfaces[i]
		uses := slices.Contains(devices, b.Name) || len(devices) == 0 && *b.Addressed.Of(f)
		if b.Kind == "bridge" && uses && len(s.Ports(b)) > 1 {
			bridges = append(bridges, b)
		}
	}
	slices.SortFunc(bridges, func(a, b *forwarding.Interface) int { return cmp.Compare(a.Name, b.Name) })
	return bridges, err
}

func isText(on bool) string {
	if on {
		return "is 1"
	}
	return "is 0"
}

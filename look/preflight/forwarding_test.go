package preflight_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"nftproxy/look/preflight"
	"nftproxy/model/service"
)

// These are the names of the probes about forwarded packets.
const (
	forward4 = "sysctl: net.ipv4.ip_forward"
	forward6 = "sysctl: net.ipv6.conf.all.forwarding"
	reverse  = "sysctl: net.ipv4.conf.*.rp_filter"
	without6 = "sysctl: net.ipv6.conf.*.disable_ipv6"
	loopback = "sysctl: net.ipv4.conf.*.route_localnet"
	bridged4 = "sysctl: net.bridge.bridge-nf-call-iptables"
	bridged6 = "sysctl: net.bridge.bridge-nf-call-ip6tables"
	hairpins = "bridges"
)

// veth makes an interface with a peer in the same namespace; master may be empty.
func (w world) veth(name, master string) {
	w.Helper()
	h := w.ns.Handle()
	w.must(h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "at-" + name}))
	link, err := h.LinkByName(name)
	w.must(err)
	w.must(h.LinkSetUp(link))
	if master != "" {
		bridge, err := h.LinkByName(master)
		w.must(err)
		w.must(h.LinkSetMaster(link, bridge))
	}
}

func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// bridge makes a bridge with two ports, as of pods, and addresses.
func (w world) bridge(name string, addrs ...string) {
	w.Helper()
	w.must(w.ns.Bridge(name))
	for _, a := range addrs {
		w.must(w.ns.AddAddr(name, netip.MustParsePrefix(a)))
	}
	for _, port := range []string{"-1", "-2"} {
		w.veth(name+port, name)
	}
}

// TestForwardingByInterface: settings are told of by the interface where they hold, whatever that for all says.
func TestForwardingByInterface(t *testing.T) {
	w := newWorld(t)
	w.veth("eth0", "")
	w.veth("eth1.7", "")
	w.sysctl("net.ipv4.ip_forward", "1")
	w.sysctl("net.ipv6.conf.all.forwarding", "1")
	w.want(w.check(), preflight.Green, forward4)
	w.want(w.check(), preflight.Green, forward6)
	w.must(w.write("net/ipv4/conf/eth1.7/forwarding", "0"))
	w.must(w.write("net/ipv6/conf/eth1.7/forwarding", "0"))
	found := w.check()
	w.want(found, preflight.Yellow, forward4, "come in by eth1.7 are not forwarded")
	w.want(found, preflight.Green, forward6) // The kernel goes by that of all interfaces.
	w.must(w.write("net/ipv4/conf/eth1.7/forwarding", "1"))
	w.must(w.write("net/ipv4/conf/default/forwarding", "0"))
	w.want(w.check(), preflight.Yellow, forward4, "come in by new interfaces")
	w.sysctl("net.ipv4.ip_forward", "0")
	w.want(w.check(), preflight.Red, forward4, "pods on other nodes are not reached")
	w.must(w.write("net/ipv4/conf/eth0/forwarding", "1"))
	w.want(w.check(), preflight.Yellow, forward4, "eth1.7", "new interfaces")

	// IPv6 matters where the node has it.
	w.sysctl("net.ipv6.conf.all.forwarding", "0")
	w.want(w.check(), preflight.Green, forward6, "no Services of IPv6")
	w.must(w.ns.AddAddr("eth0", netip.MustParsePrefix("fd00:1::1/64")))
	w.want(w.check(), preflight.Yellow, forward6, "the node forwards no packets of IPv6")
	w.apply(&service.Service{Name: "ns/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}})
	w.want(w.check(), preflight.Green, forward6, "no Services of IPv6")
	w.apply(&service.Service{Name: "ns/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("fd00:96::1")}})
	w.want(w.check(), preflight.Yellow, forward6)

	// Without IPv6, forwarding it says nothing.
	w.sysctl("net.ipv6.conf.all.forwarding", "1")
	w.want(w.check(), preflight.Green, without6, "is 0, for each interface")
	w.must(w.write("net/ipv6/conf/eth1.7/disable_ipv6", "1"))
	w.want(w.check(), preflight.Yellow, without6, "is 1 for eth1.7:")
	w.must(w.write("net/ipv6/conf/default/disable_ipv6", "1"))
	w.want(w.check(), preflight.Yellow, without6, "is 1 for eth1.7, new interfaces:")
	w.apply(&service.Service{Name: "ns/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}})
	w.want(w.check(), preflight.Green, without6, "no Services of IPv6")
}

// TestLoopbackByInterface: others reach servers on 127.0.0.1 where the setting of all interfaces or of one says so. An
// interface to a pod is no finding.
func TestLoopbackByInterface(t *testing.T) {
	w := newWorld(t)
	w.veth("eth0", "")
	w.must(w.ns.AddAddr("eth0", netip.MustParsePrefix("192.168.0.1/24")))
	w.veth("pod1", "")
	w.want(w.check(), preflight.Green, loopback, "is 0, for each interface")
	w.must(w.write("net/ipv4/conf/pod1/route_localnet", "1"))
	w.want(w.check(), preflight.Green, loopback, "only for pod1, which lead to pods")
	w.must(w.write("net/ipv4/conf/eth0/route_localnet", "1"))
	w.want(w.check(), preflight.Yellow, loopback, "is 1 for eth0: hosts there")
	w.must(w.write("net/ipv4/conf/eth0/route_localnet", "0"))
	w.must(w.write("net/ipv4/conf/default/route_localnet", "1"))
	w.want(w.check(), preflight.Yellow, loopback, "is 1 for new interfaces:")
	w.sysctl("net.ipv4.conf.all.route_localnet", "1")
	w.want(w.check(), preflight.Yellow, loopback, "is 1: other hosts on the LAN")
}

// TestReversePath: the greater value of all interfaces and of one holds for it, and new interfaces have one, too.
func TestReversePath(t *testing.T) {
	w := newWorld(t)
	w.veth("eth0", "")
	w.veth("eth1", "")
	w.want(w.check(), preflight.Green, reverse)
	w.must(w.write("net/ipv4/conf/eth1/rp_filter", "1"))
	w.want(w.check(), preflight.Yellow, reverse, "is 1 for eth1:")
	w.must(w.write("net/ipv4/conf/default/rp_filter", "1"))
	w.want(w.check(), preflight.Yellow, reverse, "is 1 for eth1, new interfaces:")
	w.sysctl("net.ipv4.conf.all.rp_filter", "1")
	w.want(w.check(), preflight.Yellow, reverse, "is 1 for eth0, eth1, new interfaces:")
	w.sysctl("net.ipv4.conf.all.rp_filter", "2")
	w.want(w.check(), preflight.Green, reverse)
}

// TestBridgedPackets: a bridge with two pods is named if rules do not see what it forwards, by family, by the
// namespace's setting and by its own. Those without pods are not, and a bridge whose packets rules do not see needs no
// hairpin mode.
func TestBridgedPackets(t *testing.T) {
	w := newWorld(t)
	set := func(v4, v6 string) {
		t.Helper()
		w.sysctl("net.bridge.bridge-nf-call-iptables", v4)
		w.sysctl("net.bridge.bridge-nf-call-ip6tables", v6)
	}
	set("0", "0")
	w.must(w.ns.Bridge("virbr0"))
	w.must(w.ns.AddAddr("virbr0", netip.MustParsePrefix("192.168.122.1/24")))
	w.veth("alone", "virbr0")
	found := w.check()
	w.want(found, preflight.Green, bridged4, "is 0; there is no bridge with two pods of IPv4")
	w.want(found, preflight.Green, bridged6, "is 0; there is no bridge with two pods of IPv6")
	w.bridge("cni0", "10.244.0.1/24", "fd00:244::1/64")
	found = w.check()
	w.want(found, preflight.Yellow, bridged4, "what cni0 forwards", "sysctl -w net.bridge.bridge-nf-call-iptables=1")
	w.want(found, preflight.Yellow, bridged6, "what cni0 forwards", "sysctl -w net.bridge.bridge-nf-call-ip6tables=1")
	set("1", "0")
	found = w.check()
	w.want(found, preflight.Green, bridged4)
	w.want(found, preflight.Yellow, bridged6)
	set("0", "1")
	found = w.check()
	w.want(found, preflight.Yellow, bridged4)
	w.want(found, preflight.Green, bridged6)
	set("0", "0")
	w.must(w.ns.CallRules("cni0", true, false))
	found = w.check()
	w.want(found, preflight.Green, bridged4, "asks for it itself")
	w.want(found, preflight.Yellow, bridged6, "cni0")
	w.must(w.ns.CallRules("cni0", false, true))
	w.want(w.check(), preflight.Green, bridged6, "asks for it itself")

	// The endpoints say which bridges have pods.
	w.bridge("docker0", "172.17.0.1/16")
	w.want(w.check(), preflight.Yellow, bridged4, "what cni0, docker0 forwards")
	w.apply(&service.Service{
		Name: "ns/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints([]service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.0.2:80"), Node: "here", Ready: true, Serving: true},
		})}},
	})
	found = w.check()
	w.want(found, preflight.Yellow, bridged4, "what cni0 forwards")
	w.must(w.ns.CallRules("cni0", false, false))
	w.want(w.check(), preflight.Green, hairpins)
	set("1", "1")
	w.want(w.check(), preflight.Yellow, hairpins, "cni0: ports are not in hairpin mode")

	// Without the module there are no settings, and no bridge's own word counts.
	w.must(w.ns.CallRules("cni0", true, true))
	without := t.TempDir()
	w.must(os.MkdirAll(filepath.Join(without, "sys/net"), 0o755))
	for _, name := range []string{"thread-self", "self", "sys/net/ipv4", "sys/net/ipv6"} {
		w.must(os.Symlink("/proc/"+name, filepath.Join(without, name)))
	}
	w.proc = without
	found = w.check()
	w.want(found, preflight.Yellow, bridged4, "the module br_netfilter is not loaded", "what cni0 forwards",
		"modprobe br_netfilter")
	w.want(found, preflight.Yellow, bridged6, "what cni0 forwards")
}

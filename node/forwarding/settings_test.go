package forwarding_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"nftproxy/model/ip"
	"nftproxy/node/forwarding"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// world is a node with two pods, the second of which serves.
type world struct {
	*testing.T
	*testnet.Topology
	client, server *testnet.Pod
}

const port = 8080

func newWorld(t *testing.T, config testnet.Config) world {
	w := world{T: t, Topology: testnet.NewForTest(t, config)}
	for name, pod := range map[string]**testnet.Pod{"client": &w.client, "server": &w.server} {
		var err error
		if *pod, err = w.AddPod(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range w.server.Addrs {
		if _, err := w.server.NS.Serve(testnet.TCP, netip.AddrPortFrom(a, port), "server"); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w world) sysctl(name string, value int) {
	w.Helper()
	if err := w.Node.Sysctl(name, fmt.Sprint(value)); err != nil {
		w.Fatal(err)
	}
}

func (w world) read() *forwarding.Settings {
	w.Helper()
	var s *forwarding.Settings
	if err := w.Node.Do(func() (err error) {
		s, err = forwarding.Read("/proc")
		return err
	}); err != nil {
		w.Fatal(err)
	}
	return s
}

// answers says whether the client gets an answer from an address.
func (w world) answers(to netip.Addr) bool {
	w.Helper()
	answer, err := w.client.NS.Ask(w.Context(), testnet.TCP, netip.AddrPortFrom(to, port), time.Second)
	if err != nil {
		w.Fatal(err)
	}
	return answer.Outcome == testnet.Answered
}

func (w world) address(f ip.Family) netip.Addr {
	if f == ip.V6 {
		return w.server.Addrs.V6()
	}
	return w.server.Addrs.V4()
}

// TestForwards: the kernel forwards between two interfaces just when the settings say so of both, one for the packet
// and one for its answer.
func TestForwards(t *testing.T) {
	w := newWorld(t, testnet.Config{})
	one, two := w.client.HostInterface, w.server.HostInterface
	type change struct {
		name  string
		value int
	}
	for _, changes := range [][]change{
		{},
		{{"net.ipv4.conf." + one + ".forwarding", 0}},
		{{"net.ipv4.conf." + one + ".forwarding", 1}, {"net.ipv4.conf." + two + ".forwarding", 0}},
		{{"net.ipv4.ip_forward", 0}, {"net.ipv4.conf." + one + ".forwarding", 1}, {"net.ipv4.conf." + two + ".forwarding",
			1}},
		{{"net.ipv4.conf.default.forwarding", 1}, {"net.ipv4.conf." + one + ".forwarding", 0}},
		{{"net.ipv4.ip_forward", 1}},
		{{"net.ipv6.conf." + one + ".forwarding", 0}},
		{{"net.ipv6.conf.all.forwarding", 0}},
		{{"net.ipv6.conf." + one + ".forwarding", 1}, {"net.ipv6.conf." + two + ".forwarding", 1}},
		{{"net.ipv6.conf.all.forwarding", 1}},
	} {
		for _, c := range changes {
			w.sysctl(c.name, c.value)
		}
		s := w.read()
		for _, f := range ip.Families() {
			want := *s.Interface(one).Forwards.Of(f) && *s.Interface(two).Forwards.Of(f)
			if got := w.answers(w.address(f)); got != want {
				t.Errorf("after %v: %s: answered %t, the settings say %t", changes, f.Name(), got, want)
			}
		}
	}
	if _, err := w.Node.ReadSysctl("net.ipv6.conf.all.force_forwarding"); err == nil { // Linux 6.17
		w.sysctl("net.ipv6.conf.all.forwarding", 0)
		for _, name := range []string{one, two} {
			w.sysctl("net.ipv6.conf."+name+".force_forwarding", 1)
		}
		if s := w.read(); !*s.Interface(one).Forwards.Of(ip.V6) || *s.New.Forwards.Of(ip.V6) || !w.answers(w.address(ip.V6)) {
			t.Errorf("with force_forwarding: %+v", s)
		}
	}
}

// TestSees: the answer of a pod on the client's bridge is translated back just when the settings say that rules see
// what the bridge forwards, by those of the namespace and by its own.
func TestSees(t *testing.T) {
	w := newWorld(t, testnet.Config{Bridge: "cni0"})
	for _, cidr := range w.PodCIDRs { // as the plugin bridge has it; without, answers go by the node
		link, err := w.server.NS.Handle().LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		to := &net.IPNet{IP: cidr.Addr().AsSlice(), Mask: net.CIDRMask(cidr.Bits(), cidr.Addr().BitLen())}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}
		if err := w.server.NS.Handle().RouteReplace(route); err != nil {
			t.Fatal(err)
		}
	}
	services := ip.PerFamily[netip.Addr]{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")}
	if err := netfilter.NFTForTest(t).Load(w.Node, fmt.Sprintf(`
table ip t { chain pre { type nat hook prerouting priority -100; ip daddr %s dnat to %s; }; }
table ip6 t { chain pre { type nat hook prerouting priority -100; ip6 daddr %s dnat to %s; }; }
`, services[0], w.address(ip.V4), services[1], w.address(ip.V6))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ all4, all6, own4, own6 int }{{1, 1, 0, 0}, {0, 0, 0, 0}, {0, 1, 0, 0}, {1, 0, 0, 0},
		{0, 0, 1, 0}, {0, 0, 0, 1}, {0, 0, 1, 1}} {
		w.sysctl("net.bridge.bridge-nf-call-iptables", c.all4)
		w.sysctl("net.bridge.bridge-nf-call-ip6tables", c.all6)
		if err := w.Node.CallRules("cni0", c.own4 != 0, c.own6 != 0); err != nil {
			t.Fatal(err)
		}
		s := w.read()
		wants := ip.PerFamily[bool]{c.all4+c.own4 > 0, c.all6+c.own6 > 0}
		for _, f := range ip.Families() {
			want, got := *wants.Of(f), w.answers(*services.Of(f))
			if sees := s.Sees(s.Interface("cni0"), f); sees != want || got != want {
				t.Errorf("%+v: %s: the settings say %t, answered %t, want %t", c, f.Name(), sees, got, want)
			}
		}
	}
	if ports := w.read().Ports(w.read().Interface("cni0")); len(ports) != 2 {
		t.Errorf("%d ports", len(ports))
	}
}

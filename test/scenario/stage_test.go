package scenario_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
	"nftproxy/test/scenario"
)

// rules stand for a proxy; each service address has one behaviour.
const rules = `
table inet test {
	chain prerouting {
		type nat hook prerouting priority dstnat
		jump services
	}
	chain output {
		type nat hook output priority -100
		jump services
	}
	chain services {
		ip daddr 172.30.0.1 meta mark set 1 dnat ip to 10.0.0.1
		ip6 daddr fd00:30::1 meta mark set 1 dnat ip6 to fd00:10::1
		ip daddr 172.30.0.2 dnat ip to numgen random mod 2 map { 0: 10.0.0.1, 1: 10.0.9.1 }
		ip daddr 172.30.0.3 meta l4proto tcp reject with tcp reset
		ip daddr 172.30.0.3 reject
		ip daddr 172.30.0.4 reject
		ip daddr 172.30.0.5 drop
		ip daddr 172.30.0.8 dnat ip to 192.168.0.2
		ip6 daddr fd00:30::5 drop
		tcp dport 30001 dnat ip to 10.0.9.1
	}
	chain forward {
		type filter hook forward priority filter
		ip saddr { 172.30.0.6, 172.30.0.7 } drop
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		meta mark 1 masquerade fully-random
		ip daddr 172.30.0.7 masquerade fully-random
	}
}`

// services has two endpoints, of which one is on the node, and the node itself.
func services() service.Snapshot {
	b := snapshots.NewBuilder(service.Node{Name: scenario.NodeName})
	s := &service.Service{Name: "ns/s"}
	for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		var list []service.Endpoint
		for _, e := range []struct{ at, node string }{
			{"10.0.0.1:80", scenario.NodeName}, {"10.0.9.1:80", "other"}, {"[fd00:10::1]:80", scenario.NodeName},
			{"192.168.0.2:80", scenario.NodeName},
		} {
			list = append(list, service.Endpoint{Addr: netip.MustParseAddrPort(e.at), Node: e.node, Ready: true, Serving: true})
		}
		s.Ports = append(s.Ports, service.Port{Protocol: protocol, Port: 80, Endpoints: service.MergeEndpoints(list)})
	}
	b.Set(s)
	return b.Snapshot()
}

func addresses(list ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range list {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func step(t *testing.T, lines ...string) *scenario.Step {
	t.Helper()
	s := &scenario.Step{Addresses: addresses("192.168.0.2", "2001:db8::1")}
	for _, line := range lines {
		f, err := scenario.ParseFlow(line)
		if err != nil {
			t.Fatal(err)
		}
		s.Flows = append(s.Flows, f)
	}
	return s
}

func enter(t *testing.T, world *scenario.Stage, s *scenario.Step) {
	t.Helper()
	if err := world.Enter(s, services()); err != nil {
		t.Fatal(err)
	}
}

// newWorld is a stage with the rules.
func newWorld(t *testing.T, bridge string) *scenario.Stage {
	t.Helper()
	nft := netfilter.NFTForTest(t)
	world := scenario.StageForTest(t, scenario.StageConfig{Bridge: bridge})
	if err := nft.Load(world.Node, rules); err != nil {
		t.Fatal(err)
	}
	return world
}

// right are flows with what the rules do to them.
func right() []string {
	var list []string
	for _, protocol := range []string{"tcp", "udp", "sctp"} {
		for _, flow := range []string{
			"pod 10.0.0.7 -> 172.30.0.1:80/%s = 10.0.0.1:80 masqueraded",
			"pod 10.0.0.1 -> 172.30.0.1:80/%s = 10.0.0.1:80 masqueraded",
			"node 192.168.0.2 -> 172.30.0.1:80/%s = 10.0.0.1:80 masqueraded",
			"node 2001:db8::1 -> [fd00:30::1]:80/%s = [fd00:10::1]:80 masqueraded",
			"outside 2001:db8:9::9 -> [fd00:30::1]:80/%s = [fd00:10::1]:80 masqueraded",
			"pod 10.0.0.7 -> 172.30.0.2:80/%s = 10.0.0.1:80 | 10.0.9.1:80",
			"outside 203.0.113.1 -> 172.30.0.2:80/%s = 10.0.0.1:80 | 10.0.9.1:80",
			"outside 10.0.9.1 -> 172.30.0.1:80/%s = 10.0.0.1:80 masqueraded",
			"pod 10.0.0.7 -> 172.30.0.3:80/%s = refused",
			"outside 203.0.113.1 -> 172.30.0.3:80/%s = refused",
			"node 192.168.0.2 -> 172.30.0.3:80/%s = refused",
			"pod 10.0.0.7 -> 172.30.0.5:80/%s = dropped",
			"node 192.168.0.2 -> 172.30.0.5:80/%s = dropped",
			"outside 2001:db8:9::9 -> [fd00:30::5]:80/%s = dropped",
			"pod 10.0.0.7 -> 172.30.0.8:80/%s = 192.168.0.2:80",
			"pod 10.0.0.7 -> 172.30.0.9:80/%s = untouched",
			"node 192.168.0.2 -> 172.30.0.9:80/%s = untouched",
			"outside 203.0.113.1 -> 172.30.0.9:80/%s = untouched",
			"outside 203.0.113.1 -> 192.168.0.2:30002/%s = untouched",
			"pod 10.0.0.7 -> 192.168.0.2:30002/%s = untouched",
			"pod 10.0.0.7 -> 10.0.0.8:99/%s = untouched",
		} {
			list = append(list, fmt.Sprintf(flow, protocol))
		}
	}
	return append(list,
		"outside 203.0.113.1 -> 192.168.0.2:30001/tcp = 10.0.9.1:80",
		"pod 10.0.0.7 -> 172.30.0.3/icmp = refused",
		"node 192.168.0.2 -> 172.30.0.3/icmp = refused",
		"pod 10.0.0.7 -> 172.30.0.5/icmp = dropped",
		"pod 10.0.0.7 -> fd00:30::9/icmp = untouched",
		"outside 203.0.113.1 -> 192.168.0.2/icmp = untouched",
	)
}

func TestRight(t *testing.T) {
	for _, bridge := range []string{"", "cni0"} {
		t.Run("bridge "+bridge, func(t *testing.T) {
			world := newWorld(t, bridge)
			// A port translation needs its target's port.
			s := step(t, slices.DeleteFunc(right(), func(l string) bool { return strings.Contains(l, ":30001") })...)
			s.Flows = slices.DeleteFunc(s.Flows, func(f scenario.Flow) bool {
				return strings.Contains(f.Path(), "fd00:30::9") // a pod of one family has no way there
			})
			enter(t, world, s)
			for _, err := range world.Check(t.Context(), s.Flows) {
				t.Error(err)
			}
		})
	}
}

// TestWrong: each flow wants something else than it gets, and Check says so.
func TestWrong(t *testing.T) {
	world := newWorld(t, "")
	for _, test := range []struct{ flow, problem string }{
		{"pod 10.0.0.7 -> 172.30.0.1:80/tcp = 10.0.0.1:80", "got 10.0.0.1:80 masqueraded"},
		{"pod 10.0.0.7 -> 172.30.0.2:80/tcp = 10.0.0.1:80 | 10.0.9.1:80 masqueraded", "got 10.0.9.1:80"},
		{"pod 10.0.0.7 -> 172.30.0.2:80/tcp = 10.0.0.1:80", "got 10.0.9.1:80"},
		{"pod 10.0.0.7 -> 172.30.0.2:80/udp = 10.0.0.1:80 | 10.0.9.1:80 | 10.0.9.2:80", "only"},
		{"pod 10.0.0.7 -> 172.30.0.2:80/tcp = sticky 10.0.0.1:80 | 10.0.9.1:80", "moved"},
		{"pod 10.0.0.7 -> 172.30.0.3:80/tcp = dropped", "got refused by a reset after 1 SYNs"},
		{"pod 10.0.0.7 -> 172.30.0.3:80/udp = untouched", "got refused"},
		{"pod 10.0.0.7 -> 172.30.0.4:80/tcp = refused", "want a reset at once, got refused by ICMP"},
		{"pod 10.0.0.7 -> 172.30.0.9:80/tcp = dropped", "got untouched"},
		{"node 192.168.0.2 -> 172.30.0.9:80/tcp = refused", "got untouched"},
		// The answer is lost: to the client it looks as if the question was.
		{"pod 10.0.0.7 -> 172.30.0.6:80/tcp = dropped", "tcp 10.0.0.7:"},
		{"pod 10.0.0.7 -> 172.30.0.6:80/udp = dropped", "left the node"},
		{"pod 10.0.0.7 -> 172.30.0.7:80/sctp = dropped", "left the node"},
		{"pod 10.0.0.7 -> 172.30.0.6/icmp = dropped", "left the node"},
		{"outside 203.0.113.1 -> 192.168.0.2:30002/tcp = dropped", "got untouched"},
	} {
		s := step(t, test.flow)
		enter(t, world, s)
		var got []error
		for n := 0; n < 30 && len(got) == 0; n++ { // a client may not move for a while
			got = world.Check(t.Context(), s.Flows)
		}
		if len(got) != 1 || !strings.Contains(got[0].Error(), test.problem) || !strings.HasPrefix(got[0].Error(),
			s.Flows[0].Path()) {
			t.Errorf("%s: %v, want something about %q", test.flow, got, test.problem)
		}
	}
}

func TestObserve(t *testing.T) {
	world := newWorld(t, "")
	effort := scenario.Effort{Tries: 30, Timeout: 5 * time.Second}
	for flow, want := range map[string]string{
		"pod 10.0.0.7 -> 172.30.0.2:80/tcp = dropped":     "10.0.0.1:80 | 10.0.9.1:80",
		"node 192.168.0.2 -> 172.30.0.3:80/tcp = dropped": "refused by a reset after 1 SYNs",
		"node 192.168.0.2 -> 172.30.0.3:80/udp = dropped": "refused",
		"pod 10.0.0.7 -> 172.30.0.9:80/sctp = dropped":    "untouched",
		// no server at that port
		"outside 203.0.113.1 -> 192.168.0.2:30001/tcp = 10.0.9.1:80":  "refused by a reset after 1 SYNs",
		"outside 203.0.113.1 -> 172.30.0.1:80/udp = 10.0.9.1:80":      "10.0.0.1:80 masqueraded",
		"outside 2001:db8:9::9 -> [fd00:30::9]:80/udp = 10.0.0.1:80":  "untouched",
		"outside 2001:db8:9::9 -> [2001:db8::1]:80/tcp = 10.0.0.1:80": "untouched",
	} {
		s := step(t, flow)
		enter(t, world, s)
		got, err := world.Observe(t.Context(), s.Flows[0], effort)
		if err != nil || got.String() != want {
			t.Errorf("%s: %s, %v; want %s", s.Flows[0].Path(), got, err, want)
		}
	}
	s := step(t, "pod 10.0.0.7 -> 172.30.0.5:80/tcp = dropped")
	enter(t, world, s)
	if got, err := world.Observe(t.Context(), s.Flows[0],
		scenario.Effort{Tries: 2, Timeout: 30 * time.Millisecond}); err != nil || got.Fate != scenario.Dropped {
		t.Errorf("%s, %v; want dropped", got, err)
	}
}

// TestSteps: addresses, pods and servers come, go and move from place to place.
func TestSteps(t *testing.T) {
	for _, bridge := range []string{"", "cni0"} {
		t.Run("bridge "+bridge, func(t *testing.T) { testSteps(t, newWorld(t, bridge)) })
	}
}

func testSteps(t *testing.T, world *scenario.Stage) {
	first := step(t, "pod 10.0.0.7 -> 10.0.0.8:99/tcp = untouched", "outside 203.0.113.1 -> 203.0.113.2:1/tcp = untouched")
	enter(t, world, first)
	for _, err := range world.Check(t.Context(), first.Flows) {
		t.Error(err)
	}
	// An address becomes the node's, a client outside a pod, a pod goes outside,
	// and a server closes.
	second := step(t, "pod 203.0.113.1 -> 203.0.113.2:1/tcp = untouched", "node 192.168.0.2 -> 10.0.0.7:9/tcp = untouched",
		"node 203.0.113.2 -> 172.30.0.1:80/tcp = refused", "node 203.0.113.2 -> 172.30.0.9:80/tcp = untouched")
	second.Addresses = append(second.Addresses, addresses("203.0.113.2")...)
	second.Closed = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}
	enter(t, world, second)
	for _, err := range world.Check(t.Context(), second.Flows) {
		t.Error(err)
	}
	// And back.
	enter(t, world, first)
	for _, err := range world.Check(t.Context(), first.Flows) {
		t.Error(err)
	}
	if _, err := world.Observe(context.Background(), second.Flows[0],
		scenario.Effort{Tries: 1, Timeout: time.Second}); err != nil {
		t.Errorf("a client outside is where the pod was: %v", err)
	}
	if _, err := world.Observe(context.Background(), second.Flows[2],
		scenario.Effort{Tries: 1, Timeout: time.Second}); err == nil {
		t.Error("the node kept an address of the last step")
	}
}

func TestNothingIsLeft(t *testing.T) {
	testnet.SkipUnwanted(t)
	testnet.CheckLeaks(t, func(t *testing.T) {
		world, err := scenario.NewStage(scenario.StageConfig{Bridge: "cni0"})
		if err != nil {
			scenario.StageForTest(t, scenario.StageConfig{}) // skips or fails, as it should
			t.Fatal(err)
		}
		for _, s := range []*scenario.Step{step(t, right()...), step(t)} {
			enter(t, world, s)
			world.Check(t.Context(), s.Flows) // without rules most are wrong
		}
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	})
}

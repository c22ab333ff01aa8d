package testnet_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/test/lib/testnet"
)

// enough is a timeout that no answer of a working network reaches.
const enough = time.Minute

// little is a timeout for what must never be answered.
const little = 50 * time.Millisecond

func configs() map[string]testnet.Config {
	return map[string]testnet.Config{"veth": {}, "bridge": {Bridge: "cni0"}}
}

// everyProtocol calls test for each protocol and family.
func everyProtocol(t *testing.T, test func(t *testing.T, proto string, pick func(testnet.Addrs) netip.Addr)) {
	t.Helper()
	for _, proto := range []string{testnet.TCP, testnet.UDP, testnet.SCTP} {
		for family, pick := range map[string]func(testnet.Addrs) netip.Addr{
			"IPv4": testnet.Addrs.V4, "IPv6": testnet.Addrs.V6,
		} {
			t.Run(fmt.Sprintf("%s %s", proto, family), func(t *testing.T) { test(t, proto, pick) })
		}
	}
}

// expectAnswer asks and expects id's answer, unmasqueraded, from the given
// address.
func expectAnswer(t *testing.T, from *testnet.Namespace, source netip.Addr, proto string, to netip.AddrPort,
	id string) {
	t.Helper()
	got, err := from.Ask(context.Background(), proto, to, enough)
	if err != nil {
		t.Fatal(err)
	}
	want := testnet.Answer{Outcome: testnet.Answered, ID: id, Peer: got.Local}
	if diff := cmp.Diff(want, got, compareAddresses(), cmpopts.IgnoreFields(testnet.Answer{}, "Local", "Took",
		"Attempts")); diff != "" {
		t.Errorf("answer to %s %v (-want +got):\n%s", proto, to, diff)
	}
	if got.Local.Addr() != source || got.Local.Port() == 0 {
		t.Errorf("asked %v from %v, want from %v and a port", to, got.Local, source)
	}
}

func compareAddresses() cmp.Option {
	return cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})
}

func addPod(t *testing.T, add func(string, ...netip.Addr) (*testnet.Pod, error), name string) *testnet.Pod {
	t.Helper()
	pod, err := add(name)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func serve(t *testing.T, ns *testnet.Namespace, proto string, at netip.AddrPort, id string) *testnet.Server {
	t.Helper()
	s, err := ns.Serve(proto, at, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestEverybodyReachesEverybody(t *testing.T) {
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			top := testnet.NewForTest(t, config)
			a, b := addPod(t, top.AddPod, "a"), addPod(t, top.AddPod, "b")
			far := addPod(t, top.AddRemotePod, "far")
			nodeSources := top.NodeAddrs
			if config.Bridge != "" { // as with the bridge plugin
				nodeSources = testnet.Addrs{netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("fd00:244::1")}
			}
			everyProtocol(t, func(t *testing.T, proto string, pick func(testnet.Addrs) netip.Addr) {
				const port = 8080
				at := func(as testnet.Addrs) netip.AddrPort { return netip.AddrPortFrom(pick(as), port) }
				serve(t, b.NS, proto, at(b.Addrs), "b")
				serve(t, far.NS, proto, at(far.Addrs), "far")
				serve(t, top.Node, proto, at(top.NodeAddrs), "node")
				serve(t, top.Outside, proto, at(top.OutsideAddrs), "outside")

				expectAnswer(t, a.NS, pick(a.Addrs), proto, at(b.Addrs), "b")
				expectAnswer(t, b.NS, pick(b.Addrs), proto, at(b.Addrs), "b")
				expectAnswer(t, a.NS, pick(a.Addrs), proto, at(far.Addrs), "far")
				expectAnswer(t, far.NS, pick(far.Addrs), proto, at(b.Addrs), "b")
				expectAnswer(t, a.NS, pick(a.Addrs), proto, at(top.NodeAddrs), "node")
				expectAnswer(t, top.Node, pick(nodeSources), proto, at(b.Addrs), "b")
				expectAnswer(t, top.Node, pick(top.NodeAddrs), proto, at(far.Addrs), "far")
				expectAnswer(t, top.Outside, pick(top.OutsideAddrs), proto, at(top.NodeAddrs), "node")
				expectAnswer(t, top.Node, pick(top.NodeAddrs), proto, at(top.OutsideAddrs), "outside")
			})
		})
	}
}

func TestOutcomes(t *testing.T) {
	top := testnet.NewForTest(t, testnet.Config{})
	pod := addPod(t, top.AddPod, "pod")
	serviceAddrs := testnet.Addrs{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:172::1")}
	everyProtocol(t, func(t *testing.T, proto string, pick func(testnet.Addrs) netip.Addr) {
		closed := testnet.Refused
		if proto == testnet.SCTP {
			closed = testnet.Unreachable // protocol unreachable: kernels with SCTP sockets would send an ABORT
		}
		for _, test := range []struct {
			what    string
			from    *testnet.Namespace
			to      testnet.Addrs
			timeout time.Duration
			want    testnet.Outcome
		}{
			{"pod asks closed port of the node", pod.NS, top.NodeAddrs, enough, closed},
			{"node asks closed port of a pod", top.Node, pod.Addrs, enough, closed},
			{"pod asks an address that nobody has", pod.NS, serviceAddrs, little, testnet.TimedOut},
			{"node asks an address that nobody has", top.Node, serviceAddrs, little, testnet.TimedOut},
			{"outside asks a pod", top.Outside, pod.Addrs, enough, testnet.Unreachable},
		} {
			got, err := test.from.Ask(context.Background(), proto, netip.AddrPortFrom(pick(test.to), 81), test.timeout)
			if err != nil {
				t.Errorf("%s: %v", test.what, err)
			} else if got.Outcome != test.want {
				t.Errorf("%s: %s, want %s", test.what, got.Outcome, test.want)
			}
		}
	})
}

// TestNobodyAnswersForServices: what the node sends to a service address leaves
// it, and that is all. TCP notices an ICMP error at its first retransmission,
// after a second.
func TestNobodyAnswersForServices(t *testing.T) {
	topology := testnet.NewForTest(t, testnet.Config{})
	for _, to := range []string{"10.96.0.1:80", "[fd00:10:96::1]:80"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			answer, err := topology.Node.Ask(context.Background(), testnet.TCP, netip.MustParseAddrPort(to),
				1200*time.Millisecond)
			if err != nil || answer.Outcome != testnet.TimedOut {
				t.Errorf("%s, %v, want that nobody answers", answer.Outcome, err)
			}
		})
	}
}

func TestRemovedPodIsGone(t *testing.T) {
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			top := testnet.NewForTest(t, config)
			pod, other := addPod(t, top.AddPod, "pod"), addPod(t, top.AddPod, "other")
			at := netip.AddrPortFrom(pod.Addrs.V4(), 80)
			serve(t, pod.NS, testnet.TCP, at, "first")
			expectAnswer(t, other.NS, other.Addrs.V4(), testnet.TCP, at, "first")

			if err := top.RemovePod("pod"); err != nil {
				t.Fatal(err)
			}
			if _, err := top.Node.Handle().LinkByName(pod.HostInterface); err == nil {
				t.Errorf("interface %s is still there", pod.HostInterface)
			}
			if err := top.RemovePod("pod"); err == nil {
				t.Error("the pod could be removed twice")
			}
			if got, err := other.NS.Ask(context.Background(), testnet.TCP, at, little); err != nil ||
				got.Outcome == testnet.Answered {
				t.Errorf("the removed pod's address: %v, %v", got, err)
			}

			again, err := top.AddPod("pod", pod.Addrs...)
			if err != nil {
				t.Fatal(err)
			}
			serve(t, again.NS, testnet.TCP, at, "second")
			expectAnswer(t, again.NS, again.Addrs.V4(), testnet.TCP, at, "second")
		})
	}
}

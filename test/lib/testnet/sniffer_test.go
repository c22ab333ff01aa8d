package testnet_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/test/lib/testnet"
)

func sniff(t *testing.T, top *testnet.Topology, prefixes ...string) *testnet.Sniffer {
	t.Helper()
	var ps []netip.Prefix
	for _, p := range prefixes {
		ps = append(ps, netip.MustParsePrefix(p))
	}
	s, err := top.SniffUplink(ps...)
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

func expectPackets(t *testing.T, s *testnet.Sniffer, want ...testnet.Packet) {
	t.Helper()
	got, err := s.Packets()
	if err != nil {
		t.Fatal(err)
	}
	// Of ::/0, too: interfaces announce their multicast groups when they like.
	got = slices.DeleteFunc(got, func(p testnet.Packet) bool { return p.Dst.Addr().IsMulticast() })
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), compareAddresses()); diff != "" {
		t.Errorf("sniffed packets (-want +got):\n%s", diff)
	}
}

// sendUDP sends datagrams from a socket of its own and returns its address.
func sendUDP(t *testing.T, ns *testnet.Namespace, to netip.AddrPort, times int) netip.AddrPort {
	t.Helper()
	conn, err := ns.Dial(context.Background(), "udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range times {
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

func TestSnifferSeesWhatLeaves(t *testing.T) {
	top := testnet.NewForTest(t, testnet.Config{})
	pod, far := addPod(t, top.AddPod, "pod"), addPod(t, top.AddRemotePod, "far")
	for _, test := range []struct {
		what     string
		from     *testnet.Namespace
		source   testnet.Addrs
		services testnet.Addrs
	}{
		{"pod", pod.NS, pod.Addrs, testnet.Addrs{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:172::1")}},
		{"node", top.Node, top.NodeAddrs, testnet.Addrs{netip.MustParseAddr("172.30.0.2"),
			netip.MustParseAddr("fd00:172::2")}},
	} {
		for family, pick := range map[string]func(testnet.Addrs) netip.Addr{
			"IPv4": testnet.Addrs.V4, "IPv6": testnet.Addrs.V6} {
			t.Run(test.what+" "+family, func(t *testing.T) {
				s := sniff(t, top, "172.30.0.0/16", "fd00:172::/112")
				expectPackets(t, s)
				to := netip.AddrPortFrom(pick(test.services), 53)
				// To the remote pod, as after DNAT: it passes the wire too.
				remote := netip.AddrPortFrom(pick(far.Addrs), 53)
				serve(t, far.NS, testnet.UDP, remote, "far")
				sendUDP(t, test.from, remote, 3)
				udp := testnet.Packet{Src: sendUDP(t, test.from, to, 1), Dst: to, Protocol: 17}
				expectPackets(t, s, udp)

				sctp := testnet.Packet{Src: netip.AddrPortFrom(pick(test.source), 5000), Dst: to, Protocol: 132}
				if err := test.from.SendSCTPInit(sctp.Src, to); err != nil {
					t.Fatal(err)
				}
				expectPackets(t, s, udp, sctp)
				expectPackets(t, s, udp, sctp) // reading takes nothing away
			})
		}
	}
	t.Run("TCP", func(t *testing.T) {
		s := sniff(t, top, "172.30.0.0/16")
		to := netip.MustParseAddrPort("172.30.0.3:80")
		if got, err := pod.NS.Ask(context.Background(), testnet.TCP, to, little); err != nil ||
			got.Outcome != testnet.TimedOut {
			t.Fatalf("got %v, %v, want a time-out", got, err)
		}
		got, err := s.Packets()
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 || got[0].Dst != to || got[0].Protocol != 6 || got[0].Src.Addr() != pod.Addrs.V4() {
			t.Errorf("sniffed %v, want a TCP packet to %v", got, to)
		}
	})
}

// TestSnifferMissesNothing counts datagrams that were sent at full speed
// immediately before.
func TestSnifferMissesNothing(t *testing.T) {
	top := testnet.NewForTest(t, testnet.Config{})
	pod := addPod(t, top.AddPod, "pod")
	s := sniff(t, top, "172.30.0.0/16")
	to := netip.MustParseAddrPort("172.30.0.1:53")
	sent := 0
	for round := range 20 {
		for _, from := range []*testnet.Namespace{pod.NS, top.Node} {
			sendUDP(t, from, to, 5)
			sent += 5
		}
		got, err := s.Packets()
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != sent {
			t.Fatalf("after round %d: sniffed %d of %d packets", round, len(got), sent)
		}
	}
}

func TestSnifferFilter(t *testing.T) {
	top := testnet.NewForTest(t, testnet.Config{})
	for _, test := range []struct {
		prefix      string
		seen, other []string
	}{
		{"0.0.0.0/0", []string{"172.30.0.1", "8.8.8.8"}, []string{"fd00:172::1"}},
		{"172.16.0.0/12", []string{"172.16.0.0", "172.31.255.255"}, []string{"172.15.255.255", "172.32.0.0"}},
		{"172.30.0.7/32", []string{"172.30.0.7"}, []string{"172.30.0.6", "172.30.0.8"}},
		{"::/0", []string{"fd00:172::1", "2001:db8::"}, []string{"172.30.0.1"}},
		{"fd00:172::/35", []string{"fd00:172::", "fd00:172:1fff:ffff::"}, []string{"fd00:172:2000::", "fd00:171::"}},
		{"fd00:172::/64", []string{"fd00:172::ffff:0:0:1"}, []string{"fd00:172:0:1::"}},
		{"fd00:172::/108", []string{"fd00:172::f:ffff"}, []string{"fd00:172::10:0", "fd00:172::1:0:0"}},
		{"fd00:172::7/128", []string{"fd00:172::7"}, []string{"fd00:172::6", "fd00:172::1:7"}},
	} {
		t.Run(test.prefix, func(t *testing.T) {
			s := sniff(t, top, "192.0.2.0/24", test.prefix, "2001:db8:ffff::/64")
			var want []testnet.Packet
			for i, list := range [][]string{test.other, test.seen, test.other} {
				for _, address := range list {
					to := netip.AddrPortFrom(netip.MustParseAddr(address), 9)
					src := sendUDP(t, top.Node, to, 1)
					if i == 1 {
						want = append(want, testnet.Packet{Src: src, Dst: to, Protocol: 17})
					}
				}
			}
			expectPackets(t, s, want...)
		})
	}
}

func ExamplePacket_String() {
	fmt.Println(testnet.Packet{
		Src: netip.MustParseAddrPort("10.244.0.2:40000"), Dst: netip.MustParseAddrPort("172.30.0.1:53"), Protocol: 17,
	})
	// Output: udp 10.244.0.2:40000 -> 172.30.0.1:53
}

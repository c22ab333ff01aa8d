package ruleset_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/testnet"
)

// BenchmarkMasqueradedPacket sends first packets of connections that are masqueraded, and of others: with a
// label of the connection as the rules' memory, and with a bit of the packet's mark. The two programs take
// turns. The figures are medians of turns of 20 packets, from the client's send until the packet has left.
func BenchmarkMasqueradedPacket(b *testing.B) {
	const packets = 20
	programs := map[string]service.Settings{
		"label": {ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		"mark":  {ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, MasqueradeMark: 0x4000},
	}
	senders, took := map[string]*sender{}, map[string][]time.Duration{}
	for name, settings := range programs {
		s := newSender(b)
		s.letOut(b)
		must(b, s.c.Apply(load(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable, Settings: settings}, countedSnapshot("198.18.0.1:80", "198.18.0.2:80")))))
		senders[name] = s
	}
	pod := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}) }
	names := []string{"label", "mark"}
	b.ResetTimer()
	for i := range b.N {
		for _, name := range names {
			s := senders[name]
			for what, from := range map[string]func(int) netip.Addr{"masqueraded": inRanges(5), "kept": pod} {
				to := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), firstPort)
				took[name+"-"+what] = append(took[name+"-"+what], s.time(b, packets, from, to, nil))
			}
			if i%50 == 0 {
				must(b, s.ns.FlushConntrack())
			}
		}
		slices.Reverse(names)
	}
	b.StopTimer()
	for name, list := range took {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Nanoseconds())/packets, fmt.Sprintf("ns/%s", name))
	}
}

// letOut has the packets to endpoints leave by a link to a namespace that drops them, so that they pass all hooks.
func (s *sender) letOut(t testing.TB) {
	t.Helper()
	peer := testnet.NamespaceForTest(t, "peer")
	must(t, testnet.Pair(testnet.End{NS: s.ns, Link: "out"}, testnet.End{NS: peer, Link: "in"}))
	link, err := s.ns.Handle().LinkByName("out")
	must(t, err)
	must(t, s.ns.Handle().AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{192, 168, 7, 1}, Mask: net.CIDRMask(24, 32)}}))
	gateway := net.IP{192, 168, 7, 2}
	must(t, s.ns.Handle().NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, IP: gateway, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT,
	}))
	// A more exact route than the sender's black hole.
	for _, to := range []*net.IPNet{
		{IP: net.IP{198, 18, 0, 0}, Mask: net.CIDRMask(16, 32)},
		{IP: net.IP{10, 96, 0, 0}, Mask: net.CIDRMask(16, 32)},
	} {
		must(t, s.ns.Handle().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: gateway}))
	}
}

package ruleset_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
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
		must(b, s.c.Apply(load(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable, Settings: settings},
			countedSnapshot("198.18.0.1:80", "198.18.0.2:80")))))
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
	must(t, s.ns.Handle().AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{192, 168, 7, 1},
		Mask: net.CIDRMask(24, 32)}}))
	gateway := net.IP{192, 168, 7, 2}
	must(t, s.ns.Handle().NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, IP: gateway, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		State: netlink.NUD_PERMANENT,
	}))
	// A more exact route than the sender's black hole.
	for _, to := range []*net.IPNet{
		{IP: net.IP{198, 18, 0, 0}, Mask: net.CIDRMask(16, 32)},
		{IP: net.IP{10, 96, 0, 0}, Mask: net.CIDRMask(16, 32)},
	} {
		must(t, s.ns.Handle().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: gateway}))
	}
}

// BenchmarkMasqueradeClash has two clients with one source port send their first packets to one address in
// the same moment, on two processors, in each way in which the kernel can choose the port that a masqueraded
// connection gets. It reports how many of the packets the kernel dropped, since both got the same port.
func BenchmarkMasqueradeClash(b *testing.B) {
	cmd := netfilter.NFTForTest(b)
	for _, ports := range []string{"", "random", "fully-random"} {
		b.Run("masquerade-"+ports, func(b *testing.B) {
			s := newSender(b)
			s.letOut(b)
			must(b, cmd.Load(s.ns, "table ip t {\n chain p {\n type nat hook postrouting priority 100;\n ip saddr 20.0.0.0/8 "+
				"masquerade "+ports+"\n }\n}\n"))
			var round, lost [2]atomic.Int64
			var clients sync.WaitGroup
			for i := range 2 {
				clients.Go(func() {
					defer round[i].Store(int64(b.N)) // a client that gives up holds up no other
					if err := s.ns.Do(func() error { return sendTogether(b.N, i, &round, &lost[i]) }); err != nil {
						b.Error(err)
					}
				})
			}
			clients.Wait()
			b.ReportMetric(100*float64(lost[0].Load()+lost[1].Load())/float64(2*b.N), "%lost")
		})
	}
}

// sendTogether sends a first packet in each round, when the other client is in this round too.
func sendTogether(rounds, client int, round *[2]atomic.Int64, lost *atomic.Int64) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := netip.MustParseAddrPort("198.18.0.1:5060")
	for r := range rounds {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{20, byte(client), byte(r >> 8), byte(r)}), uint16(2000+r%50_000))
		packet := datagram(from, to)
		round[client].Store(int64(r))
		for round[1-client].Load() < int64(r) { // waiting for an event would cost the moment
		}
		switch err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err {
		case nil:
		case unix.EPERM:
			lost.Add(1)
		default:
			return err
		}
	}
	return nil
}

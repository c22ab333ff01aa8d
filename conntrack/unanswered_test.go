package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	"nftproxy/test/lib/testnet"
)

// unansweredFlow is flow number i to an endpoint.
func unansweredFlow(protocol service.Protocol, i int, endpoint string) Flow {
	src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 16), byte(i >> 8)}), uint16(1024+i&0xff))
	f := Flow{Protocol: protocol, Original: Tuple{src, netip.MustParseAddrPort("10.96.0.10:80")}}
	f.Reply = Tuple{f.Original.Dst, src}
	if endpoint != "" {
		f.Reply.Src = netip.MustParseAddrPort(endpoint)
	}
	return f
}

// Of all entries only TCP connections count that are translated and have no answer.
func TestUnanswered(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	for i, f := range []Flow{
		unansweredFlow(service.TCP, 0, "10.244.1.5:8080"), unansweredFlow(service.UDP, 1, "10.244.1.6:8080"),
		unansweredFlow(service.TCP, 2, ""), unansweredFlow(service.TCP, 3, "10.244.1.7:8080"), unansweredFlow(service.TCP, 4,
			"10.244.1.8:8080"),
	} {
		fill(t, ns, i, i+1, func(int) Flow { return f })
	}
	answer(t, ns, 3, 4, func(i int) Flow { return unansweredFlow(service.TCP, i, "10.244.1.7:8080") })
	var got []string
	if _, err := open(t, ns).Unanswered(t.Context(), func(f Flow) error {
		got = append(got, f.Reply.Src.String())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if want := []string{"10.244.1.5:8080", "10.244.1.8:8080"}; !slices.Equal(got, want) {
		t.Errorf("unanswered: %q, want %q", got, want)
	}
}

// BenchmarkUnanswered is the dump of unanswered flows: none, a hundred or 2,000 of them beside so many answered ones.
func BenchmarkUnanswered(b *testing.B) {
	for _, c := range []struct{ answered, unanswered int }{{0, 0}, {10_000, 0}, {10_000, 100}, {200_000, 0},
		{200_000, 100}, {200_000, 2_000}} {
		b.Run(fmt.Sprintf("answered=%d/unanswered=%d", c.answered, c.unanswered), func(b *testing.B) {
			ns := testnet.NamespaceForTest(b, "node")
			table := open(b, ns)
			flow := func(i int) Flow { return unansweredFlow(service.TCP, i, "10.244.1.5:8080") }
			fill(b, ns, 0, c.unanswered, flow)
			fill(b, ns, c.unanswered, c.unanswered+c.answered, flow)
			answer(b, ns, c.unanswered, c.unanswered+c.answered, flow)
			b.ResetTimer()
			var cpu time.Duration
			n := 0
			for range b.N {
				n = 0
				took, err := table.Unanswered(b.Context(), func(Flow) error { n++; return nil })
				if cpu += took; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(cpu.Seconds()*1000/float64(b.N), "cpu-ms/op")
			if n != c.unanswered {
				b.Fatalf("%d flows, want %d", n, c.unanswered)
			}
		})
	}
}

// answer sets the status of flows to that of established connections.
func answer(b testing.TB, ns *testnet.Namespace, from, to int, flow func(int) Flow) {
	b.Helper()
	s, err := nfnetlink.Dial(nfnetlink.Config{NetNS: ns.Fd()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for i := from; i < to; i++ {
		f := flow(i)
		var e nfnetlink.Encoder
		at := e.BeginMessage(unix.NFNL_SUBSYS_CTNETLINK<<8, unix.NLM_F_ACK, 0, uint8(f.Family()))
		f.addTuple(&e, ctaTupleOrig, f.Original)
		e.Uint32(ctaStatus, uint32(SeenReply|Assured|DstNAT)|1<<3)
		e.EndMessage(at)
		if err := s.Send(e.B); err != nil {
			b.Fatal(err)
		}
		datagram, err := s.Queued()
		if err != nil {
			b.Fatal(err)
		}
		for m := range nfnetlink.Messages(datagram) {
			if err := m.Err(); err != nil {
				b.Fatalf("flow %d: %v", i, err)
			}
		}
	}
}

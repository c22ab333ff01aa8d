package conntrack

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	timo "github.com/ti-mo/conntrack"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"nftproxy/internal/service"
	"nftproxy/internal/testnet"
)

// Run as root, for example:
//
//	go test ./conntrack -run '^$' -bench Pass -benchtime 20x -benchmem
//
// CONNTRACK_FLOWS sets the size of the table; it is 200,000 otherwise.
func BenchmarkPass(b *testing.B) {
	size := 200_000
	if s := os.Getenv("CONNTRACK_FLOWS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		size = n
	}
	const stale = 2000
	for _, share := range []struct {
		name     string
		undnated int
	}{{"none-DNATed", size - stale}, {"all-DNATed", 0}} {
		b.Run(share.name, func(b *testing.B) {
			ns := testnet.NamespaceForTest(b, "node")
			fill(b, ns, 0, share.undnated, udpFlow)
			fill(b, ns, share.undnated, size-stale, dnatedFlow)
			b.Run("nothing-stale", func(b *testing.B) { benchmarkPass(b, ns, 0) })
			b.Run(fmt.Sprintf("stale-%d", stale), func(b *testing.B) { benchmarkPass(b, ns, stale) })
			b.Run(fmt.Sprintf("stale-%d-by-ti-mo", stale), func(b *testing.B) { benchmarkTimo(b, ns, stale) })
		})
	}
}

func benchmarkPass(b *testing.B, ns *testnet.Namespace, stale int) {
	index := NewIndex(Options{})
	index.Update(parse(b, cluster))
	c := NewCleaner(open(b, ns), index, nil)
	defer peak(b)()
	for b.Loop() {
		b.StopTimer()
		fill(b, ns, 0, stale, staleFlow)
		b.StartTimer()
		removed := map[Reason]int{}
		if _, err := c.sweep(b.Context(), Scope{Everything: true}, removed); err != nil || removed[ServiceAddress] != stale {
			b.Fatalf("removed %v, %v", removed, err)
		}
	}
}

// benchmarkTimo is the same by the library alone.
func benchmarkTimo(b *testing.B, ns *testnet.Namespace, stale int) {
	conn := dialCreator(b, ns)
	defer peak(b)()
	for b.Loop() {
		b.StopTimer()
		fill(b, ns, 0, stale, staleFlow)
		b.StartTimer()
		filter := timo.NewFilter().Status(0).StatusMask(uint32(DstNAT))
		list, err := conn.DumpFilter(filter, nil)
		if err != nil {
			b.Fatal(err)
		}
		dst := staleFlow(0).Original.Dst
		removed := 0
		for _, f := range list {
			if f.TupleOrig.IP.DestinationAddress == dst.Addr() && f.TupleOrig.Proto.DestinationPort == dst.Port() {
				if err := conn.Delete(f); err != nil {
					b.Fatal(err)
				}
				removed++
			}
		}
		if removed != stale {
			b.Fatalf("removed %d", removed)
		}
	}
}

// peak reports by how much the process's memory grew at most until the
// function it returns is called.
func peak(b *testing.B) func() {
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // Linux 4.0: resets VmHWM
		b.Fatal(err)
	}
	before := memory(b, "VmRSS:")
	return func() { b.ReportMetric(float64(memory(b, "VmHWM:")-before)/1024, "peak-MiB") }
}

// memory returns a line of /proc/self/status in KiB.
func memory(b *testing.B, key string) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if f := strings.Fields(string(line)); f[0] == key {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatalf("no %s in /proc/self/status", key)
	return 0
}

func numbered(i int, dst netip.AddrPort) Flow {
	src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 16), byte(i >> 8)}), uint16(1024+i&0xff))
	return Flow{Protocol: service.UDP, Original: Tuple{src, dst}, Reply: Tuple{dst, src}}
}

func udpFlow(i int) Flow   { return numbered(i, netip.MustParseAddrPort("198.51.100.1:53")) }
func staleFlow(i int) Flow { return numbered(i, netip.MustParseAddrPort("10.96.0.1:80")) }

// dnatedFlow really went to a pod.
func dnatedFlow(i int) Flow {
	f := numbered(i, netip.MustParseAddrPort("10.96.0.2:443"))
	f.Reply.Src = netip.MustParseAddrPort("10.0.0.1:8080")
	return f
}

// fill creates the flows numbered from (included) to to, over ctnetlink.
func fill(b *testing.B, ns *testnet.Namespace, from, to int, flow func(int) Flow) {
	b.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd(), MessageBufferSize: 4096})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for from < to {
		batch := make([]netlink.Message, min(deleteBatch, to-from))
		for i := range batch {
			f := flow(from + i)
			batch[i] = createRequest(&f)
		}
		from += len(batch)
		if _, err := conn.SendMessages(batch); err != nil {
			b.Fatal(err)
		}
		for range batch {
			if _, err := conn.Receive(); err != nil {
				b.Fatalf("create flows up to %d: %v", from, err)
			}
		}
	}
}

func createRequest(f *Flow) netlink.Message {
	const (
		ctNew            = 0
		ctaNATDst        = 13
		ctaNATV4MinIP    = 1
		ctaNATProto      = 3
		ctaProtoNATPorts = 1
	)
	tuple := func(kind uint16, t Tuple) netfilter.Attribute {
		return nested(kind,
			nested(ctaTupleIP,
				netfilter.Attribute{Type: ctaIPv4Src, Data: t.Src.Addr().AsSlice()},
				netfilter.Attribute{Type: ctaIPv4Dst, Data: t.Dst.Addr().AsSlice()}),
			nested(ctaTupleProto, netfilter.Attribute{Type: ctaProtoNum, Data: []byte{uint8(f.Protocol)}},
				be16(ctaProtoSrcPort, t.Src.Port()), be16(ctaProtoDstPort, t.Dst.Port())))
	}
	attrs := []netfilter.Attribute{
		tuple(ctaTupleOrig, f.Original), tuple(ctaTupleReply, Tuple{f.Original.Dst, f.Original.Src}),
		be32(ctaStatus, 1<<3), be32(ctaTimeout, 3600), // confirmed
	}
	if f.Reply.Src != f.Original.Dst {
		attrs = append(attrs, nested(ctaNATDst,
			netfilter.Attribute{Type: ctaNATV4MinIP, Data: f.Reply.Src.Addr().AsSlice()},
			nested(ctaNATProto, be16(ctaProtoNATPorts, f.Reply.Src.Port()))))
	}
	return request(ctNew, netfilter.ProtoIPv4, netlink.Create|netlink.Excl|netlink.Acknowledge, attrs...)
}

package invalidtable_test

import (
	"bufio"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft/invalidtable"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// nft lists the table and takes it back. What another program removes or changes is made anew; Remove removes it.
// TestSegmentOutOfWindow in test/datapath has packets that the rule drops.
func TestTable(t *testing.T) {
	ns, cmd := testnet.NamespaceForTest(t, "invalid"), netfilter.NFTForTest(t)
	keep := func() uint64 {
		t.Helper()
		dropped, err := invalidtable.Keep("nftproxy", ns.Fd())
		if err != nil {
			t.Fatal(err)
		}
		return dropped
	}
	listing := func() string {
		t.Helper()
		text, err := cmd.Run(ns, "", "list", "ruleset")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	keep()
	text := listing()
	for _, want := range []string{
		"table inet nftproxy-invalid {", "type filter hook forward priority filter; policy accept;",
		"ct state invalid counter packets 0 bytes 0 drop comment \"belongs to no connection",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nft lists\n%s\nwithout %s", text, want)
		}
	}
	counted := strings.Replace(text, "packets 0 bytes 0", "packets 5 bytes 300", 1)
	if err := cmd.Load(ns, "flush ruleset\n"+counted); err != nil {
		t.Fatal(err)
	}
	if n := keep(); n != 5 || listing() != counted {
		t.Errorf("%d dropped, want 5 and the same rules; nft lists\n%s", n, listing())
	}
	for _, change := range []string{
		"flush ruleset", "flush chain inet nftproxy-invalid forward", "insert rule inet nftproxy-invalid forward accept",
		"flush chain inet nftproxy-invalid forward; delete chain inet nftproxy-invalid forward",
		"flush chain inet nftproxy-invalid forward; add rule inet nftproxy-invalid forward ct state new counter drop",
		"add chain inet nftproxy-invalid forward { policy drop; }", "add chain inet nftproxy-invalid another",
		"add table inet nftproxy-invalid { flags dormant; }",
	} {
		if err := cmd.Load(ns, change); err != nil {
			t.Fatal(err)
		}
		want := invalidtable.Different
		if change == "flush ruleset" {
			want = invalidtable.Absent
		}
		if state, err := invalidtable.Look("nftproxy", ns.Fd()); err != nil || state != want {
			t.Errorf("%s: state %d, %v; want %d", change, state, err, want)
		}
		if n := keep(); n != 0 || listing() != text {
			t.Errorf("%s: %d dropped; nft lists\n%s\nwant\n%s", change, n, listing(), text)
		}
	}
	for _, want := range []bool{true, false} {
		if removed, err := invalidtable.Remove("nftproxy", ns.Fd()); err != nil || removed != want {
			t.Errorf("removed: %v, %v; want %v", removed, err, want)
		}
	}
}

// BenchmarkForwarded sends datagrams of an established, translated flow from a pod to another, with and without the
// rule in rounds of 5,000 that follow each other, each behind one that does not count. It reports the processor's time
// for each datagram, which has the whole way to the endpoint, and the median ratio of the two.
func BenchmarkForwarded(b *testing.B) {
	const round = 5_000
	topology, cmd := testnet.NewForTest(b, testnet.Config{}), netfilter.NFTForTest(b)
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	client, err := topology.AddPod("client")
	must(err)
	endpoint, err := topology.AddPod("endpoint")
	must(err)
	at := netip.AddrPortFrom(endpoint.Addrs.V4(), 8080)
	const service = "10.96.0.10:80"
	must(cmd.Load(topology.Node, fmt.Sprintf(
		"table ip nat { chain p { type nat hook prerouting priority -100; ip daddr 10.96.0.10 udp dport 80 dnat to %s; "+
			"}; }\n", at)))
	server, err := endpoint.NS.Serve(testnet.UDP, at, "endpoint")
	must(err)
	conn, err := client.NS.Dial(b.Context(), "udp", service)
	must(err)
	defer conn.Close()
	must(conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte("?"))
	must(err)
	_, err = bufio.NewReader(conn).ReadByte()
	must(err)
	server.Close() // Refusals of a closed port cost more than a full queue, so another socket takes the packets.
	taker, err := endpoint.NS.ListenPacket(b.Context(), "udp", at.String())
	must(err)
	defer taker.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var t unix.Timespec
		must(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
		return time.Duration(t.Nano())
	}
	send := func() time.Duration {
		began := used()
		for range round {
			_, _ = conn.Write([]byte("?"))
		}
		return used() - began
	}
	must(conn.SetDeadline(time.Time{}))
	var ratios []float64
	var with, without time.Duration
	for b.Loop() {
		_, err := invalidtable.Keep("nftproxy", topology.Node.Fd())
		must(err)
		send()
		on := send()
		_, err = invalidtable.Remove("nftproxy", topology.Node.Fd())
		must(err)
		send()
		off := send()
		ratios = append(ratios, float64(on)/float64(off))
		with, without = with+on, without+off
	}
	slices.Sort(ratios)
	packets := float64(round * len(ratios))
	b.ReportMetric(float64(without.Nanoseconds())/packets, "ns/packet-without")
	b.ReportMetric(float64(with.Nanoseconds())/packets, "ns/packet-with")
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

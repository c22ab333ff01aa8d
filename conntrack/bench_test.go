package conntrack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// benchStale is the number of flows to the endpoint that is removed. All go to one
// Service.
const benchStale = 2000

// benchFlows returns the number of flows, which CONNTRACK_FLOWS can set.
func benchFlows(b *testing.B) int {
	s := os.Getenv("CONNTRACK_FLOWS")
	if s == "" {
		return 200_000
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkRemove removes the flows to an endpoint that is gone. It compares three ways
// by turns in one run: a pass in the scope of the change, a pass over everything, and
// ti-mo's dump and deletions. Run as root, for example:
//
//	go test ./conntrack -run '^$' -bench Remove -benchtime 10x
//
// CONNTRACK_FLOWS sets the number of flows. If one namespace cannot hold all of them,
// several do: the kernel keeps the entries of all namespaces in one hash table, and
// each dump walks past the entries of the others.
func BenchmarkRemove(b *testing.B) {
	for _, f := range benchFamilies() {
		b.Run(f.name, func(b *testing.B) { benchmarkRemove(b, &f) })
	}
}

// benchFamily has the addresses of a family's flows, and the number of flows to the
// endpoint that stays.
type benchFamily struct {
	name, clusterIP, endpoint, outside string
	live                               int
}

func benchFamilies() []benchFamily {
	v4 := benchFamily{"IPv4", "10.96.0.53", "10.0.0.%d", "198.51.100.1", benchStale}
	busy := v4
	busy.name, busy.live = "IPv4-busy-service", 10*benchStale
	return []benchFamily{v4, busy, {"IPv6", "fd00:96::53", "fd00::%d", "2001:db8::1", benchStale}}
}

// snapshot has a DNS Service with so many endpoints.
func (f *benchFamily) snapshot(b testing.TB, endpoints int) service.Snapshot {
	text := "node n1\nservice kube-system/dns created 2026-01-01T00:00:00Z\n  cluster-ip " + f.clusterIP +
		"\n  port dns udp 53\n"
	for i := range endpoints {
		text += fmt.Sprintf("    endpoint %v n1 ready serving\n", netip.AddrPortFrom(f.at(i+1), 53))
	}
	return parse(b, text)
}

func (f *benchFamily) at(endpoint int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(f.endpoint, endpoint))
}

// flow returns flow number i to a destination. It has DNAT if to is valid.
func (f *benchFamily) flow(i int, dst netip.Addr, port uint16, to netip.Addr) Flow {
	a := f.at(0).AsSlice()
	n := len(a)
	a[n-3], a[n-2] = a[n-3]+200+byte(i>>16), byte(i>>8)
	client, _ := netip.AddrFromSlice(a)
	src, original := netip.AddrPortFrom(client, uint16(1024+i&0xff)), netip.AddrPortFrom(dst, port)
	flow := Flow{Protocol: service.UDP, Original: Tuple{src, original}, Reply: Tuple{original, src}}
	if to.IsValid() {
		flow.Reply.Src = netip.AddrPortFrom(to, port)
	}
	return flow
}

// stale returns stale flow number i, which leads to the second endpoint.
func (f *benchFamily) stale(i int) Flow {
	return f.flow(i, netip.MustParseAddr(f.clusterIP), 53, f.at(2))
}

// others returns a flow that stays; its number comes after the stale ones. It leads to
// the first endpoint, to another Service, or to no Service.
func (f *benchFamily) others(i int) Flow {
	switch {
	case i < benchStale+f.live:
		return f.flow(i, netip.MustParseAddr(f.clusterIP), 53, f.at(1))
	case i%2 == 0:
		return f.flow(i, netip.MustParseAddr(f.clusterIP).Next(), 4433, f.at(3))
	}
	return f.flow(i, netip.MustParseAddr(f.outside), 443, netip.Addr{})
}

// fillTable makes a namespace with all flows except the stale ones. If they are too many
// for one, other namespaces have the rest.
func (f *benchFamily) fillTable(b testing.TB, flows int) *testnet.Namespace {
	var first *testnet.Namespace
	for from, to := benchStale, flows; from < to; {
		ns := testnet.NamespaceForTest(b, "node")
		n := to - from
		if _, limit, err := open(b, ns).Count(b.Context()); err != nil {
			b.Fatal(err)
		} else if limit > 0 {
			n = min(n, limit-2*benchStale)
		}
		fill(b, ns, from, from+n, f.others)
		from += n
		if first == nil {
			first = ns
			b.Logf("%d of the flows are in the namespace that is looked at", n+benchStale)
		}
	}
	return first
}

// way is a way to remove the stale flows, with its costs so far.
type way struct {
	name   string
	remove func() int
	costs  []cost
}

func benchmarkRemove(b *testing.B, f *benchFamily) {
	ns := f.fillTable(b, benchFlows(b))
	scoped, whole := f.passes(b, ns)
	ways := []way{
		{name: "scope", remove: scoped},
		{name: "pass", remove: whole},
		{name: "ti-mo", remove: func() int { return removeByTimo(b, ns, f) }},
	}
	for b.Loop() {
		for i := range ways {
			fill(b, ns, 0, benchStale, f.stale)
			var removed int
			c := measure(b, func() { removed = ways[i].remove() })
			if removed != benchStale {
				b.Fatalf("%s removed %d flows, want %d", ways[i].name, removed, benchStale)
			}
			ways[i].costs = append(ways[i].costs, c)
		}
	}
	b.ReportMetric(0, "ns/op") // It would include all ways and the preparations.
	for _, w := range ways {
		w.report(b)
	}
	wall := func(c cost) float64 { return c.wall.Seconds() }
	b.ReportMetric(quantile(ways[2].costs, 0.5, wall)/quantile(ways[0].costs, 0.5, wall), "ti-mo/scope")
	b.ReportMetric(quantile(ways[2].costs, 0.5, wall)/quantile(ways[1].costs, 0.5, wall), "ti-mo/pass")
}

// passes returns two ways to remove the flows to the endpoint that has gone: a pass
// in the scope of the change, and one over everything.
func (f *benchFamily) passes(b testing.TB, ns *testnet.Namespace) (scoped, whole func() int) {
	index := NewIndex(Options{})
	index.Update(f.snapshot(b, 2))
	scope := index.Update(f.snapshot(b, 1))
	if scope.Everything || len(scope.Filters) != 1 {
		b.Fatalf("scope of one endpoint's removal: %+v", scope)
	}
	cleaner := NewCleaner(open(b, ns), index, CleanerConfig{})
	clean := func(s Scope) func() int {
		return func() int {
			p := newPass(s)
			if err := cleaner.clean(b.Context(), p); err != nil {
				b.Fatal(err)
			}
			return p.run.Removed[EndpointGone]
		}
	}
	return clean(scope), clean(Scope{Everything: true})
}

// report reports the median times and the largest memory.
func (w *way) report(b *testing.B) {
	b.ReportMetric(quantile(w.costs, 0.5, func(c cost) float64 { return c.wall.Seconds() * 1e3 }), w.name+"-ms")
	b.ReportMetric(quantile(w.costs, 0.5, func(c cost) float64 { return c.cpu.Seconds() * 1e3 }), w.name+"-cpu-ms")
	b.ReportMetric(slices.MaxFunc(w.costs, func(x, y cost) int { return cmp.Compare(x.memory, y.memory) }).memory,
		w.name+"-peak-MiB")
}

// removeByTimo removes the stale flows by the library alone.
func removeByTimo(b testing.TB, ns *testnet.Namespace, f *benchFamily) (removed int) {
	conn := dialCreator(b, ns)
	list, err := conn.Dump(nil)
	if err != nil {
		b.Fatal(err)
	}
	stale := f.stale(0)
	for _, one := range list {
		if one.TupleOrig.IP.DestinationAddress == stale.Original.Dst.Addr() &&
			one.TupleReply.IP.SourceAddress == stale.Reply.Src.Addr() {
			if err := conn.Delete(one); err != nil {
				b.Fatal(err)
			}
			removed++
		}
	}
	return removed
}

// cost has a function's wall time, the process's CPU time, and the largest growth of the
// process's memory in MiB.
type cost struct {
	wall, cpu time.Duration
	memory    float64
}

func measure(b *testing.B, f func()) cost {
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // Linux 4.0: resets VmHWM
		b.Fatal(err)
	}
	before, cpu, start := memory(b, "VmRSS:"), cpuTime(b), time.Now()
	f()
	return cost{time.Since(start), cpuTime(b) - cpu, float64(memory(b, "VmHWM:")-before) / 1024}
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memory returns the value of a line of /proc/self/status, in KiB.
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

func quantile[T any](list []T, q float64, of func(T) float64) float64 {
	values := make([]float64, len(list))
	for i, v := range list {
		values[i] = of(v)
	}
	slices.Sort(values)
	return values[int(q*float64(len(values)-1))]
}

// BenchmarkSyncBesidePass measures the time of a sync that replaces one endpoint. There
// are a thousand Services with ten endpoints each. By turns the sync runs alone, beside
// a goroutine that only computes, and beside one that makes passes over the whole table
// without a pause. The difference of the last two is the effect of the passes beyond
// taking a core. Run as root, for example:
//
//	go test ./conntrack -run '^$' -bench SyncBesidePass -benchtime 20x
func BenchmarkSyncBesidePass(b *testing.B) {
	f := &benchFamilies()[0]
	ns := f.fillTable(b, benchFlows(b))
	index := NewIndex(Options{})
	index.Update(f.snapshot(b, 1))
	cleaner := NewCleaner(open(b, ns), index, CleanerConfig{})
	r, snapshots, syncs := newRules(b, ns), manyServices(b), 0
	sync := func() float64 {
		start := time.Now()
		r.sync(b, snapshots[syncs%2])
		syncs++
		return float64(time.Since(start).Nanoseconds()) / 1e3
	}
	sync()

	const turn, pause = 100, 3 * time.Millisecond // the syncs of a turn, and a pause so that they meet any part of a pass
	latencies := map[string][]float64{}
	sample := func(name string) {
		for range turn {
			latencies[name] = append(latencies[name], sync())
			time.Sleep(pause)
		}
	}
	passes := 0
	pass := func(ctx context.Context) error {
		passes++
		return cleaner.clean(ctx, newPass(Scope{Everything: true}))
	}
	for b.Loop() {
		sample("alone")
		beside(b, func(ctx context.Context) error { return ctx.Err() }, func() { sample("beside-computing") })
		beside(b, pass, func() { sample("beside-passes") })
	}
	b.ReportMetric(0, "ns/op") // It would include all three.
	for name, list := range latencies {
		for percent, q := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99} {
			b.ReportMetric(quantile(list, q, func(µs float64) float64 { return µs }), name+"-"+percent+"-µs")
		}
	}
	b.ReportMetric(float64(passes), "passes")
}

// beside calls f while another goroutine calls load again and again. load must fail once
// its context is done.
func beside(b *testing.B, load func(context.Context) error, f func()) {
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = load(ctx)
		}
		done <- err
	}()
	f()
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		b.Fatal(err)
	}
}

// manyServices returns a snapshot of a thousand Services with ten endpoints each, and the
// same with one endpoint replaced.
func manyServices(b *testing.B) [2]service.Snapshot {
	var text strings.Builder
	text.WriteString("node n1\n")
	for i := range 1000 {
		fmt.Fprintf(&text,
			"service default/s%04d created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.%d.%d\n  port http tcp 80\n", i, i/250,
			i%250+1)
		for j := range 10 {
			fmt.Fprintf(&text, "    endpoint 10.%d.%d.%d:80 n1 ready serving\n", 10+j, i/250, i%250+1)
		}
	}
	before := parse(b, text.String())
	after := before
	changed := *before.Services.At("default/s0500")
	changed.Ports = slices.Clone(changed.Ports)
	list := slices.Collect(changed.Ports[0].Endpoints.All())
	list[9].Addr = netip.MustParseAddrPort("10.20.0.1:80")
	changed.Ports[0].Endpoints = service.MergeEndpoints(list)
	after.Services = before.Services.Set(changed.Name, &changed)
	return [2]service.Snapshot{before, after}
}

// BenchmarkKeptConnection judges a connection that stays with a departed endpoint of a Service which has lost many.
func BenchmarkKeptConnection(b *testing.B) {
	for _, n := range []int{100, 3000, 30000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := NewIndex(Options{})
			s := func(i int) service.Snapshot {
				return parse(b, noShop+fmt.Sprintf("service default/shop created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.1\n  "+
					"port http tcp 80\n    endpoint 10.1.%d.%d:80 n1 ready serving\n", i/250, i%250))
			}
			for i := range n {
				x.Update(s(i))
			}
			f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.2:80", SeenReply|Assured)
			b.ResetTimer()
			for range b.N {
				x.Stale(f)
			}
		})
	}
}

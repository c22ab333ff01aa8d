package ruleset_test

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// BenchmarkRanges loads a list of source ranges, changes one of the ranges, and takes the
// last one away. The change removes the list and adds another one.
func BenchmarkRanges(b *testing.B) {
	for _, n := range []int{5000, 20_000} {
		program := func(others ...int) *nft.Program {
			return rangesProgram(withRanges("ns/a", netip.MustParseAddr("10.96.0.1"), restrictedAddress, 1, n, others...))
		}
		none := rangesProgram(withRanges("ns/a", netip.MustParseAddr("10.96.0.1"), restrictedAddress, 1, 0))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, c := open(b)
			least := [3]time.Duration{time.Hour, time.Hour, time.Hour}
			for b.Loop() {
				first, state := nft.State{}.Plan(none, time.Time{})
				must(b, c.Apply(first))
				for i, p := range []*nft.Program{program(), program(1), none} {
					batch, next := state.Plan(p, time.Time{})
					start := time.Now()
					must(b, c.Apply(batch))
					least[i] = min(least[i], time.Since(start))
					state = next
				}
				must(b, c.DeleteTables(ruleset.DefaultTable))
			}
			for i, what := range []string{"load", "change", "removal"} {
				b.ReportMetric(float64(least[i].Microseconds())/1000, "least-"+what+"-ms")
			}
		})
	}
}

// BenchmarkFirstPacket sends first packets to an address without source ranges and to one
// with ranges, from sources inside and outside.
func BenchmarkFirstPacket(b *testing.B) {
	for _, c := range rangesCases() {
		ports, ranges := c[0], c[1]
		s := newSender(b)
		must(b, s.c.Apply(load(openAndRestricted(ports, ranges))))
		port := uint16(firstPort + ports/2)
		for _, way := range []struct {
			name string
			from func(int) netip.Addr
			to   netip.Addr
			end  error
		}{
			{"open", inRanges(ranges), openAddress, translated},
			{"admitted", inRanges(ranges), restrictedAddress, translated},
			{"refused", inNone(ranges), restrictedAddress, dropped},
		} {
			b.Run(fmt.Sprintf("%dx%d/%s", ports, ranges, way.name), func(b *testing.B) {
				s.time(b, b.N, way.from, netip.AddrPortFrom(way.to, port), way.end)
			})
		}
	}
}

// BenchmarkCommitBesideLists replaces one endpoint of a service. It also gives a service
// its first endpoint and takes it away, which changes a verdict. It does this beside
// 1,000 services of 20 ports: with as many distinct lists of source ranges, with one
// common list, and without lists.
func BenchmarkCommitBesideLists(b *testing.B) {
	const services, ports = 1000, 20
	for _, kind := range []string{"no lists", "one list", "distinct lists"} {
		var all []*service.Service
		for i := range services {
			ranges, others := 2, []int{i}
			switch kind {
			case "no lists":
				ranges = 0
			case "one list":
				others = nil
			}
			all = append(all, withRanges(fmt.Sprintf("ns/svc-%d", i), netip.AddrFrom4([4]byte{10, 96, 1 + byte(i>>8), byte(i)}),
				netip.AddrFrom4([4]byte{198, 51, 1 + byte(i>>8), byte(i)}), ports, ranges, others...))
		}
		program := func(endpoints ...string) *nft.Program {
			s := &service.Service{Name: "ns/other", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				Ports: []service.Port{{Protocol: service.TCP, Port: 80}}}
			var list []service.Endpoint
			for _, e := range endpoints {
				list = append(list, service.Endpoint{Addr: netip.MustParseAddrPort(e), Node: "node-2", Ready: true, Serving: true})
			}
			s.Ports[0].Endpoints = service.MergeEndpoints(list)
			return rangesProgram(append(all, s)...)
		}
		one, other, none := program("198.18.0.2:80"), program("198.18.0.3:80"), program()
		for what, pair := range map[string][2]*nft.Program{"endpoint": {one, other}, "verdict": {one, none}} {
			b.Run(kind+"/"+what, func(b *testing.B) { alternate(b, pair) })
		}
	}
}

// alternate applies one program after the other.
func alternate(b *testing.B, pair [2]*nft.Program) {
	_, c := open(b)
	var batches [2]nft.Batch
	first, state := nft.State{}.Plan(pair[0], time.Time{})
	must(b, c.Apply(first))
	batches[0], state = state.Plan(pair[1], time.Time{})
	must(b, c.Apply(batches[0]))
	batches[1], _ = state.Plan(pair[0], time.Time{})
	must(b, c.Apply(batches[1]))
	settle(b, c, pair, &batches)
	least := time.Hour
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		must(b, c.Apply(batches[i%2]))
		least = min(least, time.Since(start))
	}
	b.ReportMetric(float64(least.Nanoseconds())/1000, "least-us")
}

// settle returns batches that can be applied in turn: only the first ones add chains.
func settle(b *testing.B, c *kernel.Conn, pair [2]*nft.Program, batches *[2]nft.Batch) {
	b.Helper()
	_, state := nft.State{}.Plan(pair[0], time.Time{})
	_, state = state.Plan(pair[1], time.Time{})
	_, state = state.Plan(pair[0], time.Time{})
	batches[0], state = state.Plan(pair[1], time.Time{})
	batches[1], _ = state.Plan(pair[0], time.Time{})
	for _, batch := range batches {
		must(b, c.Apply(batch))
	}
}

// BenchmarkManyLists loads n Services with a list of five source ranges each, no two alike,
// and reads the table back. It reports the least times and the kernel's memory for a list
// (the growth of Slab and Percpu, which the rest of the machine blurs).
func BenchmarkManyLists(b *testing.B) {
	for _, n := range []int{500, 2000, 4000} {
		for _, kind := range []string{"distinct", "equal"} {
			builder := snapshots.NewBuilder(service.Node{Name: "node",
				Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}})
			builder.SetMaxSourceLists(1 << 20)
			for i := range n {
				others := []int{i}
				if kind == "equal" {
					others = nil
				}
				builder.Set(withRanges(fmt.Sprintf("ns/svc-%d", i), netip.AddrFrom4([4]byte{10, 96, 1 + byte(i>>8), byte(i)}),
					netip.AddrFrom4([4]byte{198, 51, 1 + byte(i>>8), byte(i)}), 1, 5, others...))
			}
			p := ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, builder.Snapshot())
			b.Run(fmt.Sprintf("%d %s", n, kind), func(b *testing.B) {
				_, c := open(b)
				load, read, memory := time.Hour, time.Hour, 0
				batch, _ := nft.State{}.Plan(p, time.Time{})
				for b.Loop() {
					before := slabMemory(b)
					start := time.Now()
					must(b, c.Apply(batch))
					load = min(load, time.Since(start))
					memory = max(memory, slabMemory(b)-before)
					start = time.Now()
					_, err := c.ReadTable(p.IPv4)
					must(b, err)
					read = min(read, time.Since(start))
					must(b, c.DeleteTables(ruleset.DefaultTable))
				}
				b.ReportMetric(float64(load.Milliseconds()), "least-load-ms")
				b.ReportMetric(float64(read.Milliseconds()), "least-read-ms")
				b.ReportMetric(float64(memory)/float64(n), "bytes/list")
			})
		}
	}
}

// slabMemory is the kernel's memory in slabs and per-processor areas, in bytes.
func slabMemory(b *testing.B) (sum int) {
	b.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	must(b, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "Slab:" || f[0] == "Percpu:" {
			kb, err := strconv.Atoi(f[1])
			must(b, err)
			sum += kb << 10
		}
	}
	return sum
}

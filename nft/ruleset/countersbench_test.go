package ruleset_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// manyServices has n Services with as many endpoints each, at UDP port 80.
func manyServices(n, endpoints int) service.Snapshot {
	b := snapshots.NewBuilder(service.Node{Name: "node", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}})
	for i := range n {
		var list []service.Endpoint
		for e := range endpoints {
			list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18 + byte(i&1),
				byte(i >> 8), byte(i)}), uint16(8000+e)), Node: "node-2", Ready: true, Serving: true})
		}
		b.Set(&service.Service{
			Name:       service.Name(fmt.Sprintf("ns-%d/svc-%d", i%100, i)),
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})},
			Ports:      []service.Port{{Protocol: service.UDP, Port: 80, Endpoints: service.MergeEndpoints(list)}},
		})
	}
	return b.Snapshot()
}

// BenchmarkCounters measures what counters of new connections cost: the first load, a start with the other
// value of the option, a dump of all Services' counters, and reading the endpoints of 20 Services.
func BenchmarkCounters(b *testing.B) {
	for _, size := range [][2]int{{10_000, 10}, {44_000, 1}} {
		s := manyServices(size[0], size[1])
		off, on := countedProgram(false, s), countedProgram(true, s)
		name := fmt.Sprintf("%dx%d", size[0], size[1])
		for what, p := range map[string]*nft.Program{"load without": off, "load with": on} {
			b.Run(name+"/"+what, func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					_, c := open(b)
					batch := load(p)
					b.StartTimer()
					before := processCPU(b)
					must(b, c.Apply(batch))
					b.ReportMetric(float64((processCPU(b) - before).Milliseconds()), "cpu-ms")
					b.StopTimer()
					must(b, c.DeleteTables(p.IPv4.Name))
				}
			})
		}
		_, c := open(b)
		must(b, c.Apply(load(off)))
		have, err := c.Read(on)
		must(b, err)
		b.Run(name+"/switch on", func(b *testing.B) {
			switchOn, _ := nft.Adopt(have, on).Plan(on, time.Time{})
			switchOff, _ := nft.Adopt(on.Model(), off).Plan(off, time.Time{})
			cpu := time.Duration(0)
			for range b.N {
				before := processCPU(b)
				must(b, c.Apply(switchOn))
				cpu += processCPU(b) - before
				b.StopTimer()
				must(b, c.Apply(switchOff))
				b.StartTimer()
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
		})
		switchOn, _ := nft.Adopt(have, on).Plan(on, time.Time{})
		must(b, c.Apply(switchOn))
		b.Run(name+"/read Services", func(b *testing.B) {
			before := processCPU(b)
			for range b.N {
				n := 0
				must(b, c.AllCounts(on.IPv4.ID(), on.IPv4.Set("services"), func(kernel.Count) { n++ }))
				if n != size[0] {
					b.Fatalf("%d counters", n)
				}
			}
			b.ReportMetric(float64((processCPU(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
		b.Run(name+"/read all endpoints", func(b *testing.B) {
			before := processCPU(b)
			for range b.N {
				must(b, c.AllCounts(on.IPv4.ID(), on.IPv4.Set("endpoints"), func(kernel.Count) {}))
			}
			b.ReportMetric(float64((processCPU(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
		b.Run(name+"/read endpoints of 20 Services", func(b *testing.B) {
			var keys []nft.Value
			for i := range 20 {
				svc := s.Services.At(service.Name(fmt.Sprintf("ns-%d/svc-%d", i, i)))
				key := nft.Value(nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, svc.ClusterIPs[0]), uint8(service.UDP)), 80))
				for e := range size[1] {
					keys = append(keys, key.WithIndex(e))
				}
			}
			before := processCPU(b)
			for range b.N {
				n := 0
				must(b, c.Counts(on.IPv4.ID(), on.IPv4.Set("endpoints"), keys, func(kernel.Count) { n++ }))
				if n != len(keys) {
					b.Fatalf("%d of %d counters", n, len(keys))
				}
			}
			b.ReportMetric(float64((processCPU(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// BenchmarkCountedPacket sends first packets to a Service whose connections are counted, and to one whose are
// not.
func BenchmarkCountedPacket(b *testing.B) {
	for _, counters := range []bool{false, true} {
		s := newSender(b)
		must(b, s.c.Apply(load(countedProgram(counters, countedSnapshot("198.18.0.1:80", "198.18.0.2:80")))))
		b.Run(fmt.Sprintf("counters=%v", counters), func(b *testing.B) {
			before := processCPU(b)
			s.time(b, b.N, inRanges(5), netip.AddrPortFrom(openAddress, firstPort), translated)
			b.ReportMetric(float64((processCPU(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

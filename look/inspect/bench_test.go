package inspect_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// cluster is the tables of n Services with two endpoints each. Every tenth has session
// affinity, every hundredth no endpoints.
func cluster(n int) *nft.Model {
	b := snapshots.NewBuilder(service.Node{Name: "node-1"})
	b.Expect(n)
	for i := range n {
		s := &service.Service{
			Name: service.NewName(fmt.Sprintf("ns-%d", i%100), fmt.Sprintf("svc-%d", i)), Created: time.Unix(int64(i), 0),
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})},
			Ports:      []service.Port{{Protocol: service.TCP, Port: 80}},
		}
		if i%10 == 0 {
			s.AffinityTimeout = time.Hour
		}
		if i%100 != 7 {
			var endpoints []service.Endpoint
			for j := range 2 {
				a := netip.AddrFrom4([4]byte{10, 128 + byte(i>>16) + 64*byte(j), byte(i >> 8), byte(i)})
				endpoints = append(endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Node: "node-1", Ready: true,
					Serving: true})
			}
			s.Ports[0].Endpoints = service.MergeEndpoints(endpoints)
		}
		b.Set(s)
	}
	return ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, b.Snapshot()).Model()
}

// inspectAll makes all rows of a cluster, with two flows for each Service, of which one
// goes to an endpoint that has left.
func inspectAll(m *nft.Model, n int) (rows int) {
	tables := inspect.NewTables(m, ruleset.DefaultTable, &service.Node{Name: "this node"})
	connections := count(tables)
	for i := range n {
		f := conntrack.Flow{Protocol: service.TCP, Status: conntrack.DstNAT, TCPState: conntrack.TCPEstablished}
		f.Original.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i))
		f.Original.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), 80)
		for _, second := range []byte{128, 1} {
			f.Reply.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, second + byte(i>>16), byte(i >> 8), byte(i)}), 8080)
			connections.Add(f)
		}
	}
	var all inspect.Selection
	return len(tables.ServiceRows(all)) + len(tables.EndpointRows(all, connections)) + len(tables.ChainRows(all)) +
		len(tables.ClientMaps(all))
}

// TestRowsScale: four times the Services cost about four times as much.
func TestRowsScale(t *testing.T) {
	n := 2000
	if testing.Short() {
		n = 300
	}
	small, large := cluster(n), cluster(4*n)
	if got, want := inspectAll(small, n), n*(1+2+1); got < want {
		t.Errorf("%d rows of %d Services, want %d at least", got, n, want)
	}
	few := testing.AllocsPerRun(1, func() { inspectAll(small, n) })
	many := testing.AllocsPerRun(1, func() { inspectAll(large, 4*n) })
	t.Logf("%.0f allocations for %d Services, %.0f for %d", few, n, many, 4*n)
	if many > 5*few {
		t.Errorf("%.0f allocations for %d Services, %.0f for %d: more than five times as many", few, n, many, 4*n)
	}
}

// BenchmarkRows makes all rows of 11,000 and of 44,000 Services.
func BenchmarkRows(b *testing.B) {
	for _, n := range []int{11_000, 44_000} {
		b.Run(fmt.Sprint(n, " Services"), func(b *testing.B) {
			m := cluster(n)
			b.ReportAllocs()
			for b.Loop() {
				inspectAll(m, n)
			}
		})
	}
}

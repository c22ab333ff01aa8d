package share

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// leastService has endpoints 10.0.0.1, 10.0.0.2 and so on, changed by edit.
func leastService(n int, edit func(i int, e *service.Endpoint)) *service.Service {
	s := &service.Service{Name: "a/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	s.Options.Balance = service.ByLeastConnections
	var list []service.Endpoint
	for i := range n {
		e := service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte((i + 1) >> 8), byte(i + 1)}), 80),
			Ready: true, Serving: true}
		edit(i, &e)
		list = append(list, e)
	}
	s.Ports = []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}}
	return s
}

func leastRowOf(s *service.Service, node string, local bool) (row *LeastRow, slots map[netip.AddrPort]int) {
	n := &service.Node{Name: node}
	choice := Choose(s, &s.Ports[0], n, ip.V4)
	if row = NewLeastRow(s, &s.Ports[0], n, &choice, local); row == nil {
		return nil, nil
	}
	slots = map[netip.AddrPort]int{}
	for i, a := range row.Addrs {
		slots[a] = row.Loads[i].Slots
	}
	return row, slots
}

// TestLeastRowBounds: whatever slots endpoints had, whatever their weights, drains, ejections and slow starts are, and
// whatever limit there is, a row has the same length for all slots, is not longer than MostSlots says, and gives each
// endpoint of its list a quarter of its part at least, and twice that at most. What it gives is what it takes.
func TestLeastRowBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	rows := 0
	for range 3000 {
		odd := rng.IntN(65536)
		s := leastService(1+rng.IntN(30), func(_ int, e *service.Endpoint) {
			e.Weight = service.NewWeight(uint16([]int{100, 100, 300, 0, odd}[rng.IntN(5)]))
			e.Share = []service.Share{service.WholeShare, service.WholeShare, service.Quarter, service.NoShare}[rng.IntN(4)]
			e.Slots = service.Slots{Cluster: uint16(rng.IntN(100)), Local: uint16(rng.IntN(100))}
			e.Node = []string{"n", "m"}[rng.IntN(2)]
		})
		s.ExternalPolicy = rng.IntN(2) == 0
		s.ExternalIPs = s.ClusterIPs
		s.SlotLimit = []int{0, 0, 251, 1021, service.NoSlots}[rng.IntN(5)]
		for _, local := range []bool{false, true} {
			row, slots := leastRowOf(s, "n", local)
			if row == nil {
				continue
			}
			rows++
			p, sum := &s.Ports[0], 0
			weights := make([]uint32, len(row.Addrs))
			for i, a := range row.Addrs {
				e := p.Endpoints.Find(service.Endpoint{Addr: a})
				if weights[i] = e.Quarters(); e.Drained() || e.Share == service.NoShare {
					t.Fatalf("%v has slots", *e)
				}
			}
			for i, fair := range split(weights, row.Len()) {
				n := slots[row.Addrs[i]]
				if sum += n; n < max(1, fair/4) || n > 2*fair {
					t.Fatalf("%d slots, its part is %d of %d", n, fair, row.Len())
				}
			}
			if most := MostSlots(s, p, ip.V4); sum != row.Len() || sum > most {
				t.Fatalf("%d slots of %d, %d at most\n%s", sum, row.Len(), most, s)
			}
			again := service.Slotted{}
			for a, n := range slots {
				again[p.At(a)] = service.Slots{Cluster: uint16(n), Local: uint16(n)}
			}
			if _, kept := leastRowOf(WithSlots(s, again), "n", local); fmt.Sprint(kept) != fmt.Sprint(slots) {
				t.Fatalf("%v becomes %v", slots, kept)
			}
		}
	}
	if rows < 1000 {
		t.Errorf("only %d rows", rows)
	}
}

// TestLeastRowOfNodes: nodes prefer different ones of equal endpoints, and a node always the same ones.
func TestLeastRowOfNodes(t *testing.T) {
	s := leastService(5, func(_ int, e *service.Endpoint) { e.Weight = service.NewWeight(65535) })
	s.Ports[0].Endpoints = service.MergeEndpoints(append(slices.Collect(s.Ports[0].Endpoints.All()), service.Endpoint{
		Addr: netip.MustParseAddrPort("10.0.1.1:80"), Ready: true, Serving: true, Weight: service.NewWeight(1)}))
	preferred := map[string]int{}
	for i := range 100 {
		_, slots := leastRowOf(s, fmt.Sprint("node-", i), false)
		if _, again := leastRowOf(s, fmt.Sprint("node-", i), false); fmt.Sprint(again) != fmt.Sprint(slots) {
			t.Fatalf("%v, then %v", slots, again)
		}
		preferred[fmt.Sprint(slots)]++
	}
	if len(preferred) < 5 {
		t.Errorf("100 nodes prefer %v", preferred)
	}
}

// TestIsLeastRow: rows of equal weights are told from others.
func TestIsLeastRow(t *testing.T) {
	for _, c := range []struct {
		slots []int
		want  bool
	}{
		{[]int{16, 16}, true}, {[]int{4, 28}, true}, {[]int{3, 29}, false}, {[]int{33, 3}, false}, {[]int{16, 15}, false},
		{[]int{32, 8, 8}, true}, {[]int{33, 8, 7}, false}, {[]int{32}, false}, {nil, true},
	} {
		if got := IsLeastRow(c.slots); got != c.want {
			t.Errorf("%v: %t, want %t", c.slots, got, c.want)
		}
	}
}

// BenchmarkLeastRow fits a row whose endpoints had far other slots, which is the most that a change can ask for.
func BenchmarkLeastRow(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := leastService(n, func(i int, e *service.Endpoint) {
				if e.Slots.Cluster = 1; i%2 == 0 {
					e.Slots.Cluster = 60000
				}
				if i == 0 {
					e.Share = service.Quarter
				}
			})
			for b.Loop() {
				if row, _ := leastRowOf(s, "n", false); row == nil {
					b.Fatal("no row")
				}
			}
		})
	}
}

package balance

import (
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/service"
)

// withPorts has so many ports and addresses more, and two endpoints.
func withPorts(namespace string, number, ports, addresses int, policy service.TrafficPolicy) *service.Service {
	s := web(namespace, number, 2)
	s.ExternalPolicy = policy
	endpoints := slices.Collect(s.Ports[0].Endpoints.All())
	for i := range endpoints {
		endpoints[i].Node = "node"
	}
	s.Ports = nil
	for i := range ports {
		s.Ports = append(s.Ports, service.Port{Protocol: service.TCP, Port: uint16(1 + i),
			Endpoints: service.MergeEndpoints(slices.Clone(endpoints))})
	}
	for i := range addresses {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{100, byte(number), byte(i >> 8), byte(i)}))
	}
	return s
}

// TestBounds: no step changes more elements than one may, or than one slot at all addresses of a Service has, however
// many ports, rows and addresses the Services have; and in the end each row has its floor, so nobody waits for ever.
func TestBounds(t *testing.T) {
	for name, list := range map[string][]*service.Service{
		"ports":                  {withPorts("a", 1, 1800, 0, service.Cluster)},
		"ports of several":       {withPorts("a", 1, 1800, 0, service.Cluster), withPorts("b", 2, 1800, 0, service.Cluster)},
		"two rows of each port":  {withPorts("a", 1, 400, 1, service.Local)},
		"addresses":              {withPorts("a", 1, 2, 700, service.Cluster)},
		"more addresses than it": {withPorts("a", 1, 1, 1500, service.Cluster), withPorts("a", 2, 1, 1500, service.Cluster)},
		"all of these": {withPorts("a", 1, 900, 1, service.Cluster), withPorts("a", 2, 1, 1500, service.Cluster),
			withPorts("a", 3, 2, 700, service.Cluster), withPorts("b", 4, 200, 2, service.Local), web("c", 5, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newServed(list...)
			for _, s := range w.builder.Snapshot().Services.All() {
				if s.SlotLimit != 0 || !follows(s) {
					t.Fatalf("%s has no room for its slots: %d", s.Name, s.SlotLimit)
				}
			}
			most, widest := 0, 1
			for _, s := range list {
				widest = max(widest, 1+len(s.ExternalIPs))
			}
			for steps, idle := 1, 0; idle < 3*len(list)+2; steps++ {
				before := w.builder.Snapshot().Services
				next, _ := w.step(openOfFirst(w))
				w.builder.SetSlots(next)
				w.follow(w.builder.Snapshot())
				elements, rows := 0, 0
				for name := range next {
					n, k := w.changed(before.At(name), w.builder.Snapshot().Services.At(name))
					elements, rows = elements+n, rows+k
				}
				if elements > mostElements && (rows > 1 || elements > widest) {
					t.Fatalf("step %d changes %d elements of %d rows", steps, elements, rows)
				}
				if most = max(most, elements); elements > 0 {
					idle = 0
				} else {
					idle++
				}
				if steps > 3000 {
					t.Fatal("it never comes to rest")
				}
			}
			for _, s := range w.builder.Snapshot().Services.All() {
				for _, r := range w.rows(s, 0) {
					if r.LeastRow == nil {
						continue
					}
					for i, a := range r.Addrs {
						// Of the moves that are left the last three stay undone.
						if n := r.Loads[i].Slots; a == endpointOf(number(s), 0) && n > r.Len()/2/4+3 {
							t.Fatalf("%s, port %d, local %v: the busy endpoint has %d of %d slots", s.Name, r.port.Port, r.local, n, r.Len())
						}
					}
				}
			}
			t.Logf("at most %d elements in a step", most)
		})
	}
}

// number is that of a Service of web.
func number(s *service.Service) int {
	a := s.ClusterIPs[0].As4()
	return int(a[2])<<8 | int(a[3])
}

// openOfFirst has 100 connections of each port to its first endpoint, and one to the second.
func openOfFirst(w *served) openTo {
	open := openTo{}
	for _, s := range w.snapshot.Services.All() {
		for i := range s.Ports {
			open[&s.Ports[i]] = map[netip.AddrPort]int{endpointOf(number(s), 0): 100, endpointOf(number(s), 1): 1}
		}
	}
	return open
}

// changed returns how many elements differ between two versions of a Service, and how many rows.
func (w *served) changed(before, after *service.Service) (elements, rows int) {
	had := map[int]row{}
	for at, r := range w.rows(before, 0) {
		had[at] = r
	}
	for at, r := range w.rows(after, 0) {
		if r.LeastRow == nil {
			continue
		}
		n := 0
		for i, l := range r.Loads {
			n += max(0, l.Slots-had[at].Loads[i].Slots)
		}
		if elements += n * r.ways; n > 0 {
			rows++
		}
	}
	return elements, rows
}

package balance

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/snapshots"
)

// served is a mover with the snapshots that follow from it.
type served struct {
	*mover
	builder *snapshots.Builder
}

func newServed(services ...*service.Service) *served {
	w := &served{newMover(service.NodePortAddresses{}), snapshots.NewBuilder(service.Node{Name: "node"})}
	for _, s := range services {
		w.builder.Set(s)
	}
	w.follow(w.builder.Snapshot())
	return w
}

// count counts flows.
func (w *served) openTo(flows []conntrack.Flow) (open openTo, counted int) {
	open = openTo{}
	for _, f := range flows {
		if counts(&f) && w.count(open, f) {
			counted++
		}
	}
	return open, counted
}

// move makes a step, and returns by Service how many slots have moved, each address counted.
func (w *served) moveAll(open openTo) map[service.Name]int {
	before, moved := w.builder.Snapshot().Services, map[service.Name]int{}
	next, _ := w.step(open)
	w.builder.SetSlots(next)
	after := w.builder.Snapshot()
	w.follow(after)
	for name := range next {
		old, s := before.At(name), after.Services.At(name)
		for i := range s.Ports {
			was, is := w.row(old, i), w.row(s, i)
			for j, l := range is.Loads {
				moved[name] += max(0, l.Slots-was.Loads[j].Slots) * (len(s.ClusterIPs) + len(s.ExternalIPs))
			}
		}
	}
	return moved
}

func (w *served) row(s *service.Service, port int) *share.LeastRow {
	p := &s.Ports[port]
	choice := share.Choose(s, p, w.snapshot.Node, ip.V4)
	return share.NewLeastRow(s, p, w.snapshot.Node, &choice, false)
}

// web is a Service of a number with so many endpoints.
func web(namespace string, number, endpoints int) *service.Service {
	s := &service.Service{Name: service.NewName(namespace, fmt.Sprint("web-", number)), ClusterIPs: []netip.Addr{clusterIP(
		number)}, Created: time.Unix(int64(number), 0)}
	s.Options.Balance = service.ByLeastConnections
	var list []service.Endpoint
	for i := range endpoints {
		list = append(list, service.Endpoint{Addr: endpointOf(number, i), Ready: true, Serving: true})
	}
	s.Ports = []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}}
	return s
}

func clusterIP(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(number >> 8), byte(number)})
}

func endpointOf(number, i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + i), byte(number >> 8), byte(number)}), 8080)
}

// busy has all connections of a Service lead to its first endpoint.
func busy(number, connections int) (flows []conntrack.Flow) {
	for i := range connections {
		flows = append(flows, flow(number, 0, i, conntrack.TCPEstablished))
	}
	return flows
}

func flow(number, endpoint, i int, state conntrack.TCPState) conntrack.Flow {
	client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, 1}), uint16(1024+i))
	return conntrack.Flow{Protocol: service.TCP, Status: conntrack.DstNAT, TCPState: state,
		Original: conntrack.Tuple{Src: client, Dst: netip.AddrPortFrom(clusterIP(number), 80)},
		Reply:    conntrack.Tuple{Src: endpointOf(number, endpoint), Dst: client}}
}

// TestCounts: a connection counts from its first packet, and while the kernel remembers its reset, until both sides
// have closed it; and only those to the address and port of a Service that asks for it.
func TestCounts(t *testing.T) {
	random := web("a", 2, 2)
	random.Options.Balance = service.ByRandom
	w := newServed(web("a", 1, 2), random)
	var flows []conntrack.Flow
	for state := conntrack.TCPSynSent; state <= conntrack.TCPSynSent2; state++ {
		flows = append(flows, flow(1, 0, int(state), state))
	}
	other := flow(1, 1, 0, conntrack.TCPEstablished)
	other.Original.Dst = netip.AddrPortFrom(clusterIP(1), 81)
	udp := flow(1, 1, 0, 0)
	udp.Protocol = service.UDP
	flows = append(flows, flow(2, 0, 0, conntrack.TCPEstablished), flow(1, 1, 1, conntrack.TCPEstablished), other, udp)
	open, counted := w.openTo(flows)
	p := &w.snapshot.Services.At("a/web-1").Ports[0]
	if first, second := open[p][endpointOf(1, 0)], open[p][endpointOf(1, 1)]; first != 7 || second != 1 || counted != 8 {
		t.Errorf("%d and %d connections, %d in all, want 7 and 1, 8", first, second, counted)
	}
}

// TestMove: the busy endpoint loses slots until it has its floor, and nobody else has more than the cap. What goes
// comes back once all hold the same.
func TestMove(t *testing.T) {
	w := newServed(web("a", 1, 4))
	open, _ := w.openTo(busy(1, 200))
	steps := 0
	for ; len(w.moveAll(open)) > 0; steps++ {
		open, _ = w.openTo(busy(1, 200))
	}
	row := w.row(w.snapshot.Services.At("a/web-1"), 0)
	for i, a := range row.Addrs {
		if n, first := row.Loads[i].Slots, a == endpointOf(1, 0); first && n > 4+3 || !first && (n < 18 || n > 22) {
			t.Errorf("%v has %d slots of %d", a, n, row.Len())
		}
	}
	var even []conntrack.Flow
	for i := range 4 {
		for j := range 50 {
			even = append(even, flow(1, i, j, conntrack.TCPEstablished))
		}
	}
	for open, _ = w.openTo(even); len(w.moveAll(open)) > 0; open, _ = w.openTo(even) {
		steps++
	}
	row = w.row(w.snapshot.Services.At("a/web-1"), 0)
	for i, a := range row.Addrs {
		if n := row.Loads[i].Slots; n < 16-4 || n > 16+4 {
			t.Errorf("again even: %v has %d slots of %d", a, n, row.Len())
		}
	}
	t.Logf("%d steps", steps)
}

// TestTurns: a step changes a bounded number of elements, however many Services have something to change, and however
// many addresses each has. Namespaces take turns, so one Service does not wait for those of others.
func TestTurns(t *testing.T) {
	for _, services := range []int{100, 2000} {
		for _, addresses := range []int{0, 30} {
			t.Run(fmt.Sprintf("%d Services, %d addresses more", services, addresses), func(t *testing.T) {
				var list []*service.Service
				var flows []conntrack.Flow
				for i := range services {
					s := web("tenant", i, 10)
					for j := range addresses {
						s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, byte(j), byte(i >> 8), byte(i)}))
					}
					list, flows = append(list, s), append(flows, busy(i, 20)...)
				}
				list, flows = append(list, web("other", 5000, 10)), append(flows, busy(5000, 20)...)
				w := newServed(list...)
				open, counted := w.openTo(flows)
				// Beyond the limit on elements, the youngest ones have no slots.
				seen, worst, with := map[service.Name]bool{}, time.Duration(0), 0
				for _, s := range w.builder.Snapshot().Services.All() {
					if s.SlotLimit != service.NoSlots {
						with++
					}
				}
				if counted != 20*with {
					t.Fatalf("%d of %d connections, to %d Services with slots", counted, len(flows), with)
				}
				for step := range 500 {
					start, sum := time.Now(), 0
					for name, n := range w.moveAll(open) {
						sum, seen[name] = sum+n, true
					}
					worst = max(worst, time.Since(start))
					if sum > mostElements {
						t.Fatalf("step %d moves %d slots", step, sum)
					}
					if step == 0 && !seen["other/web-5000"] {
						t.Error("the other namespace waits")
					}
					if len(seen) == with {
						t.Logf("all %d have had their turn after %d steps; the longest took %v", with, step+1, worst)
						return
					}
					open, _ = w.openTo(flows)
				}
				t.Errorf("only %d of %d Services had their turn", len(seen), with)
			})
		}
	}
}

// TestWithoutRoom: Services that have no slots, since others have used up the quota, are not looked at. Services that
// have no row for another reason take their part of a step, as large as they are.
func TestWithoutRoom(t *testing.T) {
	large := func(number, endpoints int) *service.Service {
		s, list := web("tenant", number, 0), []service.Endpoint(nil)
		for i := range endpoints {
			a := netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)})
			list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Ready: true, Serving: true})
		}
		s.Ports[0].Endpoints = service.MergeEndpoints(list)
		return s
	}
	var list []*service.Service
	for i := range 40 {
		list = append(list, large(i, 4000))
	}
	w, with := newServed(list...), 0
	for name, s := range w.builder.Snapshot().Services.All() {
		slots := s.SlotLimit != service.NoSlots
		if with += len(s.Ports); !slots {
			with -= len(s.Ports)
		}
		if got := w.snapshot.Services.At(name) != nil; got != slots {
			t.Errorf("%s has slots: %v, and a turn: %v", name, slots, got)
		}
	}
	if with == 0 || with == len(list) {
		t.Errorf("%d of %d Services have slots", with, len(list))
	}
	newest := list[len(list)-1].Name
	for _, s := range list[:len(list)-1] {
		w.builder.Delete(s.Name)
	}
	if w.follow(w.builder.Snapshot()); w.snapshot.Services.At(newest) == nil || w.services() != 1 {
		t.Errorf("%d Services have turns, want the one that has room now", w.services())
	}
	tight := large(1, 4000)
	tight.SlotLimit = 4001
	none := large(2, 1)
	none.Ports = nil
	for s, least := range map[*service.Service]int{tight: 1 + 4000/seenFor, large(3, 1): 1, large(4, 0): 1, none: 1} {
		if slots, cost := w.move(s, openTo{}, mostElements, true); slots != nil || cost < least {
			t.Errorf("without a row: slots %v, and the cost is %d, want %d", slots, cost, least)
		}
	}
}

// TestFollow: Services that come, go and change their option have turns while they ask for it, and only then.
func TestFollow(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	w := newServed()
	for range 300 {
		s := web(fmt.Sprint("ns-", rng.IntN(4)), rng.IntN(20), 3)
		switch rng.IntN(4) {
		case 0:
			w.builder.Delete(s.Name)
		case 1:
			s.Options.Balance = service.ByRandom
			w.builder.Set(s)
		default:
			w.builder.Set(s)
		}
		if rng.IntN(3) == 0 {
			continue
		}
		w.follow(w.builder.Snapshot())
		want, got := map[service.Name]bool{}, map[service.Name]bool{}
		for name, s := range w.builder.Snapshot().Services.All() {
			if s.Options.Balance == service.ByLeastConnections {
				want[name] = true
			}
		}
		most := len(want)
		if rng.IntN(2) == 0 {
			most = rng.IntN(1 + len(want))
		}
		w.turns.each(w.snapshot.Services, func(s *service.Service) bool {
			if got[s.Name] || !want[s.Name] {
				t.Fatalf("%s has a turn", s.Name)
			}
			got[s.Name] = true
			return len(got) < most
		})
		if len(got) != max(min(1, len(want)), most) || len(w.turns.queued) < len(want) {
			t.Fatalf("%d of %d Services had a turn, want %d", len(got), len(want), most)
		}
	}
}

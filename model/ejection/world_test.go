package ejection_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"nftproxy/model/ejection"
	"nftproxy/model/service"
)

// world is a cluster with a clock of its own, seen from the node "own". Its parts die and come back, clients on the node
// connect to its Services, and a machine decides what they do without.
type world struct {
	t       *testing.T
	now     time.Time
	rng     *rand.Rand
	builder *service.Builder
	machine *ejection.Machine
	modes   map[service.Name]ejection.Mode
	// dead has the nodes and addresses that answer nobody. forbidden says that a policy drops what comes from this node to an
	// address, by a client or by the node itself.
	dead      map[string]bool
	forbidden func(to netip.AddrPort, client string) bool
	// late is how much later this node learns that an address has not answered its connect.
	late map[netip.Addr]time.Duration

	flows   []flow
	ids     uint32
	pending []pending
	asks    int
	perSec  map[int64]int
	verdict ejection.Verdict
	wants   int
	seen    service.Snapshot
	looked  time.Time
	// slow has the time of each connection that had no answer for a second, since the world's start.
	slow []time.Duration
}

type flow struct {
	ejection.Flow
	begun  time.Time
	client string
	slow   bool
}

type pending struct {
	ejection.Ask
	at     time.Time
	answer ejection.Answer
}

var start = time.Unix(1_800_000_000, 0)

func newWorld(t *testing.T) *world {
	rng := rand.New(rand.NewPCG(1, 2))
	return &world{
		t: t, now: start, rng: rng, builder: service.NewBuilder(service.Node{Name: "own"}), machine: ejection.New(rng.Float64),
		modes: map[service.Name]ejection.Mode{}, dead: map[string]bool{}, perSec: map[int64]int{}, wants: -1,
		forbidden: func(netip.AddrPort, string) bool { return false },
	}
}

// service adds a Service of a namespace with TCP endpoints on the nodes, at 10.N.0.I:8080 where N and I are numbers of its own.
func (w *world) service(name string, nodes ...string) *service.Service {
	n := w.builder.Snapshot().Services.Len() + 1
	s := &service.Service{Name: service.Name(name), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})}}
	var list []service.Endpoint
	for i, node := range nodes {
		a := netip.AddrFrom4([4]byte{11, byte(n), byte(i >> 8), byte(i)})
		list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Node: node, Ready: true, Serving: true})
	}
	s.Ports = []service.Port{{Name: "web", Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}}
	w.builder.Set(s)
	w.modes[s.Name] = ejection.On
	return s
}

func (w *world) silent(to netip.AddrPort, client string) bool {
	if w.forbidden(to, client) || w.dead[to.Addr().String()] {
		return true
	}
	for _, s := range w.builder.Snapshot().Services.All() {
		for i := range s.Ports {
			if e := s.Ports[i].Endpoints.Find(service.Endpoint{Addr: to}); e != nil {
				return w.dead[e.Node]
			}
		}
	}
	return true
}

// connect makes a connection of a client to a Service, by one of the endpoints that are left.
func (w *world) connect(name service.Name, client string) {
	var list []netip.AddrPort
	for e := range w.builder.Snapshot().Services.At(name).Ports[0].Endpoints.All() {
		if e.Ready {
			list = append(list, e.Addr)
		}
	}
	w.connectTo(list[w.rng.IntN(len(list))], client)
}

func (w *world) connectTo(a netip.AddrPort, client string) {
	w.ids++
	if w.silent(a, client) {
		w.flows = append(w.flows, flow{ejection.Flow{ID: w.ids, To: a}, w.now, client, false})
	}
}

const tick = 50 * time.Millisecond

// run lets time pass. each is called in every tick, first with 0.
func (w *world) run(d time.Duration, each func(i int)) {
	w.t.Helper()
	for i := range int(d / tick) {
		w.now = w.now.Add(tick)
		each(i)
		w.flows = slices.DeleteFunc(w.flows, func(f flow) bool { return w.now.Sub(f.begun) > time.Minute || !w.silent(f.To, f.client) })
		for j := range w.flows {
			if f := &w.flows[j]; !f.slow && w.now.Sub(f.begun) >= time.Second {
				f.slow = true
				w.slow = append(w.slow, f.begun.Sub(start))
			}
		}
		if w.now.Sub(w.looked) >= time.Second {
			w.looked = w.now
			var flows []ejection.Flow
			for _, f := range w.flows {
				flows = append(flows, f.Flow)
			}
			w.machine.Looked(w.now, flows)
		}
		w.step()
	}
}

// step is what a daemon does after each event.
func (w *world) step() {
	for _, p := range w.pending {
		if !w.now.Before(p.at) {
			w.machine.Answered(w.now, p.Ask, p.answer)
		}
	}
	w.pending = slices.DeleteFunc(w.pending, func(p pending) bool { return !w.now.Before(p.at) })
	for range 2 {
		if s := w.builder.Snapshot(); w.machine.Wants() != w.wants || s != w.seen {
			w.wants, w.seen = w.machine.Wants(), s
			nodes := w.machine.WantedNodes()
			w.machine.See(w.now, ejection.Look(s, func(s *service.Service) ejection.Mode { return w.modes[s.Name] }, w.machine.Wanted, nodes))
		}
		asks, _ := w.machine.Ask(w.now)
		for _, a := range asks {
			w.asks++
			w.perSec[w.now.Unix()]++
			p := pending{a, w.now.Add(ejection.Patience + w.late[a.Addr.Addr()]), ejection.Unanswered}
			if !w.silent(a.Addr, "node") {
				p.at, p.answer = w.now.Add(tick), ejection.Answered
			}
			w.pending = append(w.pending, p)
		}
		w.verdict = w.machine.Decide(w.now)
		w.builder.SetEjections(w.verdict.Ejections(w.builder.Snapshot().Ejections))
		w.bounds()
		w.flows = slices.DeleteFunc(w.flows, func(f flow) bool { // as the clean-up of conntrack does
			return slices.ContainsFunc(w.verdict.Left, func(l ejection.Left) bool { return l.Addr == f.To && l.Mode == ejection.On })
		})
	}
}

// bounds checks what holds at any time: no port loses more than half of its endpoints, or the last.
func (w *world) bounds() {
	w.t.Helper()
	for _, s := range w.builder.Snapshot().Services.All() {
		for i := range s.Ports {
			ready, silent := 0, 0
			for e := range s.Ports[i].Endpoints.All() {
				switch {
				case e.Silent:
					silent++
				case e.Ready:
					ready++
				}
			}
			if silent > ready {
				w.t.Fatalf("%s: %d of %d endpoints are left out", s.Name, silent, silent+ready)
			}
		}
	}
	if len(w.pending) > 64 {
		w.t.Fatalf("%d connects under way", len(w.pending))
	}
}

func (w *world) left() (list []string) {
	for _, l := range w.verdict.Left {
		list = append(list, fmt.Sprintf("%s %s", l.Port, l.Addr))
	}
	return list
}

func (w *world) wantLeft(want ...string) {
	w.t.Helper()
	if got := w.left(); !slices.Equal(got, want) {
		w.t.Fatalf("after %v: left out %q, want %q; held: %v", w.now.Sub(start), got, want, w.verdict.Held)
	}
}

func (w *world) wantHeld(why ejection.Reason) {
	w.t.Helper()
	w.wantLeft()
	if !slices.ContainsFunc(w.verdict.Held, func(h ejection.Held) bool { return h.Why == why }) {
		w.t.Fatalf("held: %v, want one because of %q", w.verdict.Held, why)
	}
}

// traffic connects once in every tick, from two clients by turns.
func (w *world) traffic(name service.Name) func(int) {
	return func(i int) { w.connect(name, fmt.Sprint("client-", i%2)) }
}

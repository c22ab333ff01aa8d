package ejection_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"nftproxy/model/ejection"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/snapshots"
)

// world is a cluster with a clock of its own, seen from the node "own". Its parts die and come back, clients on the
// node connect to its Services, and a machine decides what they do without.
type world struct {
	t       testing.TB
	now     time.Time
	rng     *rand.Rand
	builder *snapshots.Builder
	machine *ejection.Machine
	modes   map[service.Name]service.Eject
	decided map[service.Name]bool // if not nil: the Services that the machine has decided on
	// nodes are the Nodes that the API server knows, places says where an address really is, whatever slices say.
	nodes  map[string]ejection.Facts
	places map[netip.Addr]string
	// dead has the nodes and gone the addresses that answer nobody. forbidden says that a policy drops what comes from
	// this node to an address, by a client or by the node itself. firewall drops what comes to the ports of nodes.
	dead      map[string]bool
	gone      map[netip.Addr]bool
	forbidden func(to netip.AddrPort, client string) bool
	firewall  bool
	uplink    bool          // is down
	noServer  bool          // The API server is away.
	slow      time.Duration // is how long it takes
	lag       time.Duration // is how long another answer takes, at most

	// chosen has the endpoints that take connections, of the Service in chosenOf.
	chosen   map[service.Name][]netip.AddrPort
	chosenOf map[service.Name]*service.Service

	flows   []flow
	ids     uint32
	pending []pending
	asks    int
	lookups int
	verdict ejection.Verdict
	seen    service.Snapshot
	looked  time.Time
	next    time.Time // when a step is due
}

type flow struct {
	ejection.Flow
	begun  time.Time
	client string
}

type pending struct {
	ejection.Ask
	at     time.Time
	answer ejection.Answer
	facts  ejection.Facts
}

var start = time.Unix(1_800_000_000, 0)

func newWorld(t testing.TB) *world {
	rng := rand.New(rand.NewPCG(1, 2))
	w := &world{
		t: t, now: start, rng: rng, modes: map[service.Name]service.Eject{}, nodes: map[string]ejection.Facts{},
		places: map[netip.Addr]string{}, dead: map[string]bool{}, gone: map[netip.Addr]bool{},
		chosen: map[service.Name][]netip.AddrPort{}, chosenOf: map[service.Name]*service.Service{},
		forbidden: func(netip.AddrPort, string) bool { return false },
	}
	w.builder = snapshots.NewBuilder(service.Node{Name: "own", Zone: "z1",
		APIServers: []netip.Addr{netip.MustParseAddr("192.168.9.9")},
		PodCIDRs:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	w.machine = ejection.New(func(s *service.Service) service.Eject {
		if w.decided != nil {
			w.decided[s.Name] = true
		}
		return w.modes[s.Name]
	}, true, rng.Float64)
	for i, name := range []string{"own", "a", "b", "c", "d", "e"} {
		w.node(name, i)
	}
	return w
}

// node adds a Node, with the address 192.168.0.I and pods in 10.0.I.0/24.
func (w *world) node(name string, i int) {
	a := netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})
	w.places[a] = name
	w.nodes[name] = ejection.Facts{
		Addrs:    []netip.AddrPort{netip.AddrPortFrom(a, 10250), netip.AddrPortFrom(a, 10256)},
		PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)},
	}
}

// service adds a Service with TCP endpoints on the nodes, at 11.N.0.I:8080 where N and I are numbers of its own.
func (w *world) service(name string, nodes ...string) *service.Service {
	n := w.builder.Snapshot().Services.Len() + 1
	front := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	s := &service.Service{Name: service.Name(name), ClusterIPs: []netip.Addr{front}}
	var list []service.Endpoint
	for i, node := range nodes {
		a := netip.AddrFrom4([4]byte{11 + byte(n>>8), byte(n), byte(i >> 8), byte(i)})
		w.places[a] = node
		list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Node: node, Ready: true, Serving: true})
	}
	s.Ports = []service.Port{{Name: "web", Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}}
	w.set(s)
	return s
}

func (w *world) set(s *service.Service) {
	w.builder.Set(s)
	if _, has := w.modes[s.Name]; !has {
		w.modes[s.Name] = service.EjectOn
	}
}

// lose has an endpoint of a Service answer nobody, or be back.
func (w *world) lose(s *service.Service, i int, gone bool) { w.gone[endpoint(s, i).Addr()] = gone }

// endpoint returns an address of a Service.
func endpoint(s *service.Service, i int) netip.AddrPort { return s.Ports[0].Endpoints.Few()[i].Addr }

// edit changes a Service's endpoints.
func (w *world) edit(name service.Name, change func(i int, e *service.Endpoint)) {
	s := w.builder.Service(name).Clone()
	for p := range s.Ports {
		list := slices.Collect(s.Ports[p].Endpoints.All())
		for i := range list {
			change(i, &list[i])
		}
		s.Ports[p].Endpoints = service.MergeEndpoints(list)
	}
	w.set(s)
}

// silent says that nothing comes back from an address.
func (w *world) silent(to netip.AddrPort, client string) bool {
	place, there := w.places[to.Addr()]
	return !there || w.forbidden(to, client) || w.gone[to.Addr()] || w.dead[place] || w.uplink && place != "own"
}

// connect makes a connection of a client to a Service, by one of the endpoints that take connections.
func (w *world) connect(name service.Name, client string) {
	s := w.builder.Snapshot().Services.At(name)
	if s != w.chosenOf[name] {
		c := share.Choose(s, &s.Ports[0], w.builder.Node(), ip.V4)
		w.chosenOf[name], w.chosen[name] = s, slices.Collect(c.Cluster.All())
		if s.InternalPolicy == service.Local {
			w.chosen[name] = slices.Collect(c.Local.All())
		}
	}
	if list := w.chosen[name]; len(list) > 0 {
		w.connectTo(list[w.rng.IntN(len(list))], client)
	}
}

func (w *world) connectTo(a netip.AddrPort, client string) {
	w.ids++
	if w.silent(a, client) {
		w.flows = append(w.flows, flow{ejection.Flow{ID: w.ids, To: a}, w.now, client})
	}
}

const tick = 50 * time.Millisecond

// run lets time pass. each is called in every tick, first with 0.
func (w *world) run(d time.Duration, each func(i int)) {
	w.t.Helper()
	for i := range int(d / tick) {
		w.now = w.now.Add(tick)
		each(i)
		if w.now.Sub(w.looked) >= time.Second {
			w.looked = w.now
			w.flows = slices.DeleteFunc(w.flows, func(f flow) bool {
				return w.now.Sub(f.begun) > time.Minute || f.client != "forged" && !w.silent(f.To, f.client)
			})
			// As of a hash table: in an order that stays and does not depend on their age.
			slices.SortFunc(w.flows, func(a, b flow) int { return cmp.Compare(a.ID*2654435761, b.ID*2654435761) })
			var flows []ejection.Flow
			for _, f := range w.flows {
				flows = append(flows, f.Flow)
			}
			w.machine.Looked(w.now, flows)
			w.next = w.now
		}
		w.step()
	}
}

// step is what a daemon does after each event: a look, an answer, another snapshot, and the time that the machine has
// asked for.
func (w *world) step() {
	var come []pending
	w.pending = slices.DeleteFunc(w.pending, func(p pending) bool {
		if w.now.Before(p.at) {
			return false
		}
		come = append(come, p)
		return true
	})
	for _, p := range come { // Those of one tick come one after the other.
		w.machine.Answered(w.now, p.Ask, p.answer, p.facts)
		w.next = w.now
		w.decide()
	}
	if s := w.builder.Snapshot(); s != w.seen {
		w.seen = s
		w.machine.See(s)
		w.next = w.now
	}
	w.decide()
}

// decide has the machine make a step if one is due.
func (w *world) decide() {
	if w.next.IsZero() || w.now.Before(w.next) {
		return
	}
	before := w.verdict.Left
	v, asks, next := w.machine.Step(w.now)
	w.verdict, w.next = v, next
	for _, a := range asks {
		w.pending = append(w.pending, w.ask(a))
	}
	if slices.Equal(before, w.verdict.Left) {
		return
	}
	w.builder.SetAdjustments(w.verdict.Adjustments())
	out := map[netip.AddrPort]bool{}
	for _, l := range w.verdict.Left {
		out[l.Addr] = l.Mode == service.EjectOn
	}
	// As the clean-up of conntrack does.
	w.flows = slices.DeleteFunc(w.flows, func(f flow) bool { return f.client != "forged" && out[f.To] })
}

func (w *world) ask(a ejection.Ask) pending {
	if len(a.To) == 0 {
		w.lookups++
		if w.noServer || w.uplink {
			return pending{a, w.now.Add(10 * tick), ejection.Unknown, ejection.Facts{}}
		}
		return pending{a, w.now.Add(max(tick, w.slow)), ejection.Answered, w.nodes[a.Node]}
	}
	w.asks += len(a.To)
	for _, to := range a.To {
		if !w.silent(to, "node") && !(w.firewall && a.Node != "") {
			at := w.now.Add(tick)
			if w.lag > 0 {
				at = at.Add(time.Duration(w.rng.Int64N(int64(w.lag))))
			}
			return pending{a, at, ejection.Answered, ejection.Facts{}}
		}
	}
	return pending{a, w.now.Add(ejection.Patience), ejection.Unanswered, ejection.Facts{}}
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
		w.t.Fatalf("after %v: left out %q, want %q; held: %v, not judged: %v", w.now.Sub(start), got, want, w.verdict.Held,
			w.verdict.Unjudged)
	}
}

func (w *world) wantHeld(why ejection.Reason) {
	w.t.Helper()
	if !slices.ContainsFunc(w.verdict.Held, func(h ejection.Held) bool { return h.Why == why }) {
		w.t.Fatalf("held: %v, want one because of %q; left: %q", w.verdict.Held, why, w.left())
	}
}

// within lets time pass until something is so, and returns how long that took.
func (w *world) within(most time.Duration, what string, each func(int), is func() bool) time.Duration {
	w.t.Helper()
	began := w.now
	for w.now.Sub(began) < most {
		if w.run(tick, each); is() {
			return w.now.Sub(began)
		}
	}
	w.t.Fatalf("not within %v: %s; left %d: %.300q, held: %.500s, not judged: %v", most, what, len(w.left()), w.left(),
		fmt.Sprint(w.verdict.Held), w.verdict.Unjudged)
	return 0
}

// out says that a Service does without an address at its port.
func (w *world) out(name service.Name, a netip.AddrPort) bool {
	return slices.ContainsFunc(w.verdict.Left, func(l ejection.Left) bool { return l.Service == name && l.Addr == a })
}

// traffic connects to each of the Services in every tick, from two clients by turns.
func (w *world) traffic(names ...service.Name) func(int) {
	n := 0
	return func(int) {
		n++
		for _, name := range names {
			w.connect(name, fmt.Sprint("client-", n%2))
		}
	}
}

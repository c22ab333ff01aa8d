package ejection_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// TestPlay plays with a cluster at random: its parts die and come back, policies forbid clients or the node, tenants
// lie about nodes, addresses and conditions. At each step:
//
//   - What answers this node is back within 10 s.
//   - What is dead and not the last is out within 5 s, unless this node's own network is: from when a client has met
//     it, while another endpoint of the port has answered this node for 10 s (one on another node if there is any that
//     no client has found dead), and its port keeps more than half of its endpoints, or its Node is dead and the API
//     server answers. This node's own network counts as gone until it has been back for 10 s, and while as many Nodes
//     are silent as answer.
//
// "Answers" does not count for ports that cannot be asked (UDP): those follow their node, as their own slices say.
// EJECTION_STEPS asks for more steps than usual, and EJECTION_SEED for another first seed.
func TestPlay(t *testing.T) {
	steps, seed := 30_000, uint64(1)
	if testing.Short() {
		steps = 10_000
	}
	if n, err := strconv.Atoi(os.Getenv("EJECTION_STEPS")); err == nil {
		steps = n
	}
	if n, err := strconv.ParseUint(os.Getenv("EJECTION_SEED"), 10, 64); err == nil {
		seed = n
	}
	const each = 10_000
	outs := 0
	for seed, steps := range map[uint64]int{4000196: 400} { // that have found a fault
		p := newPlay(t, seed)
		p.run(time.Duration(steps)*tick, p.move)
	}
	for ; steps > 0; steps, seed = steps-each, seed+1 {
		p := newPlay(t, seed)
		p.run(time.Duration(min(steps, each))*tick, p.move)
		outs += p.outs
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if t.Logf("endpoints were left out %d times; the last seed was %d", outs, seed-1); outs == 0 {
		t.Error("nothing was ever left out")
	}
}

// play is a world in which anything may happen.
type play struct {
	*world
	seed     uint64
	nodes    []string // other than this one
	services []service.Name
	denied   map[netip.Addr]bool // The node, and the client "denied", may not connect.
	// answers and owed have since when an endpoint of a port answers this node, and since when it should be out.
	answers, owed map[key]time.Time
	met           map[netip.AddrPort]bool      // by a client, since it died
	up            map[netip.AddrPort]time.Time // since when it answers this node
	outs          int
	// filtered is when what asks any node was forbidden or allowed last, hidden when a firewall hid one last, connected
	// when this node's network came back, and served when the API server did.
	filtered, connected, served time.Time
	// turned is when a node has died or come back last, and brief says that this was soon after the time before.
	turned, hidden map[string]time.Time
	brief          map[string]bool
	log            []string
}

type key struct {
	service service.Name
	addr    netip.AddrPort
}

func newPlay(t *testing.T, seed uint64) *play {
	w := newWorld(t)
	p := &play{world: w, seed: seed, denied: map[netip.Addr]bool{}, answers: map[key]time.Time{},
		owed: map[key]time.Time{}, met: map[netip.AddrPort]bool{}, up: map[netip.AddrPort]time.Time{},
		turned: map[string]time.Time{}, hidden: map[string]time.Time{}, brief: map[string]bool{}}
	w.rng = rand.New(rand.NewPCG(seed, 7))
	w.forbidden = func(to netip.AddrPort, client string) bool {
		return p.denied[to.Addr()] && (client == "node" || client == "denied")
	}
	p.nodes = []string{"a", "b", "c", "d", "e"}
	if p.chance(3) { // There is only one other.
		for _, name := range p.nodes[1:] {
			delete(w.nodes, name)
		}
		p.nodes = p.nodes[:1]
	}
	for i := range 8 {
		var on []string
		for range 1 + w.rng.IntN(8) {
			on = append(on, append(p.nodes, "own")[w.rng.IntN(len(p.nodes)+1)])
		}
		s := w.service(fmt.Sprintf("ns-%d/s%d", i%4, i), on...)
		p.services = append(p.services, s.Name)
		for i, node := range on {
			if facts := w.nodes[node]; seed%2 == 0 { // The API server knows which pods are on a Node.
				facts.PodCIDRs = append(facts.PodCIDRs, netip.PrefixFrom(endpoint(s, i).Addr(), 32))
				w.nodes[node] = facts
			}
		}
	}
	return p
}

// addr is the address of a Node.
func (p *play) addr(node string) netip.Addr { return p.world.nodes[node].Addrs[0].Addr() }

func (p *play) chance(one int) bool { return p.rng.IntN(one) == 0 }

func (p *play) note(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf("%v ", p.now.Sub(start))+fmt.Sprintf(format, args...))
}

// move lets something happen, has clients connect, and asks the oracle.
func (p *play) move(int) {
	if p.chance(60) {
		p.happen()
	}
	before := len(p.flows)
	for range 6 {
		name := p.services[p.rng.IntN(len(p.services))]
		p.connect(name, []string{"client", "denied"}[p.rng.IntN(2)])
	}
	for _, f := range p.flows[before:] {
		p.met[f.To] = p.met[f.To] || f.client == "client"
	}
	p.ask()
}

func (p *play) happen() {
	name := p.services[p.rng.IntN(len(p.services))]
	s := p.builder.Service(name)
	list := slices.Collect(s.Ports[0].Endpoints.All())
	a := list[p.rng.IntN(len(list))].Addr.Addr()
	node := p.nodes[p.rng.IntN(len(p.nodes))]
	switch p.rng.IntN(15) {
	case 0, 1, 2:
		p.gone[a] = p.chance(2)
		p.note("%v of %s gone: %v", a, name, p.gone[a])
	case 3, 4:
		if was := p.dead[node]; was != p.chance(3) {
			p.dead[node] = !was
			p.brief[node] = p.now.Sub(p.turned[node]) < 20*time.Second
			p.turned[node] = p.now
		}
		p.note("node %s dead: %v", node, p.dead[node])
	case 5:
		p.denied[a] = p.chance(3)
		p.note("%v denied: %v", a, p.denied[a])
	case 6:
		if p.noServer = p.chance(3); !p.noServer {
			p.served = p.now
		}
		p.note("no server: %v", p.noServer)
	case 7:
		if was := p.firewall; was != p.chance(5) {
			p.firewall, p.filtered = !was, p.now
		}
		p.note("firewall: %v", p.firewall)
	case 14: // A firewall of one node.
		p.gone[p.addr(node)] = p.chance(3)
		p.note("firewall of %s: %v", node, p.gone[p.addr(node)])
	case 8:
		if p.uplink = p.chance(5); !p.uplink {
			p.connected = p.now
		}
		p.note("uplink: %v", p.uplink)
	case 9: // The slice says something else of a node.
		claim := []string{"own", node, "invented", ""}[p.rng.IntN(4)]
		p.change(name, func(e *service.Endpoint) { e.Node = claim })
	case 10: // Another's endpoint, or an address where nothing is.
		other := p.builder.Service(p.services[p.rng.IntN(len(p.services))])
		e := service.Endpoint{Addr: endpoint(other, 0), Node: node, Ready: true, Serving: true}
		if p.chance(2) {
			e.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(p.rng.IntN(8))}), 8080)
		}
		if len(list) < 20 {
			next := s.Clone()
			next.Ports[0].Endpoints = service.MergeEndpoints(append(list, e))
			p.set(next)
			p.note("%s has %v", name, e)
		}
	case 11:
		weight, zone := service.Weight(0), []service.Hints{"", "z1", "z2"}[p.rng.IntN(3)]
		if p.chance(3) {
			weight = service.NewWeight(0)
		}
		p.change(name, func(e *service.Endpoint) { e.Weight, e.Zones = weight, zone })
	case 12:
		ready := !p.chance(3)
		p.change(name, func(e *service.Endpoint) { e.Ready, e.Terminating = ready, !ready })
	case 13:
		next := s.Clone()
		next.InternalPolicy = service.TrafficPolicy(p.chance(3))
		p.modes[name] = []service.Eject{service.EjectOn, service.EjectOn, service.EjectOn, service.EjectReport}[p.rng.IntN(4)]
		next.Options.Eject = p.modes[name] // Another mode is another Service.
		p.set(next)
		p.note("%s: %v, %v", name, next.InternalPolicy, p.modes[name])
	}
}

// change changes a random endpoint of a Service.
func (p *play) change(name service.Name, change func(*service.Endpoint)) {
	n := p.rng.IntN(p.builder.Service(name).Ports[0].Endpoints.Len())
	p.edit(name, func(i int, e *service.Endpoint) {
		if i == n {
			change(e)
			p.note("%s is %+v", name, *e)
		}
	})
}

// ask asks the oracle.
func (p *play) ask() {
	for _, n := range p.nodes {
		if p.firewall || p.gone[p.addr(n)] {
			p.hidden[n] = p.now
		}
	}
	for _, name := range p.services {
		s := p.builder.Snapshot().Services.At(name)
		whole := share.Unadjusted(p.builder.Snapshot(), name)
		c := share.Choose(whole, &whole.Ports[0], p.builder.Node(), ip.V4)
		for e := range s.Ports[0].Endpoints.All() {
			k := key{name, e.Addr}
			answers := !p.silent(e.Addr, "node")
			if at, up := p.up[e.Addr]; !answers {
				delete(p.up, e.Addr)
			} else if !up || at.IsZero() {
				p.up[e.Addr] = p.now
			}
			if !p.silent(e.Addr, "client") {
				p.met[e.Addr] = false
			}
			if e.Share == service.NoShare {
				p.outs++
			}
			if p.lasts(p.answers, k, answers && e.Share == service.NoShare, 10*time.Second) {
				p.fail(k, "answers, and is left out")
			}
			if p.lasts(p.owed, k, e.Ready && e.Share != service.NoShare && p.owes(name, s, &c, e), 5*time.Second) {
				p.fail(k, "is dead, and not left out")
			}
		}
	}
}

// lasts says that something has been so for a time.
func (p *play) lasts(since map[key]time.Time, k key, is bool, d time.Duration) bool {
	if !is {
		delete(since, k)
		return false
	}
	if since[k].IsZero() {
		since[k] = p.now
	}
	return p.now.Sub(since[k]) > d
}

// owes says that an endpoint that is not left out should be.
func (p *play) owes(name service.Name, s *service.Service, c *share.Choice, e service.Endpoint) bool {
	// As many Nodes may be silent as answer, of those that the API server has told of. One that a firewall hid is not
	// asked for a minute.
	hidden := func(n string) bool { return p.now.Sub(p.hidden[n]) < 75*time.Second }
	others := 0
	for _, n := range p.nodes {
		others += boolInt(!p.dead[n] && (p.firewall || !hidden(n)))
	}
	served := !p.noServer && p.now.Sub(p.served) >= 10*time.Second
	if p.modes[name] != service.EjectOn || !p.silent(e.Addr, "client") || !p.met[e.Addr] || p.uplink ||
		others < 3+boolInt(p.noServer) && (len(p.nodes) > 1 || !served) ||
		p.now.Sub(p.filtered) < 15*time.Second || p.now.Sub(p.connected) < 10*time.Second {
		return false
	}
	answering, remote := [2]bool{}, false
	lost := p.dead[e.Node] && p.places[e.Addr.Addr()] == e.Node && !p.brief[e.Node] && served && len(p.nodes) > 1 &&
		!hidden(e.Node)
	for _, list := range []share.Addresses{c.Cluster, c.Local} {
		out, taker := 0, false
		for a := range list.All() {
			other := s.Ports[0].Endpoints.Find(service.Endpoint{Addr: a})
			out += boolInt(other.Share == service.NoShare)
			taker = taker || a == e.Addr
			here := c.OnNode.Find(a) != nil
			if at, up := p.up[a]; up && p.now.Sub(at) >= 10*time.Second {
				answering[boolInt(!here)] = true
			}
			remote = remote || !here && !(p.silent(a, "client") && p.met[a])
		}
		if rest := list.Len() - out - 1; taker && (rest == 0 || !lost && rest <= out) {
			return false
		}
	}
	if c.Cluster.Find(e.Addr) == nil && c.Local.Find(e.Addr) == nil {
		return false
	}
	return answering[1] || answering[0] && !remote && !p.noServer
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (p *play) fail(k key, what string) {
	p.t.Errorf("seed %d, after %v: %s %v %s; left: %q, held: %v, not judged: %v\n%q\n%s", p.seed, p.now.Sub(start),
		k.service, k.addr, what,
		p.left(), p.verdict.Held, p.verdict.Unjudged, p.log[max(0, len(p.log)-10):], p.machine.Dump(p.now))
	p.t.FailNow()
}

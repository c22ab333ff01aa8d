package script

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// The pools that events draw from. Package soak makes a pod for each of Pods.
const (
	// Names is the number of Services' names, and Addresses that of cluster IPs of each
	// family, and of node ports. There are more addresses than names, so that some are
	// free for a while, and so few that names get those that others had.
	Names     = 6
	Addresses = 8
	// Extra is the number of addresses and interfaces that the node gets and loses.
	Extra = 12
	// MaxCrowd is the greatest number of Services beside those, so many that sets outgrow
	// their sizes.
	MaxCrowd = 400
)

// Pods are the names of the pods that serve: those on the node first.
func Pods() []string { return []string{"a", "b", "c", "d", "x", "y"} }

// Generator draws a script without end.
type Generator struct {
	rng  *rand.Rand
	now  world
	kept *world // as at the last backup; nil before
	// queue has the events of the round that has begun.
	queue []Event
	first bool
	// eject says that the proxy leaves out endpoints that do not answer.
	eject bool
}

// world is what the generator knows of the world that its events make.
type world struct {
	services map[string]int // to the number of the address
	running  bool
	api      bool
	cut      bool // a pod answers nobody
}

func (w world) clone() world {
	w.services = maps.Clone(w.services)
	return w
}

// NewGenerator returns the generator of a seed.
func NewGenerator(seed uint64) *Generator {
	const stream = 15 // any constant: another one gives other scripts
	g := &Generator{rng: rand.New(rand.NewPCG(seed, stream)), first: true}
	g.now = world{services: map[string]int{}, api: true}
	return g
}

// Next returns the next event. The first is World.
func (g *Generator) Next() Event {
	if len(g.queue) == 0 {
		g.round()
	}
	e := g.queue[0]
	g.queue = g.queue[1:]
	return e
}

// round draws the events until the next Settle.
func (g *Generator) round() {
	if g.first {
		g.first = false
		g.begin()
		return
	}
	for range 1 + g.rng.IntN(6) {
		g.draw()
	}
	// Mostly the round ends with everything up, so that it can settle at what the API
	// server holds now. Now and then a round ends without the one or the other.
	if g.now.cut && g.rng.IntN(3) > 0 {
		g.repair()
	}
	if !g.now.api && g.rng.IntN(3) > 0 {
		g.startAPI()
	}
	if !g.now.running && (g.rng.IntN(4) > 0 || !g.now.api) {
		g.start()
	}
	g.add(New(Settle))
}

// begin makes the world: its options and its first Services.
func (g *Generator) begin() {
	eject := g.oneIn(2)
	g.eject = eject == "yes"
	g.add(New(World,
		"owned="+[]string{"yes", "yes", "no"}[g.rng.IntN(3)],
		g.counters(), g.masqueradeAll(),
		"clean-established="+g.oneIn(4),
		"node-ports="+[]string{"primary", "all", "192.168.100.0/24"}[g.rng.IntN(3)],
		"eject="+eject,
		"local="+[]string{"ClusterCIDR", "InterfaceNamePrefix"}[g.rng.IntN(2)],
	))
	for range 4 {
		g.service()
	}
	g.start()
	g.add(New(Settle))
}

func (g *Generator) oneIn(n int) string { return []string{"yes", "no"}[min(1, g.rng.IntN(n))] }

func (g *Generator) counters() string {
	return "counters=" + []string{"none", "tables", "metrics"}[g.rng.IntN(3)]
}

func (g *Generator) masqueradeAll() string { return "masquerade-all=" + g.oneIn(4) }

func (g *Generator) add(e Event) { g.queue = append(g.queue, e) }

// draw draws one event that makes sense now, or a few that belong together.
func (g *Generator) draw() {
	type choice struct {
		weight int
		can    bool
		do     func()
	}
	api := g.now.api
	choices := []choice{
		{20, api, g.service},
		{50, api && len(g.now.services) > 0, g.endpoints},
		{8, api && len(g.now.services) > 1, g.delete},
		{6, g.now.running, func() { g.end(Kill) }},
		{6, g.now.running, func() { g.end(Term) }},
		{12, !g.now.running, g.start},
		{3, g.now.running, func() {
			g.add(New(Pause, fmt.Sprintf("ms=%d", 100+g.rng.IntN(3000)), fmt.Sprintf("commits=%d", g.rng.IntN(3)*1000)))
		}},
		{2, g.now.running, func() { g.add(New(Older)) }},
		{2, g.now.running, func() { g.add(New(Options, g.counters(), g.masqueradeAll())) }},
		{2, api, func() { g.add(New(Crowd, fmt.Sprintf("n=%d", g.rng.IntN(3)*g.rng.IntN(MaxCrowd/2)))) }},
		{5, true, func() { g.add(New(Flush)) }},
		{12, true, g.tamper},
		{2, true, func() { g.add(New(Unowned)) }},
		{6, true, func() { g.add(New(Other, fmt.Sprintf("seed=%d", g.rng.IntN(1000)))) }},
		{3, true, func() { g.add(New(Churn, fmt.Sprintf("commits=%d", 100+g.rng.IntN(900)))) }},
		{1, g.rng.IntN(3) == 0, func() { g.add(New(Full, fmt.Sprintf("ms=%d", 200+g.rng.IntN(2000)))) }},
		{3, api, func() { g.add(New(StopAPI)); g.now.api = false }},
		{9, !api, g.startAPI},
		{2, api, func() { g.add(New(Backup)); kept := g.now.clone(); g.kept = &kept }},
		{3, g.kept != nil, g.restore},
		{5, true, func() { g.add(New(AddAddress, g.extra())) }},
		{5, true, func() { g.add(New(DelAddress, g.extra())) }},
		{4, true, func() { g.add(New(AddLink, g.extra())) }},
		{4, true, func() { g.add(New(DelLink, g.extra())) }},
		{4, g.eject && !g.now.cut, g.cut},
		{6, g.now.cut, g.repair},
	}
	total := 0
	for _, c := range choices {
		if c.can {
			total += c.weight
		}
	}
	n := g.rng.IntN(total)
	for _, c := range choices {
		if !c.can {
			continue
		}
		if n -= c.weight; n < 0 {
			c.do()
			return
		}
	}
}

func (g *Generator) extra() string { return fmt.Sprintf("n=%d", g.rng.IntN(Extra)) }

func (g *Generator) start() {
	g.add(New(Start))
	g.now.running = true
}

func (g *Generator) end(verb string) {
	g.add(New(verb))
	if g.now.running = false; g.rng.IntN(2) == 0 {
		g.start()
	}
}

func (g *Generator) startAPI() {
	g.add(New(StartAPI))
	g.now.api = true
}

func (g *Generator) restore() {
	g.add(New(Restore))
	running, cut := g.now.running, g.now.cut
	g.now = g.kept.clone()
	g.now.running, g.now.api, g.now.cut = running, true, cut
}

func (g *Generator) cut() {
	g.add(New(Cut, "pod="+Pods()[g.rng.IntN(len(Pods()))]))
	g.now.cut = true
}

func (g *Generator) repair() {
	g.add(New(Repair))
	g.now.cut = false
}

// service makes or changes a Service, and gives a new one endpoints.
func (g *Generator) service() {
	name := fmt.Sprintf("s%d", 1+g.rng.IntN(Names))
	at, there := g.now.services[name]
	if !there || g.rng.IntN(6) == 0 {
		at = g.freeAddress(at)
	}
	args := []string{
		"name=" + name, fmt.Sprintf("at=%d", at),
		"type=" + []string{"ClusterIP", "NodePort"}[g.rng.IntN(2)],
		"families=" + []string{"46", "46", "46", "64", "4", "6"}[g.rng.IntN(6)],
		"protocols=" + []string{"tcp,udp", "tcp,udp", "tcp,udp", "tcp", "udp"}[g.rng.IntN(5)],
	}
	if g.rng.IntN(4) == 0 {
		args = append(args, "internal=Local")
	}
	if g.rng.IntN(3) == 0 {
		args = append(args, "external=Local")
	}
	if g.rng.IntN(4) == 0 {
		args = append(args, "failover="+[]string{"cluster", "pass"}[g.rng.IntN(2)])
	}
	if g.rng.IntN(3) == 0 {
		args = append(args, "departed="+[]string{"keep", "cut"}[g.rng.IntN(2)])
	}
	if g.rng.IntN(4) == 0 {
		args = append(args, "ranges="+[]string{"7000-7100/TCP", "7000-7100/UDP,9/TCP",
			"20000-60000/TCP,20000-60000/UDP"}[g.rng.IntN(3)])
	}
	if g.rng.IntN(4) == 0 {
		args = append(args, "slow-start="+[]string{"1s", "5s", "60s"}[g.rng.IntN(3)])
	}
	if g.rng.IntN(4) == 0 {
		args = append(args, "udp-timeouts="+[]string{"30s,10m", "10m,24h"}[g.rng.IntN(2)], "tcp-timeout="+
			[]string{"30m", "72h"}[g.rng.IntN(2)])
	}
	if g.rng.IntN(4) == 0 {
		args = append(args, fmt.Sprintf("affinity=%d", []int{5, 600, 10800}[g.rng.IntN(3)]))
	}
	if g.rng.IntN(5) == 0 {
		args = append(args, fmt.Sprintf("external-ip=%d", g.rng.IntN(4)))
	}
	g.add(New(Service, args...))
	g.now.services[name] = at
	if !there {
		g.endpointsOf(name)
	}
}

// freeAddress returns an address that no Service has; at is this Service's own, or 0.
func (g *Generator) freeAddress(at int) int {
	used := slices.Collect(maps.Values(g.now.services))
	for {
		n := 1 + g.rng.IntN(Addresses)
		if n == at || !slices.Contains(used, n) {
			return n
		}
	}
}

func (g *Generator) names() []string { return slices.Sorted(maps.Keys(g.now.services)) }

func (g *Generator) endpoints() {
	names := g.names()
	g.endpointsOf(names[g.rng.IntN(len(names))])
}

// The marks of an endpoint's conditions, behind the pod's name.
const (
	NotReady    = "-" // neither ready nor serving
	Terminating = "!" // terminating, and serving
	Gone        = "~" // terminating, and not serving any more
)

func (g *Generator) endpointsOf(name string) {
	var list []string
	for _, pod := range Pods() {
		switch g.rng.IntN(10) {
		case 0, 1, 2, 3:
			list = append(list, pod)
		case 4:
			list = append(list, pod+[]string{NotReady, Terminating, Terminating, Gone}[g.rng.IntN(4)])
		}
	}
	g.add(New(Endpoints, "name="+name, "pods="+strings.Join(list, ",")))
}

func (g *Generator) delete() {
	names := g.names()
	name := names[g.rng.IntN(len(names))]
	g.add(New(Delete, "name="+name))
	delete(g.now.services, name)
}

// The ways to tamper with the tables.
const (
	DeleteElements = "delete-elements"
	ChangeElements = "change-elements"
	AddElements    = "add-elements"
	FlushChain     = "flush-chain"
	AddRule        = "add-rule"
	DeleteTable    = "delete-table"
	AddChain       = "add-chain"
	Dormant        = "dormant"
)

// WaysToTamper lists the ways; the one that is drawn most often stands twice.
func WaysToTamper() []string {
	return []string{DeleteElements, DeleteElements, ChangeElements, AddElements, FlushChain, AddRule, DeleteTable,
		AddChain, Dormant}
}

func (g *Generator) tamper() {
	how := WaysToTamper()
	g.add(New(Tamper, "how="+how[g.rng.IntN(len(how))], fmt.Sprintf("seed=%d", g.rng.IntN(1000))))
}

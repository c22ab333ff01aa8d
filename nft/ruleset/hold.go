package ruleset

import (
	"encoding/binary"
	"iter"
	"strconv"
	"strings"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// A Service may ask that connections to its ports without endpoints are held (service.Options.Hold): their first
// packets are dropped, so that the client's kernel sends them again, and reaches the first endpoint. The frontend leads
// to the chain hold-N of its access, where N is the seconds for which a flow is held. That chain remembers each flow in
// two sets with time-outs: as long as the first has it, it goes on to the chain held, which counts and drops. Then the
// second still has it, and it goes to the chain of NoEndpoints. A flow is what has the same addresses, ports and
// protocol: each connection waits for its own time, so that a Service which nobody has asked for a while holds again.
//
// If a set is full, no further flow is remembered, and flows are held until their clients give up. So nobody's flood
// has the connections of others refused. The chain hold-N counts their packets.
//
// All of this is in a table only while some frontend holds.
const (
	// heldFlows has the flows that are held, and heldBefore also those that were.
	heldFlows  = "held-flows"
	heldBefore = "held-before"
	// holdPrefix begins the names of the chains, behind the prefix of their access.
	holdPrefix = "hold-"
)

// heldBeforeFor is how long a flow is remembered. A client's kernel waits for as long again as it has waited so far, or
// for 3 s at first (SCTP), so that one more packet comes within that time and is refused.
func heldBeforeFor(hold time.Duration) time.Duration { return 2*hold + 4*time.Second }

// flowKey is the key of both sets.
func flowKey() nft.Fields { return join(sourceKey(), nft.Sport) }

func heldFlowsSet(name string) *nft.Set { return &nft.Set{Name: name, Key: flowKey(), Dynamic: true} }

// holding makes the chain hold-N of an access.
type holding struct {
	access *access
	hold   time.Duration
}

func (h holding) name() string {
	return h.access.chainPrefix + holdPrefix + strconv.Itoa(int(h.hold/time.Second))
}

// holdOf returns for how long the chain of that name holds; 0 for another chain.
func holdOf(chain string) time.Duration {
	// It is asked for each element of a program: it allocates nothing.
	access, text, ok := strings.Cut(chain, holdPrefix)
	if !ok || access != "" && access != nodePortPrefix && access != rangePrefix {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// make makes the chain. A packet of TCP that opens no connection is one of a connection that nobody knows any more: it
// is refused at once, and neither remembered nor counted as somebody who waits.
func (h holding) make(cfg *Config, _ pods) made {
	held, refused := gotoChain(h.access.refusalChain(Held)), gotoChain(h.access.refusalChain(NoEndpoints))
	chain := &nft.Chain{Name: h.name(), Rules: []nft.Rule{
		RefuseMidstream.rule(nft.MatchMidstream{}, refused),
		HoldKnown.rule(nft.InSet{Key: flowKey(), Set: heldFlows}, held),
		RefuseHeld.rule(nft.InSet{Key: flowKey(), Set: heldBefore}, refused),
		// One rule, since a full set ends its rule: what is not in the first set must not be in the second.
		NoteHeld.rule(nft.Update{Map: heldFlows, Key: flowKey(), Timeout: h.hold},
			nft.Update{Map: heldBefore, Key: flowKey(), Timeout: heldBeforeFor(h.hold)}, held),
		HoldUnnoted.rule(nft.Counter{}, held),
	}}
	cfg.uncount(chain)
	return made{chains: []*nft.Chain{chain}, needs: []wanted{
		{need{needHeld, h.access.verdicts}, heldChain{h.access}},
		{need{kind: needHeldFlows}, heldSets{}},
	}}
}

// heldChain makes what counts and drops the held packets of an access.
type heldChain struct{ *access }

func (h heldChain) make(cfg *Config, _ pods) made {
	chain := &nft.Chain{Name: h.refusalChain(Held), Rules: []nft.Rule{h.refusalRule(Held), dropCounted()}}
	cfg.adapt(chain)
	sets := []*nft.Set{h.refusalSetOf(Held)}
	cfg.count(sets)
	return made{chains: []*nft.Chain{chain}, sets: sets}
}

// heldSets makes the sets of flows.
type heldSets struct{}

func (heldSets) make(*Config, pods) made {
	return made{sets: []*nft.Set{heldFlowsSet(heldFlows), heldFlowsSet(heldBefore)}}
}

// holdAll holds the packets of the frontend. Those that are refused after all count as NoEndpoints.
func (c *serviceCompiler) holdAll(f frontend) {
	h := holding{f.access, c.svc.Options.Hold}
	define(c, h.name(), h)
	c.addVerdict(f, f.verdicts, gotoChain(h.name()))
	c.addRefusal(f, Held)
	c.addRefusal(f, NoEndpoints)
}

// HeldFlows returns the set of the flows that are held, as tables of the name have it while a frontend holds.
func HeldFlows() *nft.Set { return heldFlowsSet(heldFlows) }

// Place is where a frontend is: its map of verdicts, behind source ranges too, and its key there.
type Place struct {
	Set string
	Key nft.Value
}

// Ranged says whether the frontend has the ports of a list, rather than one port.
func (p Place) Ranged() bool { return p.Set == rangeServices }

// PlaceOf returns the frontend with that key in a map of verdicts; ok is false for another map.
func PlaceOf(set string, key nft.Value) (at Place, ok bool) {
	switch set {
	case services, servicesRestricted:
		return Place{services, key}, true
	case nodePorts, nodePortsRestricted:
		return Place{nodePorts, key}, true
	case rangeServices:
		return Place{rangeServices, key}, true
	}
	return Place{}, false
}

// Reach is which packets a frontend gets, and whether it holds them.
type Reach struct {
	Holds bool
	// Ranges are the only ports, if the Place is Ranged.
	Ranges service.PortRanges
}

// ReachAt returns what a table has at a frontend without source ranges; ok is false if it has no such frontend.
func ReachAt(c *nft.Contents, at Place) (r Reach, ok bool) {
	element := func(name string) (e nft.Element, ok bool) {
		if set := c.Sets[name]; set != nil {
			e, ok = set.Elements[at.Key]
		}
		return e, ok
	}
	e, ok := element(at.Set)
	r.Holds = holdOf(e.Verdict.Chain) > 0
	if at.Ranged() {
		list, _ := element(portRanges)
		r.Ranges = rangesOf(list.Verdict.Chain)
	}
	return r, ok
}

// Frontends yields the frontends of a part. One behind source ranges comes twice, and holds if it does so once. The
// part may be nil.
func Frontends(part *nft.Part) iter.Seq2[Place, Reach] {
	return func(yield func(Place, Reach) bool) {
		if part == nil {
			return
		}
		ranges := map[nft.Value]service.PortRanges{}
		for i := range part.Elements {
			if e := &part.Elements[i]; e.Set == portRanges {
				ranges[e.Key] = rangesOf(e.Verdict.Chain)
			}
		}
		for i := range part.Elements {
			e := &part.Elements[i]
			at, ok := PlaceOf(e.Set, e.Key)
			if !ok {
				continue
			}
			r := Reach{Holds: holdOf(e.Verdict.Chain) > 0}
			if at.Ranged() {
				r.Ranges = ranges[at.Key]
			}
			if !yield(at, r) {
				return
			}
		}
	}
}

// CountUnnoted yields the chains of a table whose counters count packets of flows for which a set has no room.
func CountUnnoted(table *nft.Table) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range table.Chains.All() {
			if holdOf(name) > 0 && !yield(name) {
				return
			}
		}
	}
}

// PlacesOfFlow returns the frontends that a flow of HeldFlows may have asked, in the order in which the rules look, and
// the port that it asked for.
func PlacesOfFlow(f nft.Family, flow nft.Value) (places [3]Place, asked uint16) {
	client := f.AddrLen() + nft.Fields{nft.Sport}.Len(f)
	frontend := flow[:max(0, len(flow)-client)]
	protocol, port := f.AddrLen(), f.AddrLen()+nft.Fields{nft.L4Proto}.Len(f)
	if len(frontend) < port+2 {
		return places, 0
	}
	return [3]Place{{services, frontend}, {rangeServices, frontend[:port]}, {nodePorts, frontend[protocol:]}},
		binary.BigEndian.Uint16([]byte(frontend[port : port+2]))
}

// HeldFor returns for how long a frontend's verdict holds; 0 if it does not.
func HeldFor(v nft.Verdict) time.Duration { return holdOf(v.Chain) }

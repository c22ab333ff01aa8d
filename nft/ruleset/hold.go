package ruleset

import (
	"iter"
	"strconv"
	"strings"
	"time"

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
// has the connections of others refused.
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
	for _, a := range accessWithRanges() {
		if text, ok := strings.CutPrefix(chain, a.chainPrefix+holdPrefix); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				return time.Duration(n) * time.Second
			}
		}
	}
	return 0
}

// make makes the chain. A packet of TCP that opens no connection is one of a connection that nobody knows any more: it
// is refused at once, and neither remembered nor counted as somebody who waits.
func (h holding) make(*Config, pods) made {
	held, refused := gotoChain(h.access.refusalChain(Held)), gotoChain(h.access.refusalChain(NoEndpoints))
	rules := []nft.Rule{
		RefuseMidstream.rule(nft.MatchMidstream{}, refused),
		HoldKnown.rule(nft.InSet{Key: flowKey(), Set: heldFlows}, held),
		RefuseHeld.rule(nft.InSet{Key: flowKey(), Set: heldBefore}, refused),
		// One rule, since a full set ends its rule: what is not in the first set must not be in the second.
		NoteHeld.rule(nft.Update{Map: heldFlows, Key: flowKey(), Timeout: h.hold},
			nft.Update{Map: heldBefore, Key: flowKey(), Timeout: heldBeforeFor(h.hold)}),
		HoldNew.rule(held),
	}
	return made{chains: []*nft.Chain{{Name: h.name(), Rules: rules}}, needs: []wanted{
		{need{needHeld, h.access.verdicts}, heldChain{h.access}},
		{need{kind: needHeldFlows}, heldSets{}},
	}}
}

// heldChain makes what counts and drops the held packets of an access.
type heldChain struct{ *access }

func (h heldChain) make(cfg *Config, _ pods) made {
	chain := &nft.Chain{Name: h.refusalChain(Held), Rules: []nft.Rule{h.refusalRule(Held), dropCounted()}}
	cfg.uncount(chain)
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

// holdsAt returns the frontend of an element by which packets are held; ok is false for another element.
func holdsAt(e *nft.Element) (at Place, ok bool) {
	if holdOf(e.Verdict.Chain) == 0 {
		return Place{}, false
	}
	return PlaceOf(e.Set, e.Key)
}

// PlaceOf returns the frontend with that key in a map of verdicts; ok is false for another map.
func PlaceOf(set string, key nft.Value) (at Place, ok bool) {
	for _, a := range accessWithRanges() {
		if set == a.verdicts || set == a.restricted && a.restricted != "" {
			return Place{a.verdicts, key}, true
		}
	}
	return Place{}, false
}

// Holding yields the frontends of a part that hold packets. The part may be nil.
func Holding(part *nft.Part) iter.Seq[Place] {
	return func(yield func(Place) bool) {
		if part == nil {
			return
		}
		for i := range part.Elements {
			if at, holds := holdsAt(&part.Elements[i]); holds && !yield(at) {
				return
			}
		}
	}
}

// PlacesOfFlow returns the frontends that a flow of HeldFlows may have asked, in the order in which the rules look.
func PlacesOfFlow(f nft.Family, flow nft.Value) [3]Place {
	var places [3]Place
	client := f.AddrLen() + nft.Fields{nft.Sport}.Len(f)
	frontend := flow[:max(0, len(flow)-client)]
	protocol, port := f.AddrLen(), f.AddrLen()+nft.Fields{nft.L4Proto}.Len(f)
	if len(frontend) < port {
		return places
	}
	return [3]Place{{services, frontend}, {rangeServices, frontend[:port]}, {nodePorts, frontend[protocol:]}}
}

// HeldFor returns for how long a frontend's verdict holds; 0 if it does not.
func HeldFor(v nft.Verdict) time.Duration { return holdOf(v.Chain) }

package conntrack

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
)

// cutoff says when the established connections to departed endpoints become stale. The zero value is never.
type cutoff struct {
	wanted bool
	at     time.Time
	// kept says that the Service asks to leave them alone, whatever becomes of them.
	kept bool
}

// due says that it is time.
func (c cutoff) due(now time.Time) bool { return c.wanted && !now.Before(c.at) }

// cutOf says what becomes of the established connections of a protocol to an endpoint that leaves the Service now: what
// the Service asks for, or else the node's Options.Established. Its zero time is one that is past.
func (x *Index) cutOf(s *service.Service, p service.Protocol) cutoff {
	asked := s.Options.Departed
	switch {
	case p == service.UDP: // Each datagram can begin the flow again: it never stays.
	case asked.Fate == service.DepartedAsNode && slices.Contains(x.options.Established, p):
		return cutoff{wanted: true}
	case asked.Fate == service.DepartedCut && asked.After == 0:
		return cutoff{wanted: true}
	case asked.Fate == service.DepartedCut:
		return cutoff{wanted: true, at: x.departed.now.Add(asked.After)}
	case asked.Fate == service.DepartedKeep:
		return cutoff{kept: true}
	}
	return cutoff{}
}

// tell tells the index the time. It never goes back.
func (x *Index) tell(now time.Time) {
	if now.After(x.departed.now) {
		x.departed.now = now
	}
}

// Advance tells the index the time, and returns the scope of the flows that have become stale by that since the last
// call. An index that is never told the time leaves connections alone that are to be cut some time after their endpoint
// has departed.
func (x *Index) Advance(now time.Time) Scope {
	u := update{Index: x}
	x.tell(now)
	for timed := &x.departed.timed; len(*timed) > 0 && !now.Before((*timed)[0].at); {
		c := heap.Pop(timed).(timedCut)
		if c.endpoints.Len() == 0 {
			u.scope.addClaim(c.claim)
		} else {
			u.loseEndpoints(c.claim, c.endpoints, 0, fewToCut)
		}
	}
	x.silence.due(now, &u.scope)
	return u.scope
}

// NextCut returns when time alone makes flows stale next; ok is false if nothing waits for that.
func (x *Index) NextCut() (at time.Time, ok bool) {
	at = x.silence.next
	if timed := x.departed.timed; len(timed) > 0 && (at.IsZero() || timed[0].at.Before(at)) {
		at = timed[0].at
	}
	return at, !at.IsZero()
}

// Note takes in a flow that is not stale. Of a restart only Presume tells which flows lead to endpoints that departed
// before, and it tells so for a while: Note remembers the endpoints whose connections are to be cut later, as departed
// now.
func (x *Index) Note(f *Flow) {
	x.noteDeparture(f)
	x.sight(f)
}

func (x *Index) noteDeparture(f *Flow) {
	if x.departed.anything == 0 || !f.Translated() || expendable(f) {
		return
	}
	o, ok := x.owner(f)
	if !ok || o.endpoint(f, f.Reply.Src) != nil {
		return
	}
	claim, of, at, number := o.claim(f), o.port, f.Reply.Src, f.Original.Dst.Port()
	switch {
	case !of.IsRange():
	case at.Port() == number:
		at = netip.AddrPortFrom(at.Addr(), 0) // as the endpoints of ranges are
	default: // Ranges keep the port: when the flow began, this was a port of its own.
		claim, of = addressClaim(f), &service.Port{}
	}
	cut := x.cutOf(o.service, f.Protocol)
	if (cut.wanted || f.Unacknowledged) && x.departed.last(number, f.Reply.Src, claim) == nil {
		x.departed.add(claim, of, service.MergeEndpoints([]service.Endpoint{{Addr: at}}), cut)
	}
}

// fewToCut is up to how many endpoints of one claim get a filter of their own when they are cut.
const fewToCut = 4

// timedCut are endpoints that a claim lost, with the time when connections there are cut. It has no more than fewToCut
// endpoints: of more, the connections to the whole claim are looked at.
type timedCut struct {
	claim     service.Claim
	endpoints service.Endpoints
	at        time.Time
}

// maxTimed bounds the number of cuts that are planned. What is not planned, a routine pass finds.
const maxTimed = 1 << 15

// timedCuts are planned cuts, a heap.
type timedCuts []timedCut

// add plans a cut if it is in the future.
func (t *timedCuts) add(now time.Time, c timedCut) {
	if now.Before(c.at) && len(*t) < maxTimed {
		if c.endpoints.Len() > fewToCut {
			c.endpoints = service.Endpoints{}
		}
		heap.Push(t, c)
	}
}

// Len, Less, Swap, Push and Pop are for the heap.

func (t timedCuts) Len() int           { return len(t) }
func (t timedCuts) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timedCuts) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timedCuts) Push(c any)        { *t = append(*t, c.(timedCut)) }
func (t *timedCuts) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = timedCut{}
	*t = (*t)[:last]
	return c
}

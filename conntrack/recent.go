package conntrack

import (
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// mostUnanswered is how many claims with unanswered flows one pass notes at most.
const mostUnanswered = 4096

// recent knows which claims may have flows in the middle of their handshake: those
// that had a new connection lately. The rules note new connections while they are in
// force. Of the time before, the first pass over the whole table tells: it sees the
// flows that are still unanswered. So does each later pass: an unanswered flow can be
// older than what the rules remember, if its client repeats its first packet.
type recent struct {
	record *Record // nil if no rules note anything
	// complete says that record and unanswered tell of all claims. learning says that
	// they will at the end of the pass under way.
	complete, learning bool
	// unanswered has the claims that had unanswered flows, with the time until which
	// their clients may repeat their first packets.
	unanswered map[service.Claim]time.Time
	lost       lostFrontends
}

// forget says that the rules may not have noted everything: they were changed by
// others, or are new.
func (r *recent) forget() { r.complete, r.learning, r.unanswered = false, false, nil }

// begin begins a pass over the whole table.
func (r *recent) begin(now time.Time) {
	if r.learning = !r.complete && r.record != nil; r.learning {
		r.unanswered = map[service.Claim]time.Time{}
	}
	for c, until := range r.unanswered {
		if now.After(until) {
			delete(r.unanswered, c)
		}
	}
}

// see takes in a flow that a pass read. Its destination may be a Service's address and port, a port of ranges or a
// node port.
func (r *recent) see(f *Flow, now time.Time) {
	if !r.learning && !r.complete || f.Protocol == service.UDP || f.Status&(SeenReply|DstNAT) != DstNAT {
		return
	}
	until := now.Add(r.record.Lasting)
	c := addressClaim(f)
	r.unanswered[c], r.unanswered[c.Range()], r.unanswered[nodePortClaim(f)] = until, until, until
	if len(r.unanswered) > mostUnanswered {
		r.forget()
	}
}

// end ends a pass over the whole table. ok says that it read all of it.
func (r *recent) end(ok bool) {
	r.complete = r.complete || r.learning && ok
	r.learning = false
}

// may says whether the claim may have unanswered flows.
func (r *recent) may(c service.Claim, now time.Time) bool {
	if !r.complete || now.Before(r.unanswered[c]) {
		return true
	}
	noted, err := r.record.Noted(c)
	return noted || err != nil
}

// lostFrontends counts the frontends that went lately: what was noted of them is still
// in the rules' sets and takes room there.
type lostFrontends struct {
	since        time.Time
	before, last ip.PerFamily[int]
}

// lately returns the greater number, of IPv4 and IPv6, that went within the last time or
// up to twice as long ago. total is how many ever went.
func (l *lostFrontends) lately(total ip.PerFamily[int], now time.Time, last time.Duration) int {
	if now.Sub(l.since) >= last {
		l.before, l.last, l.since = l.last, total, now
	}
	return max(total[0]-l.before[0], total[1]-l.before[1])
}

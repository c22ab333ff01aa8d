package proxy

import (
	"cmp"
	"slices"
	"time"

	"nftproxy/model/pace"
	"nftproxy/nft"
)

// retryShare bounds what retries take, however many parts are refused and however
// large they are: of the time, one part in so many.
const retryShare = 20

// quarantine knows the parts of the program that the kernel refused, the reasons, and when to try each again. It reads
// no clock and has no random numbers of its own.
type quarantine struct {
	parts map[string]*refusedPart
	// pausedUntil is when retries may begin again (retryShare).
	pausedUntil time.Time
	// jitter returns a number from 0 to 1, not included.
	jitter func() float64
}

func newQuarantine(jitter func() float64) *quarantine {
	return &quarantine{parts: map[string]*refusedPart{}, jitter: jitter}
}

// follow compares the parts with those of the wanted program.
func (q *quarantine) follow(p *nft.Program, now time.Time) {
	for name, r := range q.parts {
		if r.follow(partsOf(p, name), now) {
			delete(q.parts, name)
		}
	}
}

func (q *quarantine) refused(name string, content partPair, err error, now time.Time) {
	r := q.part(name, content, err)
	r.refusals++
	r.refusedAt, r.retryAt = now, now.Add(backOff(r.refusals, q.jitter()))
}

// setAside leaves a part out that is due at once: it goes in, or is refused, in a transaction of its own.
func (q *quarantine) setAside(name string, content partPair, err error, now time.Time) {
	q.part(name, content, err).retryAt = now
}

// part returns the part of that name, to be held because of an error. It is a new one where none is known.
func (q *quarantine) part(name string, content partPair, err error) *refusedPart {
	r := q.parts[name]
	if r == nil {
		r = &refusedPart{content: content}
		q.parts[name] = r
	}
	if !r.held() || r.refusals == 0 {
		r.err = err
	}
	return r
}

func (q *quarantine) leavesOut(name string) bool {
	r := q.parts[name]
	return r != nil && r.held()
}

// accepted is for parts that the kernel took. Those without refusals are forgotten.
func (q *quarantine) accepted(names []string) {
	for _, name := range names {
		r := q.parts[name]
		if r.retryAt = (time.Time{}); r.refusals == 0 {
			delete(q.parts, name)
		}
	}
}

// postponed is for parts that are due and that this sync cannot try.
func (q *quarantine) postponed(names []string, now time.Time) {
	for _, name := range names {
		q.parts[name].retryAt = now.Add(firstRetry)
	}
}

// dueParts lists the parts to be tried now, first those that are due for longest.
func (q *quarantine) dueParts(now time.Time) []string {
	if now.Before(q.pausedUntil) {
		return nil
	}
	var names []string
	for name, r := range q.parts {
		if r.held() && !r.retryAt.After(now) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(q.parts[a].retryAt.Compare(q.parts[b].retryAt), cmp.Compare(a, b))
	})
	return names
}

// nextRetry is when a part can be tried; the zero time means never.
func (q *quarantine) nextRetry() time.Time {
	var next time.Time
	for _, r := range q.parts {
		next = pace.Soonest(next, r.retryAt)
	}
	if !next.IsZero() && next.Before(q.pausedUntil) {
		return q.pausedUntil
	}
	return next
}

// withoutHeld is the program without the held parts, except for those to be tried.
func (q *quarantine) withoutHeld(p *nft.Program, tried []string) *nft.Program {
	reasons := q.reasons()
	for _, name := range tried {
		delete(reasons, name)
	}
	if len(reasons) == 0 {
		return p
	}
	reduced := &nft.Program{IPv4: p.IPv4.Clone(), IPv6: p.IPv6.Clone()}
	for name := range reasons {
		reduced.IPv4.Parts = reduced.IPv4.Parts.Delete(name)
		reduced.IPv6.Parts = reduced.IPv6.Parts.Delete(name)
	}
	return reduced
}

// reasons says for each held part why; nil where none is held.
func (q *quarantine) reasons() map[string]error {
	var reasons map[string]error
	for name, r := range q.parts {
		if r.held() {
			if reasons == nil {
				reasons = map[string]error{}
			}
			reasons[name] = r.err
		}
	}
	return reasons
}

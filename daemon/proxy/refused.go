package proxy

import (
	"time"

	"nftproxy/model/ip"
	"nftproxy/nft"
)

const (
	// firstRetry and longestRetry bound the time after which a refused part is
	// tried again although it has not changed. Each refusal doubles it.
	firstRetry   = time.Second
	longestRetry = 5 * time.Minute
	// probationLife is how long after the last refusal the count of refusals is
	// kept of a part that the kernel has accepted.
	probationLife = 2 * longestRetry
)

// partPair is the content of a part in both families, nil where it has none. Another pointer is another content.
type partPair ip.PerFamily[*nft.Part]

func partsOf(p *nft.Program, name string) partPair {
	return partPair{p.IPv4.Parts.At(name), p.IPv6.Parts.At(name)}
}

func (p partPair) empty() bool { return p == partPair{} }

// refusedPart is a part that the kernel refused, or that was set aside. It is held or on probation:
//
//	state      event           next state
//	-          refused         held, retry after 0.5-1 s
//	-          set aside       held, retry at once
//	held       refused again   held, retry after twice the time, at most 5 min
//	held       postponed       held, retry after 1 s
//	held       changed         held, retry at once; its refusals no longer count
//	held       accepted        probation, or forgotten if no refusal counts
//	probation  refused         held, retry after twice the last time
//	probation  set aside       held, retry at once
//	probation  changed         forgotten
//	probation  10 min passed   forgotten; they begin with the last refusal
//	both       gone            forgotten
//
// The program that is written leaves out a held part. The part is due when its
// time to retry has come: it then has a transaction after all else is in force. On probation is a part that the kernel
// has accepted. If the kernel refuses it soon, it waits longer than a part that was never refused.
type refusedPart struct {
	// content is what the program has of the part.
	content partPair
	// err is the first refusal of the content, so that each is logged once.
	err error
	// refusals counts those of the content.
	refusals int
	// refusedAt is when the kernel last refused the part, retryAt when a held part is due; it is zero on probation.
	refusedAt, retryAt time.Time
}

func (r *refusedPart) held() bool { return !r.retryAt.IsZero() }

// follow compares the part with its content in the wanted program. It returns whether the part is forgotten.
func (r *refusedPart) follow(content partPair, now time.Time) (forgotten bool) {
	changed := content != r.content
	switch {
	case content.empty():
		return true
	case !r.held():
		return changed || now.Sub(r.refusedAt) > probationLife
	case changed:
		r.content, r.refusals, r.retryAt = content, 0, now
	}
	return false
}

// backOff is the time from a part's last refusal to its retry: the doubled time, or down to half of it, since parts
// that were refused together are better not tried together. jitter is from 0 to 1, not included.
func backOff(refusals int, jitter float64) time.Duration {
	d := firstRetry
	for range refusals - 1 {
		if d *= 2; d >= longestRetry {
			d = longestRetry
			break
		}
	}
	return d/2 + time.Duration(jitter*float64(d/2))
}

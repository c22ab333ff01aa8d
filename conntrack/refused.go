package conntrack

import "time"

// The kernel may refuse to remove an entry: kernels before 6.4 answer EBUSY for one that is
// offloaded to a flow table, until the flow ends or leaves it. Such an entry is tried again
// after refusedFirst, and then after ever longer waits up to refusedMost.
const (
	refusedFirst = time.Second
	refusedMost  = time.Minute
)

// refused knows where the stale entries are that the kernel has refused to remove. Its memory
// does not grow with their number.
type refused struct {
	scope Scope
	// due is the time of the next try; zero if none is planned. wait was the last wait.
	due  time.Time
	wait time.Duration
}

// add adds entries.
func (r *refused) add(flows []Flow) {
	for i := range flows {
		f := &flows[i]
		r.scope.add(Filter{Protocol: f.Protocol, Dst: f.Original.Dst.Addr(), Port: f.Original.Dst.Port(),
			Endpoint: f.Reply.Src})
	}
}

// pending says that entries are left.
func (r *refused) pending() bool { return r.wait > 0 }

// take returns where to try again now; ok is false if it is too early, or if there is nothing
// to try.
func (r *refused) take(now time.Time) (s Scope, ok bool) {
	if r.due.IsZero() || now.Before(r.due) {
		return s, false
	}
	s, r.scope, r.due = r.scope, Scope{}, time.Time{}
	return s, true
}

// plan plans the next try after a pass.
func (r *refused) plan(now time.Time) {
	switch {
	case r.scope.Empty():
		*r = refused{}
	case r.due.IsZero():
		r.wait = min(max(2*r.wait, refusedFirst), refusedMost)
		r.due = now.Add(r.wait)
	}
}

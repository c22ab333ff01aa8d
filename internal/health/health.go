// Package health promises an honest answer to whether the proxy works: alive
// (/livez, /healthz, with kube-proxy's bodies), ready (/readyz), and the HTTP
// servers that say so, the metrics server's paths among them.
//
// It judges by what the loop does, not by what the process thinks of itself,
// and it repairs nothing. The health ports of single Services are not here.
package health

import (
	"sync"
	"time"

	"nftproxy/internal/proxy"
	"nftproxy/nft"
)

// DefaultLimit is kube-proxy's with its default periods: twice syncPeriod.
const DefaultLimit = time.Minute

// Config says what is healthy.
type Config struct {
	// Limit is how long a change may wait until it is in force; 0 means
	// DefaultLimit.
	Limit time.Duration
	// Busy is when the turn of the loop that is under way began, or the zero
	// time (proxy.Loop.Busy). Without it a turn that hangs goes unnoticed.
	Busy func() time.Time
	// NodeEligible says whether load balancers shall go on choosing this node:
	// /healthz is 503 when not. Nil means that it is not known: then it does
	// not count, and the answers do not mention it.
	NodeEligible func() bool
	// Answered is called after each answer with the path and the HTTP status.
	Answered func(path string, code int)
}

// Health follows a loop. Its methods are safe for concurrent use.
type Health struct {
	config Config

	mu       sync.Mutex
	families [2]familyState
}

// familyState is what is known of one family's table.
type familyState struct {
	// updated is when the program was last known to be in force; zero if it
	// never was.
	updated time.Time
	// err is why it is not.
	err error
	// needless says that it is not, and that no service is in the family: a
	// node whose kernel lacks IPv6 is well in a cluster that has none.
	needless bool
	// failing is since when it is not: when the oldest change arrived that is
	// not in force. Zero while all is well.
	failing time.Time
}

// New makes a Health whose loop has done nothing yet: alive, but not ready.
func New(c Config) *Health {
	if c.Limit == 0 {
		c.Limit = DefaultLimit
	}
	if c.Busy == nil {
		c.Busy = func() time.Time { return time.Time{} }
	}
	if c.Answered == nil {
		c.Answered = func(string, int) {}
	}
	return &Health{config: c}
}

// Observe takes note of one turn of the loop.
func (h *Health) Observe(s proxy.Sync) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, f := range nft.Families() {
		state := &h.families[i]
		state.err, state.needless = s.FamilyErr(f), false
		switch {
		case state.err == nil:
			*state = familyState{updated: s.End()}
		case !s.Serves(f):
			*state = familyState{updated: state.updated, needless: true}
		case !state.failing.IsZero():
			// It has been for longer.
		case s.Since.IsZero():
			state.failing = s.Start
		default:
			state.failing = s.Since
		}
	}
}

// Waiting lists the families in which the program has never been in force,
// with the reason: nil if it has not been tried. With none, the proxy is ready.
func (h *Health) Waiting() map[nft.Family]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := map[nft.Family]error{}
	for i, f := range nft.Families() {
		if state := h.families[i]; state.updated.IsZero() && !state.needless {
			waiting[f] = state.err
		}
	}
	return waiting
}

// Status is the body of an answer, as kube-proxy v1.36 has it.
type Status struct {
	// LastUpdated is CurrentTime if all is well, else the last time that a
	// family's program was known to be in force.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is nil where it is not asked for or not known.
	NodeEligible *bool `json:"nodeEligible,omitempty"`
	// Healthy is about the families only.
	Healthy bool `json:"healthy"`
	// Status has "IPv4" and "IPv6".
	Status map[string]FamilyStatus `json:"status"`
}

// FamilyStatus is one family's part of a Status.
type FamilyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Status judges the loop as it is now. NodeEligible is left out.
func (h *Health) Status() Status {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Status{CurrentTime: now, Healthy: true, Status: map[string]FamilyStatus{}}
	for i, f := range nft.Families() {
		state := h.families[i]
		healthy := !h.late(state.failing, now) && !h.late(h.config.Busy(), now)
		s.Status[proxy.IPFamily(f)] = FamilyStatus{state.updated, healthy}
		s.Healthy = s.Healthy && healthy
		if state.updated.After(s.LastUpdated) {
			s.LastUpdated = state.updated
		}
	}
	return s
}

func (h *Health) late(since, now time.Time) bool {
	return !since.IsZero() && now.Sub(since) >= h.config.Limit
}

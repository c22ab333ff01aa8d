// Package health answers whether the proxy is alive (/livez, and /healthz with kube-proxy's bodies) and ready
// (/readyz). It also has the HTTP servers, with bounds on their connections, and the paths of the metrics server, with
// what components of Kubernetes tell there about their own process.
//
// The package judges by the syncs of the loop, and it repairs nothing. Package
// listen has the health check node ports of Services.
package health

import (
	"sync"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/nft"
)

// Limit is how long a change may wait until it is in force: kube-proxy's limit with its default periods, twice
// syncPeriod.
const Limit = time.Minute

// Config says what is healthy.
type Config struct {
	// Busy is when the sync under way began, or the zero time (proxy.Loop.Busy).
	Busy func() time.Time
	// NodeEligible says whether load balancers may go on choosing this node; if not, /healthz is 503. Nil means that it is
	// not known: it does not count then, and the answers do not mention it.
	NodeEligible func() bool
	// Awaiting lists, in words, the things that the first program waits for, for /readyz.
	Awaiting func() []string
	// Note is what people should know although the proxy is ready, for /readyz; empty for nothing.
	Note func() string
	// Answered is called after each answer with the path and the HTTP status.
	Answered func(path string, code int)
}

// Health follows a loop. Its methods are safe for concurrent use.
type Health struct {
	config Config

	mu       sync.Mutex
	families ip.PerFamily[familyState]
}

// familyState is what is known of one family's table.
type familyState struct {
	// updated is when the program was last known to be in force; zero if it never was.
	updated time.Time
	// err is why the program is not in force.
	err error
	// needless says that the program is not in force and that no Service is in the
	// family. A node whose kernel lacks IPv6 is well in a cluster without IPv6.
	needless bool
	// failing is when the oldest change arrived that is not in force; zero if there is none.
	failing time.Time
}

// New makes a Health for a loop before its first sync: alive, but not ready.
func New(c Config) *Health { return &Health{config: c} }

// Observe takes note of one sync.
func (h *Health) Observe(s proxy.Sync) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, f := range nft.Families() {
		state := &h.families[i]
		state.err, state.needless = s.FamilyErr(f), false
		switch {
		case state.err == nil:
			*state = familyState{updated: s.End()}
		case !s.Snapshot.Serves(f):
			*state = familyState{updated: state.updated, needless: true}
		case !state.failing.IsZero():
			// An older change is not in force either.
		case s.Since.IsZero():
			state.failing = s.Start
		default:
			state.failing = s.Since
		}
	}
}

// Waiting lists the families in which the program has never been in force, with the
// reason, which is nil before the first sync. The proxy is ready if there are none.
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

// Status is the body of an answer in the form of kube-proxy v1.36.
type Status struct {
	// LastUpdated is CurrentTime if all is well. Otherwise it is the last time that
	// the program was known to be in force in some family.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is nil in answers of /livez and where it is not known.
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

// Status is the state of the loop now, without NodeEligible.
func (h *Health) Status() Status {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Status{CurrentTime: now, Healthy: true, Status: map[string]FamilyStatus{}}
	for i, f := range nft.Families() {
		state := h.families[i]
		healthy := !late(state.failing, now) && !late(h.config.Busy(), now)
		s.Status[f.Name()] = FamilyStatus{state.updated, healthy}
		s.Healthy = s.Healthy && healthy
		if state.updated.After(s.LastUpdated) {
			s.LastUpdated = state.updated
		}
	}
	return s
}

// late says whether the limit has passed since a time; the zero time is never late.
func late(since, now time.Time) bool { return !since.IsZero() && now.Sub(since) >= Limit }

package statuspage

import (
	"sync"
	"time"

	"nftproxy/daemon/proxy"
)

// The bounds on what is kept of syncs.
const (
	// historyLength is the number of syncs.
	historyLength = 120
	// maxError is the length of an error's text, in bytes.
	maxError = 500
)

// record is what is kept of a sync.
type record struct {
	start time.Time
	// latency is the time from the oldest change to the end; 0 if there was none.
	latency time.Duration
	// took is the time from start to end, and the others are the stages of it.
	took, compile, read, plan, apply time.Duration
	written, services, quarantined   int
	// check says that another program had changed the ruleset.
	check bool
	// err is why the program is not in force, cut; empty if it is.
	err string
}

func recordOf(s *proxy.Sync) record {
	r := record{
		start: s.Start, latency: s.Latency(), took: s.End().Sub(s.Start),
		compile: s.Compile, read: s.Read, plan: s.Plan, apply: s.Apply,
		written: s.Written, services: s.Snapshot.Services.Len(), quarantined: len(s.Quarantined), check: s.Check,
	}
	if s.Err != nil {
		r.err = cut(s.Err.Error(), maxError)
	}
	return r
}

// lasted is the time that the picture shows: the latency, or without a change the time that the sync took.
func (r *record) lasted() time.Duration {
	if r.latency > 0 {
		return r.latency
	}
	return r.took
}

// outcome is a sync's outcome in a word or two.
func (r *record) outcome() string {
	switch {
	case r.err != "":
		return "failed"
	case r.check && r.written > 0:
		return "repaired"
	case r.written == 0:
		return "nothing to write"
	}
	return "in force"
}

// history is a ring of the last syncs.
type history struct {
	mu   sync.Mutex
	ring [historyLength]record
	// total counts all syncs since the start.
	total int
}

func (h *history) add(r record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring[h.total%historyLength] = r
	h.total++
}

// last returns the kept syncs, the oldest first, and the number of all.
func (h *history) last() (list []record, total int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := max(0, h.total-historyLength); i < h.total; i++ {
		list = append(list, h.ring[i%historyLength])
	}
	return list, h.total
}

package conntrack

import (
	"slices"
	"time"
)

// judge decides which entries a pass removes. It judges each entry twice: when the
// pass reads it, and again before the removal, with the services of all syncs that
// had begun by then. Only the second judgment counts, since rules that came
// meanwhile may have made the entry: it would seem to lead to no endpoint where its
// endpoint is only new. The judge knows neither when a pass runs nor where it
// looks.
type judge struct {
	index *Index
	// suspects are the entries that were stale when the pass under way read them,
	// a batch for each reason at most. There are none between passes.
	suspects map[Reason][]Flow
}

// suspect judges an entry that was read, and keeps it if it is stale. full says
// that the suspects of the reason are a batch, to be confirmed now.
func (j *judge) suspect(f Flow) (reason Reason, full bool) {
	reason, stale := j.index.Stale(f)
	if !stale {
		j.index.Note(&f)
		return "", false
	}
	j.suspects[reason] = append(j.suspects[reason], f)
	return reason, len(j.suspects[reason]) >= deleteBatch
}

// confirm returns the suspects of a reason that are still stale, and forgets all
// of them. The list is valid until the next suspect.
func (j *judge) confirm(reason Reason) []Flow {
	list := j.suspects[reason]
	j.suspects[reason] = list[:0]
	return slices.DeleteFunc(list, func(f Flow) bool {
		_, stale := j.index.Stale(f)
		return !stale
	})
}

// learn takes in what syncs reported and returns what they can have made stale. ok
// is false if that is nothing.
func (j *judge) learn(r syncReport, now time.Time) (c change, ok bool) {
	scope := j.index.Advance(now)
	if r.unknown {
		scope.addAll()
	}
	if r.routes != nil {
		stale := j.index.SetLocalRoutes(*r.routes)
		if j.index.Epoch() > 0 { // Before the first snapshot the index knows nothing that could be stale.
			scope.merge(stale)
		}
	}
	if r.previous != nil {
		scope.merge(j.index.Update(r.previous()))
	}
	for _, s := range r.served {
		scope.merge(j.index.Update(s))
	}
	return change{scope, j.index.Epoch(), r.since, now}, !scope.Empty()
}

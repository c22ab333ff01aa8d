package watch

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

const (
	// releaseAgain is the time between two releases of held Services.
	releaseAgain = 100 * time.Millisecond
	// heldLong is how long a Service is held before a report, and heldAgain the time between two reports of one.
	heldLong  = 3 * time.Second
	heldAgain = 10 * time.Minute
)

// debtors takes the dirty Services of namespaces in debt out of the list. Those of others never wait for them.
func (ix *index) debtors() []*joined {
	if ix.options.Accounts == nil {
		return nil
	}
	var debtors []*joined
	others := ix.dirty[:0]
	for _, j := range ix.dirty {
		namespace, _ := j.name.Split()
		since := cmp.Or(j.since, ix.at)
		ready, debtor := ix.options.Accounts.Ready(ix.at, namespace, since)
		if !debtor || j.foreign != nil || j.name == kubernetesService {
			j.since = time.Time{}
			others = append(others, j)
			continue
		}
		j.since, j.ready = since, ready
		debtors = append(debtors, j)
	}
	ix.dirty = others
	return debtors
}

// release joins those of the debtors that may go on, the first ones first, until they are large enough for one sync.
// The others stay dirty. So the namespaces of others wait for one large Service at most.
func (ix *index) release(debtors []*joined) {
	ix.due = time.Time{}
	room := service.UncountedElements
	for _, j := range debtors {
		if ix.releases && room > 0 && !j.ready.After(ix.at) {
			prepared := ix.join(j)
			room -= prepared.Elements()
			j.since = time.Time{}
			ix.take([]*joined{j}, []snapshots.Prepared{prepared})
			continue
		}
		ix.dirty = append(ix.dirty, j)
		if held := ix.at.Sub(j.since); held >= heldLong && (j.told.IsZero() || ix.at.Sub(j.told) >= heldAgain) {
			j.told = ix.at
			ix.problems = append(ix.problems, Problem{Object: ix.serviceNamed(j.name), Err: &HeldError{ix.options.Accounts.Rest,
				ix.options.Accounts.Longest}})
		}
		ix.due = pace.Soonest(ix.due, j.ready)
	}
	if !ix.due.IsZero() {
		ix.due = pace.Later(ix.due, ix.at.Add(releaseAgain))
	}
}

// affordable returns the slots of the Services whose namespaces have room in their accounts. Feedback has changes as
// long as there are connections: a namespace would never be out of debt if they went on, and would be back at once if
// they went on as soon as it is.
func (ix *index) affordable(now time.Time, of map[service.Name]service.Slotted) map[service.Name]service.Slotted {
	if ix.options.Accounts == nil {
		return of
	}
	of = maps.Clone(of)
	maps.DeleteFunc(of, func(name service.Name, _ service.Slotted) bool {
		namespace, _ := name.Split()
		return !ix.options.Accounts.Spare(now, namespace)
	})
	return of
}

// HeldError says that the changes of a Service wait, since those of its namespace take too much time.
type HeldError struct {
	// Rest says what is too much: one part of a core in so many.
	Rest int
	// Longest is how long a change waits at most.
	Longest time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf(
		"its changes wait, for %v at most: on this node those of its namespace take more than 1/%d of a core", e.Longest,
		e.Rest)
}

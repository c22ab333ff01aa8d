package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Behind names the resources of which the watcher does not have the newest state, because the API
// server does not answer or refuses. Meanwhile the watcher uses the state that it has.
type Behind struct {
	// Resources are in order; none if everything is up to date.
	Resources []string
	// Since is when the first of them fell behind.
	Since time.Time
	// Err is why that one did.
	Err error
}

// Behind returns the resources that are behind now. It may be called from any goroutine.
func (w *Watcher) Behind() Behind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outage.behindNow()
}

// String returns a sentence without its end, for people; empty if everything is up to date.
func (b Behind) String() string {
	if len(b.Resources) == 0 {
		return ""
	}
	return fmt.Sprintf("the rules serve what was known at %s; since then the API server has not told of %s (%v)",
		b.Since.UTC().Format(time.RFC3339), strings.Join(b.Resources, ", "), b.Err)
}

// blame notes why a resource that is required is behind, and since when.
func (o *outage) blame(resource string, err error, now time.Time) {
	c := o.of(resource)
	if c.since.IsZero() {
		c.since = now
	}
	c.err = err
}

// behindNow returns the resources that are required and have failed since they were current.
func (o *outage) behindNow() Behind {
	var b Behind
	for _, resource := range slices.Sorted(maps.Keys(o.resources)) {
		c := o.resources[resource]
		if c.current || !c.required || c.since.IsZero() {
			continue
		}
		b.Resources = append(b.Resources, resource)
		if b.Since.IsZero() || c.since.Before(b.Since) {
			b.Since, b.Err = c.since, c.err
		}
	}
	return b
}

package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// outage knows of each resource whether it is up to date. An outage begins with a
// request that the API server does not answer. It is over when all resources are up to
// date, not when the first one is. The zero value is ready.
type outage struct {
	resources map[string]*currency
	// lasting says that the outage is not over.
	lasting bool
	// away says that an outage of the essential resources is not over.
	away bool
	// behind has the resources that are not up to date. It counts while news is true:
	// the caller of takeNews does not have it yet.
	behind []string
	news   bool
}

// currency says whether a resource is up to date.
type currency struct {
	// current says that its watch is open and that the index has every object from
	// before the watch.
	current bool
	// required says that the outage lasts until the resource is current: because it
	// was current before, or because the proxy cannot work without it. An API server
	// that starts refuses requests for a while. The outage does not wait for any other
	// resource that is refused, such as ServiceCIDRs by a server that has none.
	required bool
	refused  bool
	// essential says that the proxy cannot work without the resource.
	essential bool
	// since is the first failure since it was current, zero for none. err is the last one.
	since time.Time
	err   error
}

func (o *outage) of(resource string) *currency {
	if o.resources == nil {
		o.resources = map[string]*currency{}
	}
	if o.resources[resource] == nil {
		o.resources[resource] = &currency{}
	}
	return o.resources[resource]
}

// require notes that the proxy cannot work without the resource.
func (o *outage) require(resource string) {
	c := o.of(resource)
	c.required, c.essential = true, true
}

// failed notes a request that failed, and whether it was refused.
func (o *outage) failed(resource string, refused bool, err error) {
	c := o.of(resource)
	c.current, c.refused, c.err = false, refused, err
	if c.since.IsZero() {
		c.since = time.Now()
	}
	if !refused {
		o.lasting, o.away = true, o.away || c.essential
	}
	o.update(false)
}

// ended notes that a watch has ended, as each does after some minutes. The next one
// follows, or fails.
func (o *outage) ended(resource string) { o.of(resource).current = false }

// current notes that a resource is up to date.
func (o *outage) current(resource string) {
	c := o.of(resource)
	c.current, c.required, c.refused = true, true, false
	c.since, c.err = time.Time{}, nil
	if !slices.ContainsFunc(slices.Collect(maps.Values(o.resources)), (*currency).missed) {
		o.away = false
	}
	o.update(true)
}

// missed says that the resource is essential and not up to date.
func (c *currency) missed() bool { return c.essential && !c.current }

// update keeps the resources that are behind as news: when there are fewer (better),
// and when there are none, which ends the outage.
func (o *outage) update(better bool) {
	if !o.lasting {
		return
	}
	var behind []string
	for _, resource := range slices.Sorted(maps.Keys(o.resources)) {
		if c := o.resources[resource]; !c.current && (c.required || !c.refused) {
			behind = append(behind, resource)
		}
	}
	if len(behind) == 0 || better {
		o.behind, o.news = behind, true
		o.lasting = len(behind) > 0
	}
}

// takeNews returns the resources that are behind, and whether they have become fewer
// since the last call. When there are none, the outage is over.
func (o *outage) takeNews() (behind []string, news bool) {
	behind, news = o.behind, o.news
	o.behind, o.news = nil, false
	return behind, news
}

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

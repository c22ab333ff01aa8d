package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"nftproxy/model/service"
)

// Former reads the Services that the rules served before the start.
type Former interface {
	// Names returns the names of all of them. It should be cheap.
	Names() ([]service.Name, error)
	// Services returns them as far as the rules contain them. The watcher calls it if most of them
	// are missing.
	Services(node *service.Node) ([]*service.Service, error)
}

// loss is what a list takes away, with what earlier lists have taken away.
type loss struct {
	// missing are Services with endpoints of which the list lacks something, and those that
	// are retained already. serving is the number of all Services with endpoints.
	missing []service.Name
	serving int
}

// lossOf returns the loss if the list lacks these objects; it is empty if none of their Services is there and has
// endpoints. It must be called before anything is removed.
func lossOf[K converted](ix *index, gone []K) loss {
	lacking := map[service.Name]bool{}
	for _, o := range gone {
		if name := o.service(); ix.servedNow(name) {
			lacking[name] = true
		}
	}
	if len(lacking) == 0 {
		return loss{}
	}
	var l loss
	for name := range ix.joined {
		retained := ix.retention.Retains(name) && ix.builder.Service(name).HasEndpoints()
		if retained || ix.servedNow(name) {
			l.serving++
		}
		if retained || lacking[name] {
			l.missing = append(l.missing, name)
		}
	}
	return l
}

// servedNow says whether a Service is there and was last built with endpoints.
func (ix *index) servedNow(name service.Name) bool {
	return ix.service(name) != nil && ix.builder.Service(name).HasEndpoints()
}

// mute says whether the source says nothing of a Service's endpoints: the Service is
// missing, or it has no slice. A slice without endpoints says that there are none, and a
// Service of another proxy, or of none, that nothing is to be served.
func (j *joined) mute() bool {
	return j == nil || j.foreign == nil && (j.object == nil || len(j.slices) == 0)
}

// retain retains the Services of the loss of which nothing has come, if the loss is
// suspicious. It must be called when the list is in the index.
func (ix *index) retain(l loss, now time.Time) {
	l.missing = slices.DeleteFunc(l.missing, func(name service.Name) bool { return !ix.joined[name].mute() })
	fresh := slices.DeleteFunc(slices.Clone(l.missing), ix.retention.Retains)
	if len(fresh) == 0 {
		return
	}
	if !ix.retention.Judge(l.missing, l.serving, now) {
		if len(l.missing) == l.serving {
			ix.reportNode("", &MissingError{l.serving, examplesOf(slices.Sorted(slices.Values(fresh)))})
		}
		return
	}
	for _, name := range fresh {
		j := ix.joinedOf(name)
		if last := ix.builder.Service(name); last != nil {
			j.kept = last
		}
		ix.markDirty(j)
	}
	names := slices.Sorted(slices.Values(l.missing))
	ix.reportNode("", &RetainedError{len(names), l.serving, examplesOf(names), ix.retention.period})
}

// endRetention lets the Services go whose time is over.
func (ix *index) endRetention(now time.Time) {
	due := ix.retention.Due(now)
	if len(due) == 0 {
		return
	}
	for _, name := range due {
		ix.markDirty(ix.joinedOf(name))
	}
	ix.reportNode("", &RemovedError{len(due), examplesOf(due), ix.retention.period})
}

// releaseAll retains nothing any more: the source has spoken of everything.
func (ix *index) releaseAll() {
	for _, name := range ix.retention.ReleaseAll() {
		ix.markDirty(ix.joinedOf(name))
	}
}

// bare returns what the Service is made of but for its endpoints, nil for nothing, and
// what of it is retained. last is the Service as it was built last. While there are
// slices, what is kept follows them, also when they say that there are no endpoints.
func (ix *index) bare(j *joined, last *service.Service) (*service.Service, service.Retained) {
	switch {
	case !ix.retention.Retains(j.name):
		j.kept = nil
	case last.HasEndpoints(), last != nil && j.kept != nil && !j.byKept:
		j.kept = last
	}
	switch {
	case j.object != nil && j.kept != nil && len(j.slices) == 0:
		return j.object.bare, service.RetainedEndpoints
	case j.object != nil:
		return j.object.bare, service.RetainedNothing
	case j.kept != nil:
		return j.kept, service.RetainedService
	}
	return nil, service.RetainedNothing
}

// endpointsKept returns a function that returns the endpoints that the i-th port had: the
// port with its name, or else with its number, since a name that was read from the rules may
// be cut. Mostly the ports are as they were. If not, it does not look at all for each one.
func endpointsKept(kept *service.Service) func(i int, p *service.Port) service.Endpoints {
	type portNumber struct {
		protocol service.Protocol
		port     uint16
	}
	var byName map[service.SlicePort]int
	var byNumber map[portNumber]int
	fill := func() {
		byName, byNumber = map[service.SlicePort]int{}, map[portNumber]int{}
		for i := len(kept.Ports) - 1; i >= 0; i-- { // of several, the first counts
			p := &kept.Ports[i]
			byName[p.InSlices()], byNumber[portNumber{p.Protocol, p.Port}] = i, i
		}
	}
	return func(i int, p *service.Port) service.Endpoints {
		if i < len(kept.Ports) && kept.Ports[i].InSlices() == p.InSlices() {
			return kept.Ports[i].Endpoints
		}
		if byName == nil {
			fill()
		}
		at, found := byName[p.InSlices()]
		if !found {
			at, found = byNumber[portNumber{p.Protocol, p.Port}]
		}
		if !found {
			return service.Endpoints{}
		}
		return kept.Ports[at].Endpoints
	}
}

// retainFormer retains the Services of earlier rules that the first lists lack, if the
// lists are suspicious.
func (w *Watcher) retainFormer() {
	if w.opts.Former == nil || w.opts.Retain <= 0 {
		return
	}
	names, err := w.opts.Former.Names()
	if err != nil {
		w.reportError(&FormerError{err})
		return
	}
	w.mu.Lock()
	node, missing := w.index.builder.Node(), len(w.index.lossOfFormer(names))
	w.mu.Unlock()
	if !suspicious(missing, len(names)) {
		return
	}
	services, err := w.opts.Former.Services(node)
	if err != nil {
		w.reportError(&FormerError{err})
		return
	}
	w.change(func(ix *index) { ix.retainFormer(services, time.Now()) })
}

// lossOfFormer returns those of the Services of which the lists have nothing. Of
// manifests, all have to be gone.
func (ix *index) lossOfFormer(names []service.Name) []service.Name {
	if ix.manifests && len(ix.joined) > 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(names), func(name service.Name) bool { return !ix.joined[name].mute() })
}

// retainFormer is the same for Services with their endpoints.
func (ix *index) retainFormer(former []*service.Service, now time.Time) {
	var names []service.Name
	for _, s := range former {
		if s.HasEndpoints() {
			names = append(names, s.Name)
		}
	}
	l := loss{missing: ix.lossOfFormer(names), serving: len(names)}
	if suspicious(len(l.missing), l.serving) {
		for _, s := range former {
			if s.HasEndpoints() && ix.joined[s.Name].mute() {
				ix.joinedOf(s.Name).kept = s
			}
		}
	}
	ix.retain(l, now)
}

// Retained is what the watcher serves although the source's lists lack it.
type Retained struct {
	// Services is the number of retained Services; 0 if there are none.
	Services int
	// Until is when the last of them is removed, unless the source is Away: then nothing is removed
	// before the source answers.
	Until time.Time
	Away  bool
}

// Retained returns what is retained now. It may be called from any goroutine.
func (w *Watcher) Retained() Retained {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := Retained{Services: len(w.index.retention.until)}
	if r.Services > 0 {
		r.Until, r.Away = w.index.retention.Last()
	}
	return r
}

// String returns a sentence without its end, for people; empty if nothing is retained.
func (r Retained) String() string {
	switch {
	case r.Services == 0:
		return ""
	case r.Away:
		return fmt.Sprintf("serving %d Services on that the source's lists lack, at least until it answers again", r.Services)
	}
	return fmt.Sprintf("serving %d Services on that the source's lists lack, until %s", r.Services,
		r.Until.UTC().Format(time.RFC3339))
}

// maxExamples is how many names a message has.
const maxExamples = 3

func examplesOf(names []service.Name) string {
	var words []string
	for _, name := range names[:min(maxExamples, len(names))] {
		words = append(words, string(name))
	}
	if len(names) > maxExamples {
		words = append(words, "...")
	}
	return strings.Join(words, ", ")
}

// RetainedError says that a list lacks so many Services that it may be wrong.
type RetainedError struct {
	// Missing is how many Services are retained, of Serving.
	Missing, Serving int
	// Examples names some of them.
	Examples string
	Period   time.Duration
}

func (e *RetainedError) Error() string {
	return fmt.Sprintf("a list lacks %d of %d Services that serve, or their EndpointSlices (%s): they are served on for "+
		"%s, unless they come back; a restart with --nftproxy-retain-missing=0 ends that",
		e.Missing, e.Serving, e.Examples, e.Period)
}

// MissingError says that a list lacks all Services that serve, and that they are not retained: they
// are too few, or the option says so.
type MissingError struct {
	Services int
	Examples string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("a list lacks all %d Services that serve, or their EndpointSlices (%s): they are not served on "+
		"(--nftproxy-retain-missing serves %d or more on for a while)",
		e.Services, e.Examples, leastMissing)
}

// RemovedError says that retained Services, or their endpoints, are no longer served.
type RemovedError struct {
	Services int
	Examples string
	Period   time.Duration
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf("%d Services have been missing from the lists, or without EndpointSlices, for %s and are not "+
		"served on (%s)", e.Services, e.Period, e.Examples)
}

// FormerError says that it is not known which Services the rules served before the start.
type FormerError struct{ Err error }

func (e *FormerError) Error() string {
	return fmt.Sprintf("the Services that the rules served before the start are not known, so none is retained: %v", e.Err)
}

// Unwrap returns the reason.
func (e *FormerError) Unwrap() error { return e.Err }

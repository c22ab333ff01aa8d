package watch

import (
	"fmt"
	"strings"

	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// One object can have tens of thousands of conflicts, and cause as many for others.
const (
	// maxConflicts is how many conflicts one problem lists. It counts the others.
	maxConflicts = 3
	// maxDenials is how many Services one change reports. It counts the others.
	maxDenials = 100
)

// denials collects problems of Services that do not get all that they ask for.
type denials struct {
	index *index
	count int
}

func (d *denials) add(name service.Name, err error) {
	if d.count++; d.count <= maxDenials {
		d.index.problems = append(d.index.problems, Problem{Object: d.index.serviceNamed(name), Err: err})
	}
}

// reportDenials reports what Services no longer get in the snapshot after, and got
// in the one before: one problem of each kind for a Service, however much it is.
func (ix *index) reportDenials(before, after service.Snapshot) {
	d := &denials{index: ix}
	d.addConflicts(before, after)
	d.addLeftOut(before, after)
	addNew(d, before.WithoutAffinity, after.WithoutAffinity, func(w *service.WithoutAffinity) error {
		return &AffinityError{*w}
	})
	addNew(d, before.ClosedSources, after.ClosedSources, func(c *service.ClosedSources) error { return &SourcesError{*c} })
	addNew(d, before.UnservedRanges, after.UnservedRanges, func(u *service.UnservedRanges) error {
		return &RangesError{*u}
	})
	d.addOmitted()
}

// addOmitted counts in one problem what there was no room for.
func (d *denials) addOmitted() {
	if omitted := d.count - maxDenials; omitted > 0 {
		err := fmt.Errorf("%d more Services have just lost something that they ask for (the metric "+
			"nftproxy_conflicting_services counts those without an address or port)", omitted)
		d.index.problems = append(d.index.problems, Problem{Err: err})
	}
}

func (d *denials) addConflicts(before, after service.Snapshot) {
	for c := range treap.Diff(before.Conflicts, after.Conflicts) {
		conflict, protected := &ConflictError{}, &ProtectedError{}
		for l := range c.New.Since(c.Old) {
			if l.Protected != "" {
				protected.add(fmt.Sprintf("%s: %s", l.Claim, l.Protected))
			} else {
				conflict.add(fmt.Sprintf("%s belongs to Service %s", l.Claim, after.Owners.Over(c.Key, l.Claim)))
			}
		}
		if len(conflict.Conflicts) > 0 {
			d.add(c.Key, conflict)
		}
		if len(protected.Conflicts) > 0 {
			d.add(c.Key, protected)
		}
	}
}

// addLeftOut reports a Service once for each change of its object: each endpoint
// that comes or goes may change how much is left out.
func (d *denials) addLeftOut(before, after service.Snapshot) {
	for c := range treap.Diff(before.LeftOut, after.LeftOut) {
		if s := d.index.service(c.Key); c.HasNew && s != nil && !s.reportedLeftOut {
			s.reportedLeftOut = true
			d.add(c.Key, &SizeError{*c.New})
		}
	}
}

// addNew reports the Services that are in the map after, and were not in the one before.
func addNew[V comparable](d *denials, before, after treap.Map[service.Name, V], errorOf func(V) error) {
	for c := range treap.Diff(before, after) {
		if c.HasNew && !c.HadOld {
			d.add(c.Key, errorOf(c.New))
		}
	}
}

// serviceNamed names a Service, with its UID if the index has the object.
func (ix *index) serviceNamed(name service.Name) Object {
	if s := ix.service(name); s != nil {
		return s.object()
	}
	return objectNamed("Service", name)
}

// ConflictList has the new conflicts of one Service.
type ConflictList struct {
	// Conflicts are the first ones, each a claim and the reason.
	Conflicts []string
	// More counts the others.
	More int
}

func (l *ConflictList) add(text string) {
	if len(l.Conflicts) == maxConflicts {
		l.More++
		return
	}
	l.Conflicts = append(l.Conflicts, text)
}

func (l *ConflictList) String() string {
	text := strings.Join(l.Conflicts, "; ")
	if l.More > 0 {
		text += fmt.Sprintf("; and %d more", l.More)
	}
	return text
}

// ConflictError lists claims of a Service that other Services have.
type ConflictError struct{ ConflictList }

func (e *ConflictError) Error() string { return e.String() }

// ProtectedError lists addresses and ports of externalIPs or load balancers, and node ports,
// that the proxy does not serve on this node: the node itself needs them, or they are not for
// Services.
type ProtectedError struct{ ConflictList }

func (e *ProtectedError) Error() string { return "not served: " + e.String() }

// SizeError says that a Service would take more elements than one Service may, or than there is room for.
type SizeError struct{ service.LeftOut }

func (e *SizeError) Error() string {
	if e.All != 0 {
		return e.String() + " (--nftproxy-max-elements)"
	}
	return e.String() + " (--nftproxy-max-service-elements)"
}

// AffinityError says that a Service asks for session affinity and does not get it: older Services,
// or its own other ports, have used up the limit.
type AffinityError struct{ service.WithoutAffinity }

func (e *AffinityError) Error() string {
	if e.Namespace {
		return e.String() + " (a quarter of --nftproxy-max-affinity-ports)"
	}
	return e.String() + " (--nftproxy-max-affinity-ports)"
}

// SourcesError says that a Service's source ranges let in nobody because there are too many
// different lists.
type SourcesError struct{ service.ClosedSources }

func (e *SourcesError) Error() string { return e.String() + " (--nftproxy-max-source-lists)" }

// RangesError says that no port range of a Service is served because there are too many different lists.
type RangesError struct{ service.UnservedRanges }

func (e *RangesError) Error() string { return e.String() }

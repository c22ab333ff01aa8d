package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/model/spelling"
)

const (
	// strayAge is how long an EndpointSlice waits for its Service before a report: it may come first.
	strayAge = 30 * time.Second
	// maxStrays bounds the strays with one key. Further ones are not named: so many are no mistake. Each Service without
	// endpoints is compared with each stray of its namespace.
	maxStrays = 20
)

// strayKey is what a Service finds the strays by that may be its own: its namespace, or else its name.
type strayKey struct{ namespace, service string }

// stray is an EndpointSlice with endpoints whose label names no Service that there is, or that has no such label.
type stray struct {
	*sliceObject
	since time.Time
	told  bool
}

// strayKeys are the slice's own namespace, and the name of the Service in its label.
func (s *sliceObject) strayKeys() []strayKey {
	namespace, _ := s.key.Split()
	if s.owner == "" {
		return []strayKey{{namespace: namespace}}
	}
	_, owner := s.owner.Split()
	return []strayKey{{namespace: namespace}, {service: owner}}
}

func (s *sliceObject) hasEndpoints() bool { return s.endpoints.Len() > 0 }

// unowned says whether the slice lacks the label that names a Service.
func (s *sliceObject) unowned() bool { return s.owner == "" && s.headless == nil }

// noteStrays keeps those of the slices of a Service that has just been joined which are strays, and looks at a
// Service without endpoints later.
func (ix *index) noteStrays(j *joined) {
	namespace, _ := j.name.Split()
	missing := j.object == nil && j.foreign == nil
	for _, s := range slices.Clone(ix.strays[strayKey{namespace: namespace}]) {
		if s.owner == j.name && !(missing && slices.Contains(j.slices, s.sliceObject)) {
			ix.dropStray(s.sliceObject)
		}
	}
	if missing {
		for _, s := range j.slices {
			ix.addStray(s)
		}
	} else if len(ix.straysOf(j)) > 0 {
		ix.lookForStrays(ix.at)
	}
}

// noteUnowned keeps a change of a slice without the label. One of the two is nil where the slice comes or goes.
func (ix *index) noteUnowned(before, after *sliceObject) {
	if before != nil && before.unowned() {
		ix.dropStray(before)
	}
	if after != nil && after.unowned() {
		ix.addStray(after)
	}
}

func (ix *index) addStray(s *sliceObject) {
	if !s.unowned() && !s.hasEndpoints() {
		return
	}
	added := &stray{sliceObject: s, since: ix.at}
	for _, key := range s.strayKeys() {
		list := ix.strays[key]
		if len(list) == maxStrays || slices.ContainsFunc(list, func(o *stray) bool { return o.sliceObject == s }) {
			return
		}
		ix.strays[key] = append(list, added)
	}
	ix.lookForStrays(ix.at)
}

func (ix *index) dropStray(s *sliceObject) {
	for _, key := range s.strayKeys() {
		list := slices.DeleteFunc(ix.strays[key], func(o *stray) bool { return o.sliceObject == s })
		if ix.strays[key] = list; len(list) == 0 {
			delete(ix.strays, key)
		}
	}
}

// lookForStrays has reportStrays called strayAge after a time, or sooner.
func (ix *index) lookForStrays(since time.Time) {
	ix.straysDue = pace.Soonest(ix.straysDue, since.Add(strayAge))
}

// straysOf returns the strays that may be meant for the Service, if no slice of it has an endpoint: those with a name
// like its own in their label, and those without the label that are named after it, in its namespace. A Service
// without any slice may also have them in another namespace.
func (ix *index) straysOf(j *joined) (list []*stray) {
	if j.object == nil || j.byKept || slices.ContainsFunc(j.slices, (*sliceObject).hasEndpoints) {
		return nil
	}
	namespace, name := j.name.Split()
	for _, s := range ix.strays[strayKey{namespace: namespace}] {
		_, own := s.key.Split()
		_, owner := s.owner.Split()
		if s.owner == "" && (own == name || strings.HasPrefix(own, name+"-")) ||
			s.owner != "" && spelling.Nearest(owner, []string{name}) != "" {
			list = append(list, s)
		}
	}
	if len(j.slices) == 0 {
		list = append(list, ix.strays[strayKey{service: name}]...)
	}
	return list
}

// problem is that of a stray which may be meant for the Service. It names no Service of another namespace.
func (s *stray) problem(j *joined) Problem {
	if s.owner == "" {
		return s.problems[0]
	}
	namespace, _ := s.key.Split()
	of, meant := j.name.Split()
	hint := ""
	if of == namespace {
		hint = "; did you mean " + meant + "?"
	}
	_, owner := s.owner.Split()
	return Problem{
		Object: objectNamed("EndpointSlice", s.key),
		Field:  "metadata.labels[" + discoveryv1.LabelServiceName + "]",
		Err: &SliceIgnoredError{&ValueError{owner, fmt.Sprintf("namespace %s has no such Service with a cluster IP%s",
			namespace, hint)}},
	}
}

// reportStrays reports those that have been strays for long while a Service that they may be meant for has no
// endpoint, each once. One without the label has been reported when it came.
func (ix *index) reportStrays(now time.Time) {
	if ix.straysDue.IsZero() || now.Before(ix.straysDue) {
		return
	}
	ix.at, ix.straysDue = now, time.Time{}
	var found []Problem
	for _, j := range ix.joined {
		for _, s := range ix.straysOf(j) {
			switch {
			case s.told || s.owner == "":
			case ix.at.Sub(s.since) < strayAge:
				ix.lookForStrays(s.since)
			default:
				s.told = true
				found = append(found, s.problem(j))
			}
		}
	}
	slices.SortFunc(found, func(a, b Problem) int { return strings.Compare(a.Error(), b.Error()) })
	ix.problems = append(ix.problems, found...)
}

// meantLabel returns the label by which an EndpointSlice without an owner was meant to name its Service, empty for
// none.
func meantLabel(labels map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		_, name, _ := strings.Cut(key, "/")
		if spelling.Nearest(key, []string{discoveryv1.LabelServiceName}) != "" || name == "service-name" ||
			key == "service-name" {
			return key
		}
	}
	return ""
}

// headlessSlice is an EndpointSlice with the label of headless Services, which no service proxy heeds.
type headlessSlice struct {
	object Object
	owner  service.Name
}

// problem is that of a slice with the label whose Service is not headless.
func (h *headlessSlice) problem() Problem {
	return Problem{Object: h.object, Field: "metadata.labels[" + labelHeadless + "]", Err: &SliceIgnoredError{
		fmt.Errorf("it is for headless Services, and Service %s has a cluster IP", h.owner),
	}}
}

// noteHeadless keeps a change of a slice with the label. One of the two is nil where the slice comes or goes. It
// reports a slice that comes to a Service which this proxy serves.
func (ix *index) noteHeadless(before, after *sliceObject) {
	var old, now *headlessSlice
	if before != nil {
		old = before.headless
	}
	if after != nil {
		now = after.headless
	}
	if old != nil {
		left := slices.DeleteFunc(ix.headless[old.owner], func(h *headlessSlice) bool { return h == old })
		if ix.headless[old.owner] = left; len(left) == 0 {
			delete(ix.headless, old.owner)
		}
	}
	if now != nil {
		ix.headless[now.owner] = append(ix.headless[now.owner], now)
		if ix.service(now.owner) != nil && (old == nil || old.owner != now.owner) {
			ix.problems = append(ix.problems, now.problem())
		}
	}
}

// reportHeadless reports the slices with the label of a Service that has just come.
func (ix *index) reportHeadless(name service.Name) {
	for _, h := range ix.headless[name] {
		ix.problems = append(ix.problems, h.problem())
	}
}

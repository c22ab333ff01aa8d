package watch

import (
	"fmt"
	"slices"

	"nftproxy/model/service"
)

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

package watch

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"nftproxy/internal/service"
	"nftproxy/internal/treap"
)

// index joins Services with their EndpointSlices. It takes events in any
// order; flush then rebuilds just the services that these concern, so that an
// event costs what its service is large. It is not safe for concurrent use.
type index struct {
	builder *service.Builder
	// joined go by the Services' names, slices by their own.
	joined map[service.Name]*joined
	slices map[service.Name]*sliceObject

	// cidrs are the ServiceCIDR objects.
	cidrs map[service.Name]*cidrObject

	hasNode      bool
	nodeProblems []Problem
	// podCIDRs is closed once the Node has had any.
	podCIDRs chan struct{}

	// dirty are those that flush rebuilds, in the order of the events.
	dirty    []*joined
	problems []Problem
}

// joined is a Service with the slices that say they belong to it, as far as
// they are there.
type joined struct {
	name service.Name
	// object is nil where there is no Service that is a proxy's business.
	object *serviceObject
	slices []*sliceObject
	// dirty says that it is among the index's.
	dirty bool
}

func newIndex(node string) *index {
	return &index{
		builder:  service.NewBuilder(service.Node{Name: node}),
		joined:   map[service.Name]*joined{},
		slices:   map[service.Name]*sliceObject{},
		cidrs:    map[service.Name]*cidrObject{},
		podCIDRs: make(chan struct{}),
	}
}

// The names of the objects that are there, in no order.

func (ix *index) serviceNames() []service.Name {
	var names []service.Name
	for name, j := range ix.joined {
		if j.object != nil {
			names = append(names, name)
		}
	}
	return names
}

func (ix *index) sliceNames() []service.Name { return slices.Collect(maps.Keys(ix.slices)) }

func (ix *index) cidrNames() []service.Name { return slices.Collect(maps.Keys(ix.cidrs)) }

func (ix *index) nodeNames() []service.Name {
	if !ix.hasNode {
		return nil
	}
	return []service.Name{service.NewName("", ix.builder.Snapshot().Node.Name)}
}

// report keeps the problems that an object's last version did not have.
func (ix *index) report(old, new []Problem) {
	for _, p := range new {
		if !slices.ContainsFunc(old, func(o Problem) bool { return o.Error() == p.Error() }) {
			ix.problems = append(ix.problems, p)
		}
	}
}

func (ix *index) setService(s *serviceObject) {
	name := s.name()
	if s.part == nil {
		ix.deleteService(name)
		return
	}
	j := ix.join(name)
	var old []Problem
	if j.object != nil {
		old = j.object.problems
	}
	ix.report(old, s.problems)
	j.object = s
	ix.touch(j)
}

func (ix *index) deleteService(name service.Name) {
	if j, ok := ix.joined[name]; ok && j.object != nil {
		j.object = nil
		ix.touch(j)
	}
}

// service is the object of a Service that is a proxy's business, nil for none.
func (ix *index) service(name service.Name) *serviceObject {
	if j, ok := ix.joined[name]; ok {
		return j.object
	}
	return nil
}

// join returns what is joined under a Service's name. Whoever makes it touches
// it: flush forgets what nothing was put into.
func (ix *index) join(name service.Name) *joined {
	j, ok := ix.joined[name]
	if !ok {
		j = &joined{name: name}
		ix.joined[name] = j
	}
	return j
}

// touch has flush rebuild it.
func (ix *index) touch(j *joined) {
	if !j.dirty {
		j.dirty = true
		ix.dirty = append(ix.dirty, j)
	}
}

func (ix *index) setSlice(s *sliceObject) {
	name := s.name()
	old, ok := ix.slices[name]
	ix.slices[name] = s
	if !ok {
		ix.report(nil, s.problems)
		ix.own(s)
		return
	}
	ix.report(old.problems, s.problems)
	same := s.share(old)
	if old.owner != s.owner {
		ix.disown(old)
		ix.own(s)
		return
	}
	if s.owner == "" {
		return
	}
	j := ix.joined[s.owner]
	j.slices[slices.Index(j.slices, old)] = s
	if !same {
		ix.touch(j)
	}
}

func (ix *index) deleteSlice(name service.Name) {
	if old, ok := ix.slices[name]; ok {
		delete(ix.slices, name)
		ix.disown(old)
	}
}

// own gives a slice to its Service.
func (ix *index) own(s *sliceObject) {
	if s.owner != "" {
		j := ix.join(s.owner)
		j.slices = append(j.slices, s)
		ix.touch(j)
	}
}

// disown takes a slice away from its Service.
func (ix *index) disown(s *sliceObject) {
	if s.owner == "" {
		return
	}
	j := ix.joined[s.owner]
	j.slices = slices.DeleteFunc(j.slices, func(o *sliceObject) bool { return o == s })
	ix.touch(j)
}

// share takes from the last version of the slice the endpoints of every port
// that are the same as there, so that they need not be compared, nor held in
// memory, twice. It says whether the two are the same altogether.
func (s *sliceObject) share(old *sliceObject) bool {
	same := s.owner == old.owner && len(s.ports) == len(old.ports)
	for i := range s.ports {
		p := &s.ports[i]
		if have := old.port(p.key); have != nil && slices.Equal(have, p.endpoints) {
			p.endpoints = have
		} else {
			same = false
		}
	}
	return same
}

// setCIDR and deleteCIDR make the ranges those of all objects together: two may
// share one.
func (ix *index) setCIDR(o *cidrObject) {
	var old []Problem
	if have, ok := ix.cidrs[o.name()]; ok {
		old = have.problems
	}
	ix.report(old, o.problems)
	ix.cidrs[o.name()] = o
	ix.setCIDRs()
}

func (ix *index) deleteCIDR(name service.Name) {
	delete(ix.cidrs, name)
	ix.setCIDRs()
}

func (ix *index) setCIDRs() {
	var all []netip.Prefix
	for _, o := range ix.cidrs {
		all = append(all, o.cidrs...)
	}
	ix.builder.SetServiceCIDRs(all)
}

// setNode takes what this node's object says and ignores the others.
func (ix *index) setNode(n *nodeObject) {
	last := ix.builder.Snapshot().Node
	if n.Name != last.Name {
		return
	}
	ix.report(ix.nodeProblems, n.problems)
	ix.hasNode, ix.nodeProblems = true, n.problems
	node := n.facts
	node.HostAddresses = last.HostAddresses
	ix.builder.SetNode(node)
	select {
	case <-ix.podCIDRs:
	default:
		if len(node.PodCIDRs) > 0 {
			close(ix.podCIDRs)
		}
	}
}

// deleteNode leaves everything as it was: that the Node object went away does
// not take its addresses off the node's interfaces.
func (ix *index) deleteNode(name service.Name) {
	if ix.hasNode && slices.Contains(ix.nodeNames(), name) {
		ix.hasNode, ix.nodeProblems = false, nil
		ix.missNode()
	}
}

// missNode reports that there is no Node.
func (ix *index) missNode() {
	if !ix.hasNode {
		ix.problems = append(ix.problems, Problem{Object: ix.nodeName(), Err: ErrNoNode})
	}
}

// missPodCIDRs reports that the Node has no podCIDRs, and what comes of it.
func (ix *index) missPodCIDRs(consequence string) {
	err := fmt.Errorf("%w: %s", ErrNoPodCIDRs, consequence)
	ix.problems = append(ix.problems, Problem{Object: ix.nodeName(), Field: "spec.podCIDRs", Err: err})
}

func (ix *index) nodeName() Object {
	return Object{Kind: "Node", Name: ix.builder.Snapshot().Node.Name}
}

// setHostAddresses keeps a sorted copy without duplicates.
func (ix *index) setHostAddresses(addrs []netip.Addr) {
	sorted := slices.Clone(addrs)
	slices.SortFunc(sorted, netip.Addr.Compare)
	node := *ix.builder.Snapshot().Node
	node.HostAddresses = slices.Compact(sorted)
	ix.builder.SetNode(node)
}

// flush brings the snapshot up to date.
func (ix *index) flush() service.Snapshot {
	before := ix.builder.Snapshot()
	ix.builder.Expect(len(ix.dirty))
	for _, j := range ix.dirty {
		j.dirty = false
		ix.rebuild(j)
	}
	ix.dirty = nil // it may have been long: at the start, all
	after := ix.builder.Snapshot()
	ix.reportConflicts(before, after)
	return after
}

// takeProblems returns those that came up since the last call: objects' in the
// order of events, then conflicts by name.
func (ix *index) takeProblems() []Problem {
	list := ix.problems
	ix.problems = nil
	return list
}

func (ix *index) rebuild(j *joined) {
	if j.object == nil {
		ix.builder.Delete(j.name)
		if len(j.slices) == 0 {
			delete(ix.joined, j.name)
		}
		return
	}
	last := ix.builder.Service(j.name)
	s := *j.object.part
	s.Ports = slices.Clone(s.Ports)
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Endpoints = j.endpoints(portKey{p.Name, p.Protocol})
		if last != nil && i < len(last.Ports) && slices.Equal(last.Ports[i].Endpoints, p.Endpoints) {
			p.Endpoints = last.Ports[i].Endpoints
		}
	}
	ix.builder.Set(&s)
}

// endpoints are those of one port. They are the slice's own list if only one
// slice has any.
func (j *joined) endpoints(key portKey) []service.Endpoint {
	var lists [][]service.Endpoint
	for _, s := range j.slices {
		if list := s.port(key); len(list) > 0 {
			lists = append(lists, list)
		}
	}
	switch len(lists) {
	case 0:
		return nil
	case 1:
		return lists[0]
	}
	return service.MergeEndpoints(slices.Concat(lists...))
}

// reportConflicts reports every claim lost since before.
func (ix *index) reportConflicts(before, after service.Snapshot) {
	for c := range treap.Diff(before.Conflicts, after.Conflicts) {
		if !c.HasNew {
			continue
		}
		namespace, name := c.Key.Split()
		object := Object{Kind: "Service", Namespace: namespace, Name: name}
		if s := ix.service(c.Key); s != nil {
			object.UID = string(s.UID)
		}
		for _, l := range c.New.Lost {
			if c.HadOld && slices.Contains(c.Old.Lost, l) {
				continue
			}
			ix.problems = append(ix.problems, Problem{Object: object, Err: &ConflictError{Claim: l.Claim, Owner: l.Owner}})
		}
	}
}

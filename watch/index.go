package watch

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/parallel"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/watch/wire"
)

// index joins Services with their EndpointSlices. It takes events in any order.
// flush then rebuilds only the services that the events concern, and of a service
// with many endpoints only the endpoints that differ: the cost of an event grows
// with the size of its object. index is not safe for concurrent use.
type index struct {
	builder *snapshots.Builder
	// The key of joined is the name of the Service, that of slices the name of the
	// slice.
	joined map[service.Name]*joined
	slices map[service.Name]*sliceObject
	// headless has the slices with the label of headless Services, by the Services that they name.
	headless map[service.Name][]*headlessSlice
	// strays are the slices of no Service, by what a Service may find them by. straysDue is when to look at them again.
	strays    map[strayKey][]*stray
	straysDue time.Time

	// cidrs are the ServiceCIDR objects.
	cidrs map[service.Name]*cidrObject

	node nodeState

	// options are those of the watcher. Their Settings are in force where the node has none.
	options     Options
	kubeletPort uint16
	// apiServers are the addresses at which the proxy has reached the API server,
	// the latest last.
	apiServers []netip.AddrPort
	// apiEndpoints are the endpoints that the Service default/kubernetes has or has had.
	apiEndpoints []netip.AddrPort
	// broadcast are the broadcast addresses of the networks that the node is on.
	broadcast []netip.Addr
	// unprotected says that the builder does not yet have the newest protected
	// addresses.
	unprotected bool

	// unrouted says that options.Networks has to be asked again.
	unrouted bool
	// networksReported is the text of the last report of networks in ServiceCIDRs.
	networksReported string

	// dirty are the Services that flush rebuilds, in the order of the events.
	dirty    []*joined
	problems []Problem
	// at is the time of the flush under way, and releases says that it may let a held Service go. due is when the next
	// held one may go; zero for never.
	at, due  time.Time
	releases bool
	// retention has the Services that a list lacks and that are served all the same.
	retention *retention
	// manifests says that the source is one that people edit: its word counts unless it
	// has no object at all.
	manifests bool
	// changes counts the events of Services and EndpointSlices since the start.
	changes service.Changes
	// triggers are those of the slices that have changed since the last update. Those
	// from before the start do not count: the proxy was not there to be late.
	triggers service.Triggers
	start    time.Time
}

// joined is a Service with the slices that name it as their owner. Either may be
// missing.
type joined struct {
	name service.Name
	// object is nil where there is no Service that this proxy serves. foreign is one that it does not serve: another
	// proxy does, or none, since it has no virtual address.
	object, foreign *serviceObject
	slices          []*sliceObject
	// dirty says that it is in the index's list of the same name.
	dirty bool
	// since is when it was first held, zero for not, and ready when it may go on. told is when that was last reported.
	since, ready, told time.Time
	// before are the slices whose endpoints the builder has, while the Service is dirty.
	before []*sliceObject
	// kept is the Service as it was last served with endpoints, while it is retained.
	// byKept says that its endpoints in the builder are those of kept.
	kept   *service.Service
	byKept bool
}

// converted is an object as the index keeps it.
type converted interface {
	wire.Object
	meta() *identity
	// put puts the object in the place of the one with its name, and drop removes that one.
	put(*index)
	drop(*index)
	// service is the Service that loses something with the object; empty for kinds that no Service is served by.
	service() service.Name
}

func (s *serviceObject) put(ix *index)         { ix.setService(s) }
func (s *serviceObject) drop(ix *index)        { ix.deleteService(s.key) }
func (s *serviceObject) service() service.Name { return s.key }

func (s *sliceObject) put(ix *index)         { ix.setSlice(s) }
func (s *sliceObject) drop(ix *index)        { ix.deleteSlice(s.key) }
func (s *sliceObject) service() service.Name { return s.owner }

func (n *nodeObject) put(ix *index)  { ix.setNode(n) }
func (n *nodeObject) drop(ix *index) { ix.deleteNode(n.key) }

func (c *cidrObject) put(ix *index)  { ix.setCIDR(c) }
func (c *cidrObject) drop(ix *index) { ix.deleteCIDR(c.key) }

func newIndex(node string) *index {
	return &index{
		builder:     snapshots.NewBuilder(service.Node{Name: node}),
		joined:      map[service.Name]*joined{},
		slices:      map[service.Name]*sliceObject{},
		headless:    map[service.Name][]*headlessSlice{},
		strays:      map[strayKey][]*stray{},
		cidrs:       map[service.Name]*cidrObject{},
		node:        newNodeState(),
		kubeletPort: defaultKubeletPort,
		retention:   newRetention(0),
	}
}

// expect makes room in an empty index for a list of objects. Maps that grow to the size of a large cluster copy
// everything several times.
func (ix *index) expect(objects any) {
	switch list := objects.(type) {
	case []*serviceObject:
		if len(ix.joined) == 0 {
			ix.joined = make(map[service.Name]*joined, len(list))
		}
	case []*sliceObject:
		if len(ix.slices) == 0 {
			ix.slices = make(map[service.Name]*sliceObject, len(list))
		}
	}
}

// knownServices, knownSlices and knownCIDRs return the objects that the index has, in no order.

func (ix *index) knownServices() []*serviceObject {
	var list []*serviceObject
	for _, j := range ix.joined {
		if s := cmp.Or(j.object, j.foreign); s != nil {
			list = append(list, s)
		}
	}
	return list
}

func (ix *index) knownSlices() []*sliceObject { return slices.Collect(maps.Values(ix.slices)) }

func (ix *index) knownCIDRs() []*cidrObject { return slices.Collect(maps.Values(ix.cidrs)) }

// reportNew reports the problems that an object's last version did not have; old is nil where there was none.
func reportNew[K interface {
	comparable
	converted
}](ix *index, old, now K) {
	var none K
	var before []Problem
	if old != none {
		before = old.meta().problems
	}
	for _, p := range now.meta().problems {
		if !slices.ContainsFunc(before, func(o Problem) bool { return o.Error() == p.Error() }) {
			ix.problems = append(ix.problems, p)
		}
	}
}

func (ix *index) setService(s *serviceObject) {
	name := s.key
	ix.changes.Services++
	j := ix.joinedOf(name)
	ix.markDirty(j)
	if s.bare == nil || !ix.serves(s) {
		if ix.serves(s) {
			reportNew(ix, ix.barred(j), s)
		}
		j.object, j.foreign = nil, s
		ix.retention.Release(name) // It is not missing: nothing of that name is retained.
		if s.bare != nil {
			ix.builder.SetOther(s.bare) // Another proxy serves it.
		} else {
			ix.builder.DeleteOther(name)
		}
		return
	}
	ix.builder.DeleteOther(name)
	s = ix.withTimeouts(ix.withBalance(ix.withoutIgnoredExternalIPs(s)))
	reportNew(ix, j.object, s)
	if j.object == nil {
		ix.reportHeadless(name)
	}
	j.object, j.foreign = s, nil
	if len(j.slices) > 0 {
		ix.retention.Release(name)
	}
}

// barred returns the Service if it would be this proxy's, and has no virtual address; nil if not.
func (ix *index) barred(j *joined) *serviceObject {
	if j.foreign != nil && ix.serves(j.foreign) {
		return j.foreign
	}
	return nil
}

// serves says whether the Service is this proxy's: one with the proxy's name in its
// label, or without the label if the proxy has no name.
func (ix *index) serves(s *serviceObject) bool {
	return s.named == (ix.options.ProxyName != "") && s.proxy == ix.options.ProxyName
}

func (ix *index) deleteService(name service.Name) {
	ix.changes.Services++
	if j, ok := ix.joined[name]; ok && (j.object != nil || j.foreign != nil) {
		ix.retention.Release(name)
		ix.builder.DeleteOther(name)
		j.object, j.foreign = nil, nil
		ix.markDirty(j)
	}
}

// service returns the object of a Service that this proxy serves, nil for none.
func (ix *index) service(name service.Name) *serviceObject {
	if j, ok := ix.joined[name]; ok {
		return j.object
	}
	return nil
}

// joinedOf returns the joined Service of a name, and makes it where there is none.
// The caller marks it dirty: then flush removes one that stays empty.
func (ix *index) joinedOf(name service.Name) *joined {
	j, ok := ix.joined[name]
	if !ok {
		j = &joined{name: name}
		ix.joined[name] = j
	}
	return j
}

// markDirty makes flush rebuild the Service. It must be called before its slices change.
func (ix *index) markDirty(j *joined) {
	if j.dirty {
		return
	}
	j.dirty = true
	ix.dirty = append(ix.dirty, j)
	if ix.builder.Service(j.name) != nil {
		j.before = slices.Clone(j.slices)
	}
}

func (ix *index) setSlice(s *sliceObject) {
	name := s.key
	ix.changes.EndpointSlices++
	old := ix.slices[name]
	ix.slices[name] = s
	ix.noteHeadless(old, s)
	ix.noteUnowned(old, s)
	reportNew(ix, old, s)
	ix.doubtPods(slices.Values([]*sliceObject{s}))
	if old == nil {
		ix.noteTrigger(s)
		ix.attachSlice(s)
		return
	}
	same := s.follow(old)
	if !same {
		ix.noteTrigger(s)
	}
	if old.owner != s.owner {
		ix.detachSlice(old)
		ix.attachSlice(s)
		return
	}
	if s.owner == "" {
		return
	}
	j := ix.joined[s.owner]
	if !same {
		ix.markDirty(j)
	}
	j.slices[slices.Index(j.slices, old)] = s
}

// noteTrigger keeps the time of the cause of a change, if the slice tells it. The
// removal of a slice has none: the slice tells that of the change before.
func (ix *index) noteTrigger(s *sliceObject) {
	if s.trigger.After(ix.start) {
		var cause service.Triggers
		*cause.Of(s.family) = []time.Time{s.trigger}
		ix.triggers.Join(cause)
	}
}

func (ix *index) deleteSlice(name service.Name) {
	ix.changes.EndpointSlices++
	if old, ok := ix.slices[name]; ok {
		delete(ix.slices, name)
		ix.noteHeadless(old, nil)
		ix.noteUnowned(old, nil)
		ix.detachSlice(old)
	}
}

// attachSlice gives a slice to its Service.
func (ix *index) attachSlice(s *sliceObject) {
	if s.owner != "" {
		j := ix.joinedOf(s.owner)
		ix.markDirty(j)
		j.slices = append(j.slices, s)
		if j.object != nil {
			ix.retention.Release(j.name)
		}
	}
}

// detachSlice takes a slice away from its Service.
func (ix *index) detachSlice(s *sliceObject) {
	if s.owner == "" {
		return
	}
	j := ix.joined[s.owner]
	ix.markDirty(j)
	j.slices = slices.DeleteFunc(j.slices, func(o *sliceObject) bool { return o == s })
}

// setCIDR takes a ServiceCIDR. The ranges in force are those of all ServiceCIDRs
// together, since two of them may have the same range.
func (ix *index) setCIDR(o *cidrObject) {
	reportNew(ix, ix.cidrs[o.key], o)
	ix.cidrs[o.key] = o
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
	ix.unrouted = true
}

// setHostAddresses keeps copies, of the node's addresses sorted ones without duplicates.
func (ix *index) setHostAddresses(addrs, shared, broadcast []netip.Addr) {
	ix.broadcast = slices.Clone(broadcast)
	node := *ix.builder.Node()
	node.HostAddresses = slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare))
	node.SharedAddresses = slices.Compact(slices.SortedFunc(slices.Values(shared), netip.Addr.Compare))
	ix.builder.SetNode(node)
	ix.unprotected = true
	ix.doubtNode()
	ix.doubtPods(maps.Values(ix.slices))
}

// flush rebuilds the dirty Services that nothing holds, and returns the new snapshot.
func (ix *index) flush() service.Snapshot {
	before := ix.builder.Snapshot()
	ix.reserve()
	debtors := ix.debtors()
	ix.builder.Expect(len(ix.dirty))
	parallel.Chunks(ix.dirty, ix.join, ix.take)
	ix.dirty = nil // not [:0]: at the start it had all Services
	ix.release(debtors)
	ix.protect()
	ix.setNetworks(before.Node)
	after := ix.builder.Snapshot()
	ix.reportDenials(before, after)
	return after
}

// takeProblems returns the problems since the last call: those of objects in the
// order of the events, then those of conflicts by the names of the Services.
func (ix *index) takeProblems() []Problem {
	list := ix.problems
	ix.problems = nil
	return list
}

// take takes Services that were joined into the builder.
func (ix *index) take(list []*joined, prepared []snapshots.Prepared) {
	for i, j := range list {
		j.dirty = false
		ix.unprotected = ix.unprotected || j.name == kubernetesService
		ix.builder.Take(prepared[i])
		ix.noteStrays(j)
		if ix.builder.Service(j.name) == nil && len(j.slices) == 0 && j.foreign == nil {
			delete(ix.joined, j.name)
		}
	}
}

// join makes the Service again of its object and slices, or of what is retained of it. It changes nothing but j, so
// that Services can be joined side by side.
func (ix *index) join(j *joined) snapshots.Prepared {
	before := j.before
	j.before = nil
	last := ix.builder.Service(j.name)
	bare, retained := ix.bare(j, last)
	if bare == nil {
		j.byKept = false
		return ix.builder.Prepare(j.name, nil)
	}
	if j.byKept {
		last = nil // Its endpoints are not those of the slices before the changes.
	}
	j.byKept = retained != service.RetainedNothing && len(j.slices) == 0
	s := bare
	if j.object == nil || j.object.built {
		s = bare.Clone()
	}
	s.Retained = retained
	if j.byKept {
		kept := endpointsKept(j.kept)
		for i := range s.Ports {
			s.Ports[i].Endpoints = kept(i, &s.Ports[i])
		}
	} else {
		lists := j.lists(len(s.Ports))
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.IsRange() {
				continue
			}
			key := p.InSlices()
			inSlices, total := lists(key)
			p.Endpoints = mergeLists(inSlices, total, endpointsOfPort(last, i, p), func() []netip.AddrPort {
				return changedAddrs(key, before, j.slices)
			})
		}
		s.OtherPorts = j.otherPorts(s.Ports)
	}
	s.SetRangePorts()
	prepared := ix.builder.Prepare(j.name, s)
	if j.object != nil {
		// A snapshot is going to have it. There is no second copy.
		j.object.bare, j.object.built = prepared.Service(), true
	}
	return prepared
}

package watch

import (
	"slices"
	"time"

	"nftproxy/model/service"
	"nftproxy/watch/wire"
)

// converted is an object as the index keeps it.
type converted interface {
	wire.Object
	name() service.Name
	found() []Problem
	keepText(problems []Problem)
}

// store takes converted objects of one kind, and edits the index.
type store[K converted] struct {
	watcher *Watcher
	set     func(*index, K)
	remove  func(*index, service.Name)
	known   func(*index) []service.Name
	// expect makes room in an index for that many objects; nil for kinds of few objects.
	expect func(*index, int)
	// servicesOf returns the Services that lose something with the objects of these
	// names; nil for kinds of objects that no Service is served by.
	servicesOf func(*index, []service.Name) []service.Name
	// synced is closed once the first full list is in the index, or the API server has said that it lacks
	// an optional resource.
	synced chan struct{}
}

func newStore[K converted](w *Watcher, set func(*index, K), remove func(*index, service.Name),
	known func(*index) []service.Name) *store[K] {
	return &store[K]{watcher: w, set: set, remove: remove, known: known, synced: make(chan struct{})}
}

func newServiceStore(w *Watcher) *store[*serviceObject] {
	s := newStore(w, (*index).setService, (*index).deleteService, (*index).serviceNames)
	s.servicesOf = func(_ *index, names []service.Name) []service.Name { return names }
	s.expect = (*index).expectServices
	return s
}

func newSliceStore(w *Watcher) *store[*sliceObject] {
	s := newStore(w, (*index).setSlice, (*index).deleteSlice, (*index).sliceNames)
	s.servicesOf = (*index).ownersOf
	s.expect = (*index).expectSlices
	return s
}

// put puts the object in the place of the one with its name.
func (s *store[K]) put(object K) {
	s.watcher.change(func(ix *index) { s.set(ix, object) })
}

// delete removes the object with the name of this one.
func (s *store[K]) delete(object K) {
	s.watcher.change(func(ix *index) { s.remove(ix, object.name()) })
}

// replace puts the list in the place of all objects, in one step: at the start, and when the API server lists again.
// Where the list lacks most Services or their endpoints, these are retained (retention.go).
func (s *store[K]) replace(objects []K) {
	now := time.Now()
	s.watcher.change(func(ix *index) {
		gone := s.others(ix, objects)
		var l loss
		if s.servicesOf != nil {
			l = ix.lossOf(s.servicesOf(ix, gone))
		}
		for _, name := range gone {
			s.remove(ix, name)
		}
		if s.expect != nil {
			s.expect(ix, len(objects))
		}
		for _, o := range objects {
			s.set(ix, o)
		}
		ix.retain(l, now)
	})
	closeOnce(s.synced)
}

// others returns the names of the objects in the index that are not in the list.
func (s *store[K]) others(ix *index, list []K) []service.Name {
	known := s.known(ix)
	if len(known) == 0 { // the start
		return nil
	}
	listed := make(map[service.Name]bool, len(list))
	for _, o := range list {
		listed[o.name()] = true
	}
	return slices.DeleteFunc(known, func(name service.Name) bool { return listed[name] })
}

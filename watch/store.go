package watch

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
)

// converted is an object as the index keeps it.
type converted interface {
	name() service.Name
}

// store takes objects of one kind from a reflector, converts them and edits the index.
// O is the API's type and K the converted one.
type store[O metav1.Object, K converted] struct {
	watcher *Watcher
	convert func(O) K
	set     func(*index, K)
	remove  func(*index, service.Name)
	known   func(*index) []service.Name
	// expect makes room in an index for that many objects; nil for kinds of few objects.
	expect func(*index, int)
	// servicesOf returns the Services that lose something with the objects of these
	// names; nil for kinds of objects that no Service is served by.
	servicesOf func(*index, []service.Name) []service.Name
	// synced is closed once the first full list is in the index.
	synced chan struct{}
}

func newStore[O metav1.Object, K converted](w *Watcher, convert func(O) K, set func(*index, K),
	remove func(*index, service.Name), known func(*index) []service.Name) *store[O, K] {
	return &store[O, K]{watcher: w, convert: convert, set: set, remove: remove, known: known, synced: make(chan struct{})}
}

func newServiceStore(w *Watcher) *store[*corev1.Service, *serviceObject] {
	s := newStore(w, convertService, (*index).setService, (*index).deleteService, (*index).serviceNames)
	s.servicesOf = func(_ *index, names []service.Name) []service.Name { return names }
	s.expect = (*index).expectServices
	return s
}

func newSliceStore(w *Watcher) *store[*discoveryv1.EndpointSlice, *sliceObject] {
	s := newStore(w, convertSlice, (*index).setSlice, (*index).deleteSlice, (*index).sliceNames)
	s.servicesOf = (*index).ownersOf
	s.expect = (*index).expectSlices
	return s
}

// converted converts obj, unless that has been done.
func (s *store[O, K]) converted(obj any) (K, error) {
	switch v := obj.(type) {
	case K:
		return v, nil
	case O:
		return s.convert(v), nil
	}
	var none K
	return none, fmt.Errorf("object of an unexpected type %T", obj)
}

// Add is Update.
func (s *store[O, K]) Add(obj any) error { return s.Update(obj) }

// Update puts the object in the place of the one with its name.
func (s *store[O, K]) Update(obj any) error {
	object, err := s.converted(obj)
	if err != nil {
		return err
	}
	s.watcher.change(func(ix *index) { s.set(ix, object) })
	return nil
}

// Delete removes the object with the name of obj.
func (s *store[O, K]) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	s.watcher.change(func(ix *index) { s.remove(ix, service.NewName(m.GetNamespace(), m.GetName())) })
	return nil
}

// Replace puts the list in the place of all objects, in one step. The reflector calls it
// at the start, and when it has to list again. Where the list lacks most Services or their
// endpoints, these are retained (model/retention).
func (s *store[O, K]) Replace(list []any, _ string) error {
	objects := make([]K, len(list))
	for i, obj := range list {
		var err error
		if objects[i], err = s.converted(obj); err != nil {
			return err
		}
	}
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
	return nil
}

// others returns the names of the objects in the index that are not in the list.
func (s *store[O, K]) others(ix *index, list []K) []service.Name {
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

// Resync has nothing to do: the index keeps all objects.
func (s *store[O, K]) Resync() error { return nil }

package watch

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"nftproxy/internal/service"
)

// kept is what objects are converted to.
type kept interface {
	metav1.Object
	name() service.Name
}

// store is where a reflector puts objects of one kind: it converts them and
// edits the index. O is the API's type, K what is kept of it.
type store[O metav1.Object, K kept] struct {
	watcher *Watcher
	convert func(O) K
	set     func(*index, K)
	remove  func(*index, service.Name)
	known   func(*index) []service.Name
	// synced is closed once the first full list is in the index.
	synced chan struct{}
}

func newStore[O metav1.Object, K kept](w *Watcher, convert func(O) K, set func(*index, K),
	remove func(*index, service.Name), known func(*index) []service.Name) *store[O, K] {
	return &store[O, K]{watcher: w, convert: convert, set: set, remove: remove, known: known, synced: make(chan struct{})}
}

func newServiceStore(w *Watcher) *store[*corev1.Service, *serviceObject] {
	return newStore(w, convertService, (*index).setService, (*index).deleteService, (*index).serviceNames)
}

func newSliceStore(w *Watcher) *store[*discoveryv1.EndpointSlice, *sliceObject] {
	return newStore(w, convertSlice, (*index).setSlice, (*index).deleteSlice, (*index).sliceNames)
}

// Transformer has the reflector keep converted objects, not the API's large
// ones, while it receives the first list as a stream.
func (s *store[O, K]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		kept, err := s.kept(obj)
		return kept, err
	}
}

// kept converts what has not been converted yet.
func (s *store[O, K]) kept(obj any) (K, error) {
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

// Update puts the object in the place of the one of its name.
func (s *store[O, K]) Update(obj any) error {
	kept, err := s.kept(obj)
	if err != nil {
		return err
	}
	s.watcher.change(func(ix *index) { s.set(ix, kept) })
	return nil
}

// Delete removes the object of this one's name.
func (s *store[O, K]) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	s.watcher.change(func(ix *index) { s.remove(ix, service.NewName(m.GetNamespace(), m.GetName())) })
	return nil
}

// Replace makes the list all there is, in one step: at the start, and after a
// watch was lost.
func (s *store[O, K]) Replace(list []any, _ string) error {
	objects := make([]K, len(list))
	for i, obj := range list {
		var err error
		if objects[i], err = s.kept(obj); err != nil {
			return err
		}
	}
	s.watcher.change(func(ix *index) {
		s.removeOthers(ix, objects)
		for _, o := range objects {
			s.set(ix, o)
		}
	})
	select {
	case <-s.synced:
	default:
		close(s.synced)
	}
	return nil
}

// removeOthers removes what is not in the list.
func (s *store[O, K]) removeOthers(ix *index, list []K) {
	known := s.known(ix)
	if len(known) == 0 { // the start
		return
	}
	listed := make(map[service.Name]bool, len(list))
	for _, o := range list {
		listed[o.name()] = true
	}
	for _, name := range known {
		if !listed[name] {
			s.remove(ix, name)
		}
	}
}

// Resync has nothing to do: the index never forgets what it was told.
func (s *store[O, K]) Resync() error { return nil }

// Package treap provides an immutable sorted map. Set and Delete return a new map that shares all
// but O(log n) nodes with the old one. Diff of two such maps costs O(changes * log n), whatever
// their size.
//
// A random seed decides the shape of a map's tree. All maps that are derived from one map share its
// seed, which is not known outside the process. So a tenant who chooses the keys, such as the names
// of Services, cannot choose a tree that is a list. With one seed the same keys and values give the
// same tree, in whatever order they came. So Diff can skip equal subtrees by their address. Diff is
// also correct between maps of different seeds, but slower. Results never depend on the seed. The
// package does not lock.
package treap

import (
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Map is a persistent sorted map. The zero value is empty and ready to use.
// Diff compares values of V, so V is best a pointer to something that never changes.
type Map[K ~string, V comparable] struct {
	root *node[K, V]
	// seed decides the priorities. An empty map has none, so that all empty maps are
	// equal.
	seed maphash.Seed
}

type node[K ~string, V comparable] struct {
	key         K
	value       V
	priority    uint64
	size        int
	left, right *node[K, V]
}

// Len returns the number of keys; it costs O(1).
func (m Map[K, V]) Len() int { return m.root.len() }

func (n *node[K, V]) len() int {
	if n == nil {
		return 0
	}
	return n.size
}

// Get returns the value at k and whether there is one.
func (m Map[K, V]) Get(k K) (V, bool) {
	for n := m.root; n != nil; {
		switch c := strings.Compare(string(k), string(n.key)); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	var zero V
	return zero, false
}

// At returns the value at k, or the zero value.
func (m Map[K, V]) At(k K) V {
	v, _ := m.Get(k)
	return v
}

// First returns the least key with its value, and whether there is one. It costs as much
// as a Get.
func (m Map[K, V]) First() (k K, v V, ok bool) {
	for n := m.root; n != nil; n = n.left {
		k, v, ok = n.key, n.value, true
	}
	return k, v, ok
}

// Last returns the greatest key with its value, and whether there is one.
func (m Map[K, V]) Last() (k K, v V, ok bool) {
	for n := m.root; n != nil; n = n.right {
		k, v, ok = n.key, n.value, true
	}
	return k, v, ok
}

// Set returns the map with v at k. If v already is at k, it returns the map itself.
func (m Map[K, V]) Set(k K, v V) Map[K, V] {
	if old, ok := m.Get(k); ok && old == v {
		return m
	}
	m = m.seeded()
	return m.withRoot(m.root.set(&node[K, V]{key: k, value: v, priority: m.priority(k), size: 1}))
}

// Delete returns the map without k. If k is not in the map, it returns the map itself.
func (m Map[K, V]) Delete(k K) Map[K, V] {
	if _, ok := m.Get(k); !ok {
		return m
	}
	return m.withRoot(m.root.delete(k))
}

// Edit sets the value at a key or, with Gone, deletes the key.
type Edit[K ~string, V comparable] struct {
	Key   K
	Value V
	Gone  bool
}

// Edits makes edits of a Go map, sorted. The zero value deletes the key.
func Edits[K ~string, V comparable](changes map[K]V) []Edit[K, V] {
	var gone V
	edits := make([]Edit[K, V], 0, len(changes))
	for _, k := range slices.Sorted(maps.Keys(changes)) {
		v := changes[k]
		edits = append(edits, Edit[K, V]{Key: k, Value: v, Gone: v == gone})
	}
	return edits
}

// Apply returns the map after the edits, which must be sorted by key, each key once. The
// result is the same as by Set and Delete one by one, but Apply makes each node once: it
// fills an empty map in O(n log n) comparisons and n allocations.
func (m Map[K, V]) Apply(edits []Edit[K, V]) Map[K, V] {
	if len(edits) == 0 {
		return m
	}
	m = m.seeded()
	fresh := make([]edit[K, V], len(edits))
	for i, e := range edits {
		fresh[i] = edit[K, V]{e, m.priority(e.Key)}
	}
	return m.withRoot(m.root.apply(fresh))
}

// All yields the keys with their values, in the order of the keys.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

// Change is one difference between two maps. HadOld is false if the key was added, HasNew
// is false if it was removed.
type Change[K ~string, V comparable] struct {
	Key            K
	Old, New       V
	HadOld, HasNew bool
}

// Diff yields the changes from old to next, in the order of the keys.
func Diff[K ~string, V comparable](old, next Map[K, V]) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) { diffNodes(old.root, next.root, yield) }
}

func diffNodes[K ~string, V comparable](a, b *node[K, V], yield func(Change[K, V]) bool) bool {
	switch {
	case a == b:
		return true
	case a == nil:
		return b.walk(func(k K, v V) bool { return yield(Change[K, V]{Key: k, New: v, HasNew: true}) })
	case b == nil:
		return a.walk(func(k K, v V) bool { return yield(Change[K, V]{Key: k, Old: v, HadOld: true}) })
	}
	// Most nodes on the way to a change are copies of each other. Their keys are one string in memory, and comparing a
	// string with itself reads none of it.
	if a.key == b.key {
		return diffNodes(a.left, b.left, yield) && yieldChange(a, b, yield) && diffNodes(a.right, b.right, yield)
	}
	if a.above(b) {
		bl, at, br := b.split(a.key)
		return diffNodes(a.left, bl, yield) && yieldChange(a, at, yield) && diffNodes(a.right, br, yield)
	}
	al, at, ar := a.split(b.key)
	return diffNodes(al, b.left, yield) && yieldChange(at, b, yield) && diffNodes(ar, b.right, yield)
}

// yieldChange yields the change between two nodes with one key, if they differ. One may
// be nil.
func yieldChange[K ~string, V comparable](a, b *node[K, V], yield func(Change[K, V]) bool) bool {
	switch {
	case a == nil:
		return yield(Change[K, V]{Key: b.key, New: b.value, HasNew: true})
	case b == nil:
		return yield(Change[K, V]{Key: a.key, Old: a.value, HadOld: true})
	case a.value == b.value:
		return true
	}
	return yield(Change[K, V]{Key: a.key, Old: a.value, New: b.value, HadOld: true, HasNew: true})
}

// above says whether n is above o in every tree that has both.
func (n *node[K, V]) above(o *node[K, V]) bool {
	if n.priority != o.priority {
		return n.priority > o.priority
	}
	return n.key < o.key
}

// withChildren returns a copy of n with other children.
func (n *node[K, V]) withChildren(left, right *node[K, V]) *node[K, V] {
	return &node[K, V]{n.key, n.value, n.priority, 1 + left.len() + right.len(), left, right}
}

func (n *node[K, V]) set(fresh *node[K, V]) *node[K, V] {
	switch {
	case n == nil:
		return fresh
	case fresh.key == n.key:
		return fresh.withChildren(n.left, n.right)
	case fresh.above(n):
		left, _, right := n.split(fresh.key)
		return fresh.withChildren(left, right)
	case fresh.key < n.key:
		return n.withChildren(n.left.set(fresh), n.right)
	}
	return n.withChildren(n.left, n.right.set(fresh))
}

func (n *node[K, V]) delete(k K) *node[K, V] {
	switch {
	case k == n.key:
		return merge(n.left, n.right)
	case k < n.key:
		return n.withChildren(n.left.delete(k), n.right)
	}
	return n.withChildren(n.left, n.right.delete(k))
}

// edit is an Edit with the priority of its key's node.
type edit[K ~string, V comparable] struct {
	Edit[K, V]
	priority uint64
}

// above says whether the edit's node is above another one, given by priority and key, in
// every tree that has both.
func (e *edit[K, V]) above(priority uint64, key K) bool {
	return e.priority > priority || e.priority == priority && e.Key < key
}

// apply walks down the tree and the edits together. The root of the result is n, or the
// node of an edit that belongs above n.
func (n *node[K, V]) apply(edits []edit[K, V]) *node[K, V] {
	if len(edits) == 0 {
		return n
	}
	top := -1
	for i := range edits {
		e := &edits[i]
		if !e.Gone && (n == nil || e.above(n.priority, n.key)) && (top < 0 || e.above(edits[top].priority, edits[top].Key)) {
			top = i
		}
	}
	if top >= 0 {
		e := &edits[top]
		left, _, right := n.split(e.Key)
		fresh := &node[K, V]{key: e.Key, value: e.Value, priority: e.priority}
		fresh.left, fresh.right = left.apply(edits[:top]), right.apply(edits[top+1:])
		fresh.size = 1 + fresh.left.len() + fresh.right.len()
		return fresh
	}
	if n == nil {
		return nil // the edits only delete
	}
	at, found := slices.BinarySearchFunc(edits, n.key, func(e edit[K, V], k K) int {
		return strings.Compare(string(e.Key), string(k))
	})
	rest := edits[at:]
	if found {
		rest = rest[1:]
	}
	left, right := n.left.apply(edits[:at]), n.right.apply(rest)
	switch {
	case found && edits[at].Gone:
		return merge(left, right)
	case found && edits[at].Value != n.value:
		return (&node[K, V]{key: n.key, value: edits[at].Value, priority: n.priority}).withChildren(left, right)
	case left == n.left && right == n.right:
		return n
	}
	return n.withChildren(left, right)
}

// split splits the tree into the keys before k, the node at k and the keys after k. A
// side that is a whole subtree is that subtree itself.
func (n *node[K, V]) split(k K) (before, at, after *node[K, V]) {
	switch {
	case n == nil:
		return nil, nil, nil
	case k == n.key:
		return n.left, n, n.right
	case k < n.key:
		before, at, after = n.left.split(k)
		if after == n.left {
			return before, at, n
		}
		return before, at, n.withChildren(after, n.right)
	}
	before, at, after = n.right.split(k)
	if before == n.right {
		return n, at, after
	}
	return n.withChildren(n.left, before), at, after
}

// merge joins two trees. Every key of a is before every key of b.
func merge[K ~string, V comparable](a, b *node[K, V]) *node[K, V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.above(b):
		return a.withChildren(a.left, merge(a.right, b))
	}
	return b.withChildren(merge(a, b.left), b.right)
}

// seeded returns the map with a seed.
func (m Map[K, V]) seeded() Map[K, V] {
	if m.root == nil {
		m.seed = maphash.MakeSeed()
	}
	return m
}

// withRoot returns a map with the same seed and another tree.
func (m Map[K, V]) withRoot(root *node[K, V]) Map[K, V] {
	if root == nil {
		return Map[K, V]{}
	}
	return Map[K, V]{root, m.seed}
}

func (m Map[K, V]) priority(k K) uint64 { return maphash.String(m.seed, string(k)) }

// Package treap promises a sorted map that never changes: Set and Delete
// return a new map that shares all but O(log n) nodes with the old one, and
// Diff of two such maps costs O(changes * log n), whatever their size.
//
// It does not lock, hash with a seed, or keep any state: the same entries give
// the same tree in every process, whatever the order they came in. That is
// what lets Diff skip equal subtrees by their address.
package treap

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Map is a persistent sorted map. The zero value is empty and ready to use.
// V is compared by Diff, so pointers to immutable values serve best.
type Map[K ~string, V comparable] struct {
	root *node[K, V]
}

type node[K ~string, V comparable] struct {
	key         K
	value       V
	priority    uint64
	size        int
	left, right *node[K, V]
}

// Len is the number of entries; it costs O(1).
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

// Set returns the map with v at k. Where v already stands there, the map
// itself comes back.
func (m Map[K, V]) Set(k K, v V) Map[K, V] {
	if old, ok := m.Get(k); ok && old == v {
		return m
	}
	return Map[K, V]{m.root.set(&node[K, V]{key: k, value: v, priority: priority(string(k)), size: 1})}
}

// Delete returns the map without k; without such an entry, the map itself.
func (m Map[K, V]) Delete(k K) Map[K, V] {
	if _, ok := m.Get(k); !ok {
		return m
	}
	return Map[K, V]{m.root.delete(k)}
}

// Edit is an entry to set or, with Gone, one to delete.
type Edit[K ~string, V comparable] struct {
	Key   K
	Value V
	Gone  bool
}

// Edits makes edits of what stands in a map: the zero value is for a key that
// is to be deleted.
func Edits[K ~string, V comparable](changes map[K]V) []Edit[K, V] {
	var gone V
	edits := make([]Edit[K, V], 0, len(changes))
	for _, k := range slices.Sorted(maps.Keys(changes)) {
		v := changes[k]
		edits = append(edits, Edit[K, V]{Key: k, Value: v, Gone: v == gone})
	}
	return edits
}

// Apply returns the map after the edits, which must be sorted by key, each key
// once. It gives what Set and Delete one by one give, but makes each node once:
// an empty map is filled in O(n log n) comparisons and n allocations.
func (m Map[K, V]) Apply(edits []Edit[K, V]) Map[K, V] {
	if len(edits) == 0 {
		return m
	}
	fresh := make([]edit[K, V], len(edits))
	for i, e := range edits {
		fresh[i] = edit[K, V]{e, priority(string(e.Key))}
	}
	return Map[K, V]{m.root.apply(fresh)}
}

// All yields the entries in the order of their keys.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

// Change is one difference between two maps: Old is absent for an addition
// (HadOld false), New for a removal.
type Change[K ~string, V comparable] struct {
	Key            K
	Old, New       V
	HadOld, HasNew bool
}

// Diff yields what turns old into new, in the order of the keys.
func Diff[K ~string, V comparable](old, new Map[K, V]) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) { diff(old.root, new.root, yield) }
}

func diff[K ~string, V comparable](a, b *node[K, V], yield func(Change[K, V]) bool) bool {
	switch {
	case a == b:
		return true
	case a == nil:
		return b.walk(func(k K, v V) bool { return yield(Change[K, V]{Key: k, New: v, HasNew: true}) })
	case b == nil:
		return a.walk(func(k K, v V) bool { return yield(Change[K, V]{Key: k, Old: v, HadOld: true}) })
	}
	if a.before(b) {
		bl, at, br := b.split(a.key)
		return diff(a.left, bl, yield) && visit(a, at, yield) && diff(a.right, br, yield)
	}
	al, at, ar := a.split(b.key)
	return diff(al, b.left, yield) && visit(at, b, yield) && diff(ar, b.right, yield)
}

// visit reports the two nodes of one key; either may be missing.
func visit[K ~string, V comparable](a, b *node[K, V], yield func(Change[K, V]) bool) bool {
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

// before says whether n stands above o in every tree that holds both.
func (n *node[K, V]) before(o *node[K, V]) bool {
	if n.priority != o.priority {
		return n.priority > o.priority
	}
	return n.key < o.key
}

func (n *node[K, V]) with(left, right *node[K, V]) *node[K, V] {
	return &node[K, V]{n.key, n.value, n.priority, 1 + left.len() + right.len(), left, right}
}

func (n *node[K, V]) set(fresh *node[K, V]) *node[K, V] {
	switch {
	case n == nil:
		return fresh
	case fresh.key == n.key:
		return fresh.with(n.left, n.right)
	case fresh.before(n):
		left, _, right := n.split(fresh.key)
		return fresh.with(left, right)
	case fresh.key < n.key:
		return n.with(n.left.set(fresh), n.right)
	}
	return n.with(n.left, n.right.set(fresh))
}

func (n *node[K, V]) delete(k K) *node[K, V] {
	switch {
	case k == n.key:
		return merge(n.left, n.right)
	case k < n.key:
		return n.with(n.left.delete(k), n.right)
	}
	return n.with(n.left, n.right.delete(k))
}

// edit is an Edit with the priority that its node has.
type edit[K ~string, V comparable] struct {
	Edit[K, V]
	priority uint64
}

// above says whether the edit's entry stands above o's in every tree that
// holds both.
func (e *edit[K, V]) above(priority uint64, key K) bool {
	return e.priority > priority || e.priority == priority && e.Key < key
}

// apply walks down the tree and the edits together. The root of the result is
// n, or the entry to set that stands above it.
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
		below, _, above := n.split(e.Key)
		fresh := &node[K, V]{key: e.Key, value: e.Value, priority: e.priority}
		fresh.left, fresh.right = below.apply(edits[:top]), above.apply(edits[top+1:])
		fresh.size = 1 + fresh.left.len() + fresh.right.len()
		return fresh
	}
	if n == nil {
		return nil // nothing but deletions
	}
	at, found := slices.BinarySearchFunc(edits, n.key, func(e edit[K, V], k K) int { return strings.Compare(string(e.Key), string(k)) })
	rest := edits[at:]
	if found {
		rest = rest[1:]
	}
	left, right := n.left.apply(edits[:at]), n.right.apply(rest)
	switch {
	case found && edits[at].Gone:
		return merge(left, right)
	case found && edits[at].Value != n.value:
		return (&node[K, V]{key: n.key, value: edits[at].Value, priority: n.priority}).with(left, right)
	case left == n.left && right == n.right:
		return n
	}
	return n.with(left, right)
}

// split parts n's entries into those below k, the one at k and those above.
// A side that loses nothing is the old subtree itself.
func (n *node[K, V]) split(k K) (below, at, above *node[K, V]) {
	switch {
	case n == nil:
		return nil, nil, nil
	case k == n.key:
		return n.left, n, n.right
	case k < n.key:
		below, at, above = n.left.split(k)
		if above == n.left {
			return below, at, n
		}
		return below, at, n.with(above, n.right)
	}
	below, at, above = n.right.split(k)
	if below == n.right {
		return n, at, above
	}
	return n.with(n.left, below), at, above
}

// merge joins two trees; every key of a is below every key of b.
func merge[K ~string, V comparable](a, b *node[K, V]) *node[K, V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.before(b):
		return a.with(a.left, merge(a.right, b))
	}
	return b.with(merge(a, b.left), b.right)
}

// priority is FNV-1a with a finalizer (splitmix64's), since FNV alone leaves
// the high bits of short, similar keys in order.
func priority(k string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(k); i++ {
		h = (h ^ uint64(k[i])) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

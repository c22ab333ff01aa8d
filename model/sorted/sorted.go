// Package sorted provides an immutable sorted list. Edit returns a new list that shares all but a
// few chunks with the old one. Diff of two such lists skips the chunks that they share. The cost of
// both is one step for each edit or difference and for each chunk of 32 to 128 items.
//
// A list that fits in one chunk is a plain slice. The chunks of a longer list depend on its history
// alone, not on its items: a client that chooses the items cannot choose the chunks. The package
// does not sort and does not lock.
package sorted

import (
	"iter"
	"slices"
)

// Item is the constraint for items of a list. Compare orders them. Of items that compare
// as 0 a list has one; such items may still differ by ==.
type Item[T any] interface {
	comparable
	Compare(T) int
}

// The lengths of chunks. A list of more than one chunk has none shorter than least. A
// long list starts with chunks of the usual length, which can grow and shrink.
const (
	most  = 128
	least = 32
	usual = 64
)

// List is a sorted list without duplicates. The zero value is empty.
type List[T Item[T]] struct {
	// few has the items if they fit in one chunk, else many has them.
	few  []T
	many *chunks[T]
}

type chunks[T Item[T]] struct {
	list [][]T
	len  int
}

// Of makes a list of sorted items without duplicates. It keeps the slice, which must not
// be changed any more.
func Of[T Item[T]](items []T) List[T] {
	if len(items) <= most {
		return List[T]{few: items}
	}
	return List[T]{many: &chunks[T]{cut(make([][]T, 0, len(items)/usual+1), items), len(items)}}
}

// cut appends the items in chunks of about the usual length.
func cut[T any](list [][]T, items []T) [][]T {
	for n := max(1, len(items)/usual); n > 0; n-- {
		size := len(items) / n
		list = append(list, items[:size:size])
		items = items[size:]
	}
	return list
}

// Len returns the number of items.
func (l List[T]) Len() int {
	if l.many != nil {
		return l.many.len
	}
	return len(l.few)
}

// Long reports whether the list is longer than one chunk. For short lists it is not worth
// remembering results.
func (l List[T]) Long() bool { return l.many != nil }

// Few returns the items of a list that is not long; nil for a long one. They must not be
// changed.
func (l List[T]) Few() []T { return l.few }

// Chunks yields the items in slices that are not empty and must not be changed.
func (l List[T]) Chunks() iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		if l.many == nil {
			if len(l.few) > 0 {
				yield(l.few)
			}
			return
		}
		for _, chunk := range l.many.list {
			if !yield(chunk) {
				return
			}
		}
	}
}

// All yields the items in their order.
func (l List[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for chunk := range l.Chunks() {
			for _, item := range chunk {
				if !yield(item) {
					return
				}
			}
		}
	}
}

// From yields the items from the first one on that does not come before like.
func (l List[T]) From(like T) iter.Seq[T] {
	return func(yield func(T) bool) {
		chunk, rest := l.few, [][]T(nil)
		if l.many != nil {
			at := chunkOf(l.many.list, like)
			chunk, rest = l.many.list[at], l.many.list[at+1:]
		}
		at, _ := find(chunk, like)
		for chunk = chunk[at:]; ; chunk, rest = rest[0], rest[1:] {
			for _, item := range chunk {
				if !yield(item) {
					return
				}
			}
			if len(rest) == 0 {
				return
			}
		}
	}
}

// Find returns the item that compares as 0, or nil.
func (l List[T]) Find(like T) *T {
	chunk := l.few
	if l.many != nil {
		chunk = l.many.list[chunkOf(l.many.list, like)]
	}
	at, found := find(chunk, like)
	if !found {
		return nil
	}
	return &chunk[at]
}

func find[T Item[T]](chunk []T, like T) (int, bool) {
	return slices.BinarySearchFunc(chunk, like, T.Compare)
}

// chunkOf is the index of the chunk where the item is, or would be.
func chunkOf[T Item[T]](list [][]T, item T) int {
	at, found := slices.BinarySearchFunc(list, item, func(chunk []T, item T) int { return chunk[0].Compare(item) })
	if !found && at > 0 {
		at--
	}
	return at
}

// Same reports whether both are the same list by address. Lists with equal items may not be.
func (l List[T]) Same(o List[T]) bool { return l.many == o.many && same(l.few, o.few) }

func same[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// Equal reports whether both have the same items.
func (l List[T]) Equal(o List[T]) bool {
	if l.Len() != o.Len() {
		return false
	}
	for range Diff(l, o) {
		return false
	}
	return true
}

// Edit inserts an item, and replaces the item that compares as 0 if there is one. With Gone it
// removes that item.
type Edit[T Item[T]] struct {
	Item T
	Gone bool
}

// Edit returns the list after the edits, which must be sorted, each item once. If they
// change nothing, it returns the list itself.
func (l List[T]) Edit(edits []Edit[T]) List[T] {
	if len(edits) == 0 {
		return l
	}
	if l.many == nil {
		next := edited(l.few, edits)
		if same(next, l.few) {
			return l
		}
		return Of(next)
	}
	rest, next := l.many.list, chunks[T]{make([][]T, 0, len(l.many.list)+1+len(edits)/usual), l.many.len}
	changed := false
	for len(edits) > 0 {
		at := chunkOf(rest, edits[0].Item)
		n := len(edits)
		if at+1 < len(rest) {
			n, _ = slices.BinarySearchFunc(edits, rest[at+1][0], func(e Edit[T], first T) int { return e.Item.Compare(first) })
		}
		next.list = append(next.list, rest[:at]...)
		chunk := edited(rest[at], edits[:n])
		if same(chunk, rest[at]) {
			next.list = append(next.list, chunk)
		} else {
			changed = true
			next.len += len(chunk) - len(rest[at])
			next.put(chunk)
		}
		rest, edits = rest[at+1:], edits[n:]
	}
	if !changed {
		return l
	}
	next.list = append(next.list, rest...)
	return next.finish()
}

// put appends an edited chunk. It joins a short chunk with the one before it, and cuts a
// long one.
func (c *chunks[T]) put(chunk []T) {
	if n := len(c.list); n > 0 && len(chunk) < least {
		chunk = slices.Concat(c.list[n-1], chunk)
		c.list = c.list[:n-1]
	}
	switch {
	case len(chunk) > most:
		c.list = cut(c.list, chunk)
	case len(chunk) > 0:
		c.list = append(c.list, chunk)
	}
}

// finish makes a list of the chunks. It joins the first chunk with the second if it is
// short.
func (c *chunks[T]) finish() List[T] {
	if c.len <= most {
		return Of(slices.Concat(c.list...))
	}
	if len(c.list[0]) < least {
		both := slices.Concat(c.list[0], c.list[1])
		c.list = append(cut(make([][]T, 0, len(c.list)), both), c.list[2:]...)
	}
	return List[T]{many: c}
}

// edited returns the chunk after the edits. If they change nothing, it returns the chunk
// itself.
func edited[T Item[T]](chunk []T, edits []Edit[T]) []T {
	var out []T
	done, changed := 0, false
	for i, e := range edits {
		at, found := find(chunk[done:], e.Item)
		at += done
		if !found && e.Gone || found && !e.Gone && chunk[at] == e.Item {
			continue
		}
		if !changed {
			out, changed = make([]T, 0, len(chunk)+len(edits)-i), true
		}
		out = append(out, chunk[done:at]...)
		if done = at; found {
			done++
		}
		if !e.Gone {
			out = append(out, e.Item)
		}
	}
	if !changed {
		return chunk
	}
	return append(out, chunk[done:]...)
}

// Few says that so many differences of a list of n items are few: to edit the list, or what was made of it, then costs
// less than to make it anew. A single edit costs more than one item of a new list.
func Few(differences, n int) bool { return differences <= n/8 }

// Reuse returns a list with the items of next that shares chunks with old, so that a Diff
// of the two costs what differs. If the lists have little in common, it returns next.
func Reuse[T Item[T]](old, next List[T]) List[T] {
	if old.Len() == next.Len() && old.Equal(next) {
		return old
	}
	if old.many == nil || next.many == nil {
		return next
	}
	var edits []Edit[T]
	for c := range Diff(old, next) {
		if c.New != nil {
			edits = append(edits, Edit[T]{Item: *c.New})
		} else {
			edits = append(edits, Edit[T]{*c.Old, true})
		}
		if len(edits) > next.Len()/usual {
			return next
		}
	}
	return old.Edit(edits)
}

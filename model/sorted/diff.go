package sorted

import "iter"

// Change is one difference between two lists. Old is nil if the item was added, New is
// nil if it was removed. The items must not be changed.
type Change[T any] struct {
	Old, New *T
}

// Diff yields the changes from old to next, in order. It skips chunks that both share.
func Diff[T Item[T]](old, next List[T]) iter.Seq[Change[T]] {
	return func(yield func(Change[T]) bool) {
		if old.Same(next) {
			return
		}
		a, b := readerOf(old), readerOf(next)
		for a.fill() && b.fill() {
			if same(a.chunk, b.chunk) {
				a.chunk, b.chunk = nil, nil
				continue
			}
			x, y := &a.chunk[0], &b.chunk[0]
			if *x == *y {
				a.step()
				b.step()
				continue
			}
			var change Change[T]
			c := (*x).Compare(*y)
			if c <= 0 {
				change.Old = x
				a.step()
			}
			if c >= 0 {
				change.New = y
				b.step()
			}
			if !yield(change) {
				return
			}
		}
		for ; a.fill(); a.step() {
			if !yield(Change[T]{Old: &a.chunk[0]}) {
				return
			}
		}
		for ; b.fill(); b.step() {
			if !yield(Change[T]{New: &b.chunk[0]}) {
				return
			}
		}
	}
}

// reader reads a list: first the rest of a chunk, then the chunks after it.
type reader[T any] struct {
	chunk []T
	after [][]T
}

func readerOf[T Item[T]](l List[T]) reader[T] {
	if l.many != nil {
		return reader[T]{after: l.many.list}
	}
	return reader[T]{chunk: l.few}
}

// fill moves on to the next chunk if this one is read. It says whether there is an item.
func (r *reader[T]) fill() bool {
	if len(r.chunk) == 0 && len(r.after) > 0 {
		r.chunk, r.after = r.after[0], r.after[1:]
	}
	return len(r.chunk) > 0
}

func (r *reader[T]) step() { r.chunk = r.chunk[1:] }

package nft

import "slices"

// pageLen is how many targets are copied for one that changes.
const pageLen = 128

// slots are targets by index. They never change. One version shares with the next the
// pages that stay the same.
type slots struct {
	pages [][]Value
	count int
}

// slotsOf keeps the slice.
func slotsOf(targets []Value) slots {
	return slots{slices.Collect(slices.Chunk(targets, pageLen)), len(targets)}
}

func (s slots) at(i int) Value { return s.pages[i/pageLen][i%pageLen] }

// after is the slots after the changes, n of them. Each new slot is among the changes.
func (s slots) after(changes []slotChange, n int) slots {
	next := slots{make([][]Value, (n+pageLen-1)/pageLen), n}
	copied := copy(next.pages, s.pages)
	// The last page may have another length than before.
	for i := copied; i < len(next.pages); i++ {
		next.pages[i] = make([]Value, pageLen)
	}
	own := -1
	for _, c := range changes {
		page := c.index / pageLen
		if c.index >= n {
			break
		}
		if page != own && page < copied {
			next.pages[page] = slices.Concat(s.pages[page], make([]Value, pageLen-len(s.pages[page])))
		}
		own = page
		next.pages[page][c.index%pageLen] = c.to
	}
	if last := len(next.pages) - 1; last >= 0 {
		next.pages[last] = next.pages[last][:n-last*pageLen]
	}
	return next
}

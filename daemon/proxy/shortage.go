package proxy

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"nftproxy/nft"
)

const (
	// largeBatch is how many elements make a batch that may be refused for its
	// size. The kernel's memory for a smaller one is far below a megabyte.
	largeBatch = 1000
	// patience is how many syncs in a row fail for want of memory, with small
	// batches, before the largest parts of the program are left out.
	patience = 5
)

// isShort says that the kernel had no memory or no room for a batch.
func isShort(err error) bool {
	var short interface{ Short() bool }
	return errors.As(err, &short) && short.Short()
}

// makeRoom leaves out the largest parts, twice as many each time, so that the rest goes in. False means that there is
// nothing to be left out. The parts to which a large batch adds most have transactions of their own when the rest is in
// force. A small batch fails; if small ones go on failing, the largest parts of the program make room for all others.
func (i *inquiry) makeRoom(batch nft.Batch, err error) bool {
	i.aside = max(1, 2*i.aside)
	now := time.Now()
	leaveOut := i.quarantine().setAside
	sizes, total := i.additions(batch)
	if total < largeBatch {
		if i.applier.shortSyncs < patience {
			return false
		}
		leaveOut, sizes = i.quarantine().refused, i.sizes()
	}
	names := largest(sizes, i.aside)
	for _, name := range names {
		leaveOut(name, partsOf(i.sync.Program, name), err, now)
	}
	return len(names) > 0
}

// additions counts the elements that the batch adds: to each part that can be left out, and in total. A batch that
// replaces a set adds also parts that are in force and have not changed: they have not asked for more, and are not left
// out for it.
func (i *inquiry) additions(batch nft.Batch) (additions map[string]int, total int) {
	additions = map[string]int{}
	for _, op := range batch.Ops {
		add, ok := op.(nft.AddElements)
		if !ok {
			continue
		}
		total += len(add.Elements)
		for _, e := range add.Elements {
			additions[e.Part]++
		}
	}
	unchanged := inForce(i.applier.tables)
	for name := range additions {
		content := partsOf(i.sync.Program, name)
		if i.quarantine().leavesOut(name) || content.empty() || content == partsOf(unchanged, name) {
			delete(additions, name)
		}
	}
	return additions, total
}

// sizes counts the elements of each part of the program that is not left out.
func (i *inquiry) sizes() map[string]int {
	sizes := map[string]int{}
	for _, f := range nft.Families() {
		for name, part := range i.sync.Program.Table(f).Parts.All() {
			if !i.quarantine().leavesOut(name) {
				sizes[name] += part.Len()
			}
		}
	}
	return sizes
}

// largest returns the names of the n largest, the largest first.
func largest(sizes map[string]int, n int) []string {
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
	return names[:min(n, len(names))]
}

package chart

import (
	"cmp"
	"slices"
)

// block is a label that stands in a column with others.
type block struct {
	// wanted is where its middle should be, in pixels from the top.
	wanted, height float64
}

// spread returns where the middle of each block goes, so that no two overlap and
// all are between top and bottom. They keep their order, and the sum of the squares
// of their moves is the least possible. Blocks that are together higher than the
// space begin at the top and reach beyond the bottom.
//
// A block that stands directly on the one above is as far below the first one as the
// heights between them are. Without these heights the places may be equal but never
// decrease, and the nearest such places are the means of neighbours that are in the
// wrong order ("pool adjacent violators").
func spread(blocks []block, top, bottom float64) []float64 {
	if len(blocks) == 0 {
		return nil
	}
	order := make([]int, len(blocks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(blocks[a].wanted, blocks[b].wanted) })

	depth := make([]float64, len(blocks)) // of each middle below the first one, by order
	var pools []pool
	for n, i := range order {
		if n > 0 {
			depth[n] = depth[n-1] + (blocks[order[n-1]].height+blocks[i].height)/2
		}
		pools = append(pools, pool{sum: blocks[i].wanted - depth[n], count: 1})
		for k := len(pools) - 1; k > 0 && pools[k-1].mean() > pools[k].mean(); k-- {
			pools[k-1].sum += pools[k].sum
			pools[k-1].count += pools[k].count
			pools = pools[:k]
		}
	}

	last := len(order) - 1
	lowest := top + blocks[order[0]].height/2
	highest := max(lowest, bottom-blocks[order[last]].height/2-depth[last])
	places := make([]float64, len(blocks))
	n := 0
	for _, p := range pools {
		for range p.count {
			places[order[n]] = min(max(p.mean(), lowest), highest) + depth[n]
			n++
		}
	}
	return places
}

// pool is a number of neighbours that stand on each other.
type pool struct {
	sum   float64
	count int
}

func (p pool) mean() float64 { return p.sum / float64(p.count) }

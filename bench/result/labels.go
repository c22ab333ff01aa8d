package result

import (
	"cmp"
	"slices"
)

// block is a label that stands in a column with others.
type block struct {
	// wanted is where its middle should be, in pixels from the top.
	wanted, height float64
}

// spread returns where the middle of each block goes, so that no two overlap and all are between top and bottom. They
// keep their order: each goes down as far as those above it need, and up again as far as the bottom needs. Blocks that
// are together higher than the space begin at the top and reach beyond the bottom.
func spread(blocks []block, top, bottom float64) []float64 {
	order := make([]int, len(blocks))
	places := make([]float64, len(blocks))
	for i, b := range blocks {
		order[i], places[i] = i, b.wanted
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(blocks[a].wanted, blocks[b].wanted) })
	down := func() {
		free := top
		for _, i := range order {
			places[i] = max(places[i], free+blocks[i].height/2)
			free = places[i] + blocks[i].height/2
		}
	}
	down()
	free := bottom
	for _, i := range slices.Backward(order) {
		places[i] = min(places[i], free-blocks[i].height/2)
		free = places[i] - blocks[i].height/2
	}
	down()
	return places
}

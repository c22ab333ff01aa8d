package control

import (
	"slices"

	"nftproxy/bench/result"
)

// turns puts the cells of two builds of nftproxy that are measured in turns: the medians of all turns so far, and in
// the cell of the present build the median of the ratios to the earlier one in the same round.
type turns struct {
	result.Sink
	// cells are in the order in which they were measured.
	cells []result.Cell
}

// order lists the backends as they have their turns. Each round begins with another one.
func (t *turns) order(builds []backend, rounds int) (list []backend) {
	for range rounds {
		list = append(list, builds...)
		builds = append(slices.Clone(builds[1:]), builds[0])
	}
	return list
}

// Put is part of result.Sink.
func (t *turns) Put(c result.Cell) {
	t.cells = append(t.cells, c)
	ours, theirs := t.of(c, result.NFTProxy), t.of(c, result.Earlier)
	if c.Backend == result.Earlier && len(theirs) == len(ours) {
		t.Sink.Put(median(ours, theirs)) // whose round is complete now
	}
	switch c.Backend {
	case result.NFTProxy:
		c = median(ours, theirs)
	case result.Earlier:
		c = median(theirs, nil)
	}
	t.Sink.Put(c)
}

// of lists the cells of a build that answer the same question as another cell.
func (t *turns) of(c result.Cell, backend string) (list []result.Cell) {
	for _, other := range t.cells {
		if other.Question == c.Question && other.Size == c.Size && other.Backend == backend {
			list = append(list, other)
		}
	}
	return list
}

// median is a cell with the median of each value. One turn that failed, or went over the limit, stands for all.
func median(turns, against []result.Cell) result.Cell {
	c := turns[len(turns)-1]
	if i := slices.IndexFunc(turns, func(c result.Cell) bool { return c.Failed != "" || c.Over }); i >= 0 {
		return turns[i]
	}
	samples := map[string][]float64{}
	var ratios []float64
	for i, turn := range turns {
		for key, v := range turn.Values {
			samples[key] = append(samples[key], v)
		}
		ours, _ := turn.Main()
		if i < len(against) {
			if theirs, found := against[i].Main(); found && theirs > 0 {
				ratios = append(ratios, ours/theirs)
			}
		}
	}
	c.Values = map[string]float64{}
	for key, list := range samples {
		c.Values[key] = result.Median(list)
	}
	if len(ratios) > 0 {
		c.Values[result.PairKey("", result.Earlier)] = result.Median(ratios)
	}
	return c
}

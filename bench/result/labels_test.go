package result

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		name   string
		wanted []float64
		want   []float64
	}{
		{"none", nil, []float64{}},
		{"with room they stay", []float64{20, 80, 50}, []float64{20, 80, 50}},
		{"of two at one place one goes down", []float64{50, 50}, []float64{50, 60}},
		{"neighbours that meet a third", []float64{50, 50, 56}, []float64{50, 60, 70}},
		{"kept below the top", []float64{0, 2}, []float64{5, 15}},
		{"kept above the bottom", []float64{99, 99}, []float64{85, 95}},
		{"more than there is room for", []float64{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, []float64{5, 15, 25, 35, 45, 55, 65, 75, 85, 95, 105}},
	} {
		var blocks []block
		for _, w := range test.wanted {
			blocks = append(blocks, block{wanted: w, height: 10})
		}
		if diff := cmp.Diff(test.want, spread(blocks, 0, 100)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestSpreadApart: blocks of any heights are apart, in order and within the space,
// and no small move of one of them that keeps them so is better.
func TestSpreadApart(t *testing.T) {
	const top, bottom, slack = 10.0, 400.0, 1e-9
	random := rand.New(rand.NewPCG(1, 2))
	for range 2_000 {
		blocks := make([]block, 1+random.IntN(6))
		for i := range blocks {
			blocks[i] = block{wanted: random.Float64() * 450, height: 10 + random.Float64()*50}
		}
		places := spread(blocks, top, bottom)
		if !apart(blocks, places, top-slack, bottom+slack) {
			t.Fatalf("%v were spread to %v", blocks, places)
		}
		for i := range places {
			for _, move := range []float64{-0.01, 0.01} {
				before := places[i]
				cost := math.Abs(before - blocks[i].wanted)
				places[i] += move
				if apart(blocks, places, top, bottom) && math.Abs(places[i]-blocks[i].wanted) < cost-slack {
					t.Fatalf("block %d of %v, spread to %v, could be %v nearer", i, blocks, places, move)
				}
				places[i] = before
			}
		}
	}
}

func apart(blocks []block, places []float64, top, bottom float64) bool {
	const slack = 1e-9
	for i, b := range blocks {
		if places[i]-b.height/2 < top || places[i]+b.height/2 > bottom {
			return false
		}
		for j, other := range blocks {
			if j == i {
				continue
			}
			if math.Abs(places[i]-places[j]) < (b.height+other.height)/2-slack {
				return false
			}
			if b.wanted < other.wanted && places[i] > places[j] {
				return false
			}
		}
	}
	return true
}

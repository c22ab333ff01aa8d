package data

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/bench/result"
)

// TestPairedRatio: what disturbs a round disturbs both of its values, and so
// leaves the ratio alone, though it is larger than the difference by far; a few
// rounds in which only one was disturbed do not count.
func TestPairedRatio(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		want := 0.5 + dice.Float64()
		var a, b []float64
		for range 21 {
			disturbed := 1 + 100*dice.Float64()
			a, b = append(a, 8*want*disturbed), append(b, 8*disturbed)
		}
		// Ten of 21 are too large: the median is the largest of the others.
		for _, i := range dice.Perm(21)[:10] {
			a[i] *= 3
		}
		got, ok := pairedRatio(a, b)
		if !ok || cmp.Diff(want, got, cmpopts.EquateApprox(1e-9, 0)) != "" {
			t.Fatalf("ratio %v, %v, want %v", got, ok, want)
		}
	}
	for name, pair := range map[string][2][]float64{
		"nothing": {}, "one of them": {{1}, nil}, "zero": {{1, 1}, {1, 0}},
	} {
		if got, ok := pairedRatio(pair[0], pair[1]); ok {
			t.Errorf("%s: ratio %v", name, got)
		}
	}
}

// TestRotated: each member is in each round once, all are equally often the first, and
// each follows its two neighbours equally often.
func TestRotated(t *testing.T) {
	for n := 1; n <= 7; n++ {
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		begins, follows := make([]int, n), map[[2]int]int{}
		for round := range 2 * n {
			order := rotated(list, round)
			if diff := cmp.Diff(list, slices.Sorted(slices.Values(order))); diff != "" {
				t.Fatalf("round %d of %d (-want +got):\n%s", round, n, diff)
			}
			begins[order[0]]++
			for i := 1; i < n; i++ {
				follows[[2]int{order[i-1], order[i]}]++
			}
		}
		for i := range n {
			if begins[i] != 2 {
				t.Errorf("%d of %d begins %d times", i, n, begins[i])
			}
		}
		for pair, times := range follows {
			if back := follows[[2]int{pair[1], pair[0]}]; back != times {
				t.Errorf("of %d: %v %d times, and back %d times", n, pair, times, back)
			}
		}
	}
}

func TestSummary(t *testing.T) {
	ours, rule, broken := &site{backend: "ours"}, &site{backend: "rule"}, &site{backend: "broken"}
	s := newSeries()
	for round, v := range []float64{2, 30, 4} {
		base := []float64{1, 20, 2}[round]
		s.add(ours, 10, map[string]float64{result.P50: v, result.P99: 5})
		s.add(rule, 10, map[string]float64{result.P50: base, result.P99: 10})
	}
	s.add(broken, 10, map[string]float64{result.P50: 1, result.P99: 1})
	s.failed[broken] = errors.New("it is broken")
	want := map[string]float64{
		result.P50: 4, result.P99: 5, result.Samples: 30,
		"p50 against rule": 2, "p99 against rule": 0.5,
	}
	if diff := cmp.Diff(want, s.summary(ours, []*site{ours, rule, broken})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = map[string]float64{result.P50: 2, result.P99: 10, result.Samples: 30}
	if diff := cmp.Diff(want, s.summary(rule, nil)); diff != "" {
		t.Errorf("against nobody (-want +got):\n%s", diff)
	}
}

// TestSummaryOfValue: the ratio of a main value is where targets look for it.
func TestSummaryOfValue(t *testing.T) {
	ours, none := &site{backend: result.NFTProxy}, &site{backend: result.NoProxy}
	s := newSeries()
	s.add(ours, 1, map[string]float64{result.Value: 97})
	s.add(none, 1, map[string]float64{result.Value: 100})
	want := map[string]float64{result.Value: 97, result.Samples: 1, result.PairKey("", result.NoProxy): 0.97}
	if diff := cmp.Diff(want, s.summary(ours, []*site{none})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLatency(t *testing.T) {
	var took []time.Duration
	for i := range 200 {
		took = append(took, time.Duration(200-i)*time.Microsecond)
	}
	want := map[string]float64{result.P50: 100, result.P99: 198}
	if diff := cmp.Diff(want, latency(took)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

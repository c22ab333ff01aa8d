package parallel

import (
	"sync/atomic"
	"testing"
)

// TestDo: each number is met once, however many there are.
func TestDo(t *testing.T) {
	for _, n := range []int{0, 1, grain, grain + 1, 10*grain + 7} {
		met := make([]atomic.Int32, n)
		Do(n, func(i int) { met[i].Add(1) })
		for i := range met {
			if times := met[i].Load(); times != 1 {
				t.Errorf("of %d, number %d was met %d times", n, i, times)
			}
		}
	}
}

// TestChunks: take gets each thing once with its result, in order, however many there are.
func TestChunks(t *testing.T) {
	for _, n := range []int{0, 1, atOnce, atOnce + 1, 3*atOnce + 7} {
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		next := 0
		Chunks(list, func(i int) int { return 2 * i }, func(some, results []int) {
			if len(some) != len(results) {
				t.Fatalf("of %d: %d results for %d things", n, len(results), len(some))
			}
			for k, i := range some {
				if i != next || results[k] != 2*i {
					t.Fatalf("of %d: %d with result %d, want %d", n, i, results[k], next)
				}
				next++
			}
		})
		if next != n {
			t.Errorf("of %d, %d were taken", n, next)
		}
	}
}

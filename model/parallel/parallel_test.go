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

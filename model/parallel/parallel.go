// Package parallel runs a loop over many things on all processors, and a loop over few things on
// one. Its loops have no errors and cannot be cancelled.
package parallel

import (
	"runtime"
	"slices"
	"sync"
)

// grain is how many things one goroutine does at a time. A Service takes about 5 us to compile
// or to match, so a change of a few Services is not worth a goroutine. On two processors a
// first program of 10,000 services x 10 endpoints takes 64 ms instead of 82 ms.
const grain = 256

// Do calls do with each number from 0 to n-1, on all processors if n is large.
func Do(n int, do func(int)) {
	if n <= grain {
		for i := range n {
			do(i)
		}
		return
	}
	chunks := make(chan int, n/grain+1)
	for first := 0; first < n; first += grain {
		chunks <- first
	}
	close(chunks)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for first := range chunks {
				for i := first; i < min(first+grain, n); i++ {
					do(i)
				}
			}
		})
	}
	all.Wait()
}

// atOnce is how many results Chunks holds at a time. Where a result takes some hundred bytes, those of 44,000 Services
// would be a tenth of the memory of a start.
const atOnce = 8192

// Chunks calls do with each thing of a list, as Do does, and take with some things in a row and their results, chunk by
// chunk in the order of the list. take must not keep the results: the next chunk uses the same memory.
func Chunks[T, R any](list []T, do func(T) R, take func(some []T, results []R)) {
	results := make([]R, min(len(list), atOnce))
	for some := range slices.Chunk(list, atOnce) {
		Do(len(some), func(i int) { results[i] = do(some[i]) })
		take(some, results[:len(some)])
	}
}

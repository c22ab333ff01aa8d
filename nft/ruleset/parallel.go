package ruleset

import (
	"runtime"
	"sync"
)

// grain is how many services one goroutine compiles at a time. A change of a
// few services is not worth a goroutine: one takes about 5 us. Side by side on two
// processors a first program of 10,000x10 takes 64 ms instead of 82.
const grain = 256

// inParallel calls do with 0 to n-1, on all processors if n is large.
func inParallel(n int, do func(int)) {
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

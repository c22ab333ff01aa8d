package ruleset

import (
	"runtime"
	"sync"
)

// grain is how many services one goroutine compiles at a time. A service takes about
// 5 us, so a change of a few services is not worth a goroutine. On two processors a
// first program of 10,000 services x 10 endpoints takes 64 ms instead of 82 ms.
const grain = 256

// inParallel calls do with each number from 0 to n-1, on all processors if n is large.
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

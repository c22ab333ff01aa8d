// Package chance says how far a count may be from what is expected of it before chance no longer explains it. It only
// computes.
package chance

import "math"

// Range is the range in which the number of n things that are counted lies if each is with probability share, which is
// between 0 and 1. The number is beyond it less than once in 10^11 times, by Chernoff's bound for the binomial
// distribution: each side is less likely than exp(-n D), where D is the relative entropy.
func Range(n int, share float64) (lo, hi int) {
	const unlikely = 26.1 // -log(10^-11/2)
	within := func(count int) bool {
		q := float64(count) / float64(n)
		entropy := 0.0
		if q > 0 {
			entropy += q * math.Log(q/share)
		}
		if q < 1 {
			entropy += (1 - q) * math.Log((1-q)/(1-share))
		}
		return float64(n)*entropy <= unlikely
	}
	for lo = int(float64(n) * share); lo > 0 && within(lo-1); lo-- {
	}
	for hi = int(math.Ceil(float64(n) * share)); hi < n && within(hi+1); hi++ {
	}
	return lo, hi
}

package chance_test

import (
	"math"
	"testing"

	"nftproxy/test/check/chance"
)

// TestRange: the ranges are as before, and beyond them is less than they promise.
func TestRange(t *testing.T) {
	for _, test := range []struct {
		n      int
		share  float64
		lo, hi int
	}{
		{300, 1. / 3, 45, 161},
		{2000, 0.1, 111, 303},
		{10, 0.5, 0, 10}, // all or none of ten are not unlikely enough
	} {
		lo, hi := chance.Range(test.n, test.share)
		if lo != test.lo || hi != test.hi {
			t.Errorf("%d to %d of %d by %.2f, want %d to %d", lo, hi, test.n, test.share, test.lo, test.hi)
		}
		if p := beyond(test.n, test.share, lo, hi); p > 1e-11 {
			t.Errorf("%d by %.2f: beyond %d to %d with probability %g", test.n, test.share, lo, hi, p)
		}
	}
}

// beyond is the probability that a binomial number is less than lo or more than hi.
func beyond(n int, share float64, lo, hi int) (p float64) {
	for k := range n + 1 {
		if k >= lo && k <= hi {
			continue
		}
		all, _ := math.Lgamma(float64(n + 1))
		in, _ := math.Lgamma(float64(k + 1))
		out, _ := math.Lgamma(float64(n - k + 1))
		p += math.Exp(all - in - out + float64(k)*math.Log(share) + float64(n-k)*math.Log(1-share))
	}
	return p
}

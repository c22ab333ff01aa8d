package data

import (
	"time"

	"nftproxy/bench/result"
)

// series are the values that each site had in the rounds of one question. In
// each round all have one, or are out.
type series struct {
	// values are by site, then by what they are (result.P50 and so on), then by
	// round.
	values map[*site]map[string][]float64
	// failed is why a site is out.
	failed map[*site]error
	// samples is how many connections or the like a site's values are of.
	samples map[*site]int
}

func newSeries() *series {
	return &series{values: map[*site]map[string][]float64{}, failed: map[*site]error{}, samples: map[*site]int{}}
}

// add takes a site's values of a round.
func (s *series) add(at *site, samples int, values map[string]float64) {
	if s.values[at] == nil {
		s.values[at] = map[string][]float64{}
	}
	for key, v := range values {
		s.values[at][key] = append(s.values[at][key], v)
	}
	s.samples[at] += samples
}

// summary is what a site's cell says: of each value the median of the rounds, and
// the ratios to those that it was measured in turn with.
func (s *series) summary(at *site, against []*site) map[string]float64 {
	values := map[string]float64{result.Samples: float64(s.samples[at])}
	for key, list := range s.values[at] {
		values[key] = result.Median(list)
	}
	for _, other := range against {
		if s.failed[other] != nil || other == at {
			continue
		}
		for key, list := range s.values[at] {
			name := key
			if key == result.Value {
				name = ""
			}
			if ratio, ok := pairedRatio(list, s.values[other][key]); ok {
				values[result.PairKey(name, other.backend)] = ratio
			}
		}
	}
	return values
}

// pairedRatio is the median of the quotients of values of the same rounds: what a
// round suffers from, both of its values do. It is undefined if one of them was
// in no round, or is zero.
func pairedRatio(a, b []float64) (float64, bool) {
	var quotients []float64
	for i := range min(len(a), len(b)) {
		if b[i] == 0 {
			return 0, false
		}
		quotients = append(quotients, a[i]/b[i])
	}
	return result.Median(quotients), len(quotients) > 0
}

// rotated returns the order in a round. Each round begins with another member, and every
// second round goes backwards, so that no member always follows the same one.
func rotated[T any](list []T, round int) []T {
	n := len(list)
	order := make([]T, 0, n)
	for i := range n {
		k := (round/2 + i) % n
		if round%2 == 1 {
			k = (round/2 + n - i) % n
		}
		order = append(order, list[k])
	}
	return order
}

// latency is what a turn's connections took: in microseconds.
func latency(took []time.Duration) map[string]float64 {
	list := make([]float64, 0, len(took))
	for _, d := range took {
		list = append(list, float64(d)/float64(time.Microsecond))
	}
	q := result.Quantiles(list)
	return map[string]float64{result.P50: q[result.P50], result.P99: q[result.P99]}
}

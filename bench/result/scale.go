package result

import "math"

// scale maps values to pixels, by their logarithm or in proportion.
type scale struct {
	logarithmic bool
	low, high   float64 // values
	from, to    float64 // pixels
}

func (s scale) pixel(v float64) float64 {
	low, high := s.low, s.high
	if s.logarithmic {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

// manyTimes is by which factor values must differ for a logarithmic scale. With
// less, a scale in proportion shows the difference better.
const manyTimes = 20

// newScale is for positive values, which it keeps away from the ends.
func newScale(logarithmic bool, values []float64, from, to float64) scale {
	s := scale{logarithmic: logarithmic, from: from, to: to}
	low, high := extent(values)
	if logarithmic {
		const room = 1.5
		s.low, s.high = low/room, high*room
		return s
	}
	const room = 1.08
	s.high = high * room
	return s
}

func extent(values []float64) (low, high float64) {
	low, high = math.Inf(1), 0
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return low, high
}

// ticks are the round values within the scale: 3 to 7 of them, for most scales.
func (s scale) ticks() []float64 {
	if !s.logarithmic {
		return steps(s.high)
	}
	for _, digits := range [][]float64{{1}, {1, 2, 5}} {
		if list := s.decades(digits); len(list) >= 3 || len(digits) > 1 {
			return list
		}
	}
	return nil
}

// decades are the powers of ten within the scale, times each of the digits.
func (s scale) decades(digits []float64) []float64 {
	var list []float64
	for e := math.Floor(math.Log10(s.low)); e <= math.Log10(s.high); e++ {
		for _, d := range digits {
			if v := d * math.Pow(10, e); v >= s.low && v <= s.high {
				list = append(list, v)
			}
		}
	}
	return list
}

// steps are the multiples of 1, 2 or 5 times a power of ten, from 0 to high.
func steps(high float64) []float64 {
	const atMost = 5
	power := math.Pow(10, math.Floor(math.Log10(high)))
	step := power
	for _, part := range []float64{0.2, 0.5} {
		if high <= atMost*part*power {
			step = part * power
			break
		}
	}
	if high > atMost*step {
		step = 2 * power
	}
	var list []float64
	for n := 0.0; n*step <= high; n++ {
		list = append(list, n*step)
	}
	return list
}

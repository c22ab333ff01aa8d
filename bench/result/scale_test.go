package result

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTicks(t *testing.T) {
	for _, test := range []struct {
		logarithmic bool
		values      []float64
		want        []float64
	}{
		{true, []float64{0.011, 180}, []float64{0.01, 0.1, 1, 10, 100}},
		{true, []float64{3, 8}, []float64{2, 5, 10}},
		{false, []float64{50, 799}, []float64{0, 200, 400, 600, 800}},
		{false, []float64{161}, []float64{0, 50, 100, 150}},
		{false, []float64{1, 30_000}, []float64{0, 10_000, 20_000, 30_000}},
		{false, []float64{1}, []float64{0, 0.5, 1}},
	} {
		if diff := cmp.Diff(test.want, newScale(test.logarithmic, test.values, 0, 1).ticks()); diff != "" {
			t.Errorf("%v, logarithmic %v (-want +got):\n%s", test.values, test.logarithmic, diff)
		}
	}
}

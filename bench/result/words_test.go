package result

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWrap(t *testing.T) {
	for _, test := range []struct {
		text  string
		width float64
		want  []string
	}{
		{"", 100, nil},
		{"one line", 1_000, []string{"one line"}},
		{"lines are about equally long", 200, []string{"lines are about", "equally long"}},
		{"an incomprehensibility", 20, []string{"an", "incomprehensibility"}},
	} {
		if diff := cmp.Diff(test.want, wrap(test.text, textSize, false, test.width)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.text, diff)
		}
	}
}

package result

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAmount(t *testing.T) {
	for _, test := range []struct {
		value float64
		unit  string
		want  string
	}{
		{0.191, "s", "0.19 s"}, {17.1, "s", "17 s"}, {180, "s", "3 minutes"}, {100, "s", "100 s"}, {0.0206, "s", "21 ms"},
		{4_162, "ms", "4.2 s"}, {0.0996, "s", "0.1 s"}, {22.78, "us", "23 µs"}, {161.2, "us", "161 µs"},
		{134.9, "MB", "135 MB"}, {99.6, "MB", "100 MB"}, {1_007, "MB", "1,007 MB"}, {1, "s", "1 s"},
	} {
		if got := amount(test.value, test.unit); got != test.want {
			t.Errorf("%v %s is %q, want %q", test.value, test.unit, got, test.want)
		}
	}
}

func TestReason(t *testing.T) {
	for want, c := range map[string]Cell{
		"no first program within 3 minutes":  {Note: "no first program within 3m0s", Over: true},
		"no first program within 30 seconds": {Note: "no first program within 30s; at 44,000x1 it had none within 3m0s", Over: true},
		"no first program within 1 minute":   {Failed: "no first program within 1m0s"},
		"no iptables command":                {Failed: "no iptables command"},
		"not measured":                       {Failed: strings.Repeat("a long error ", 9)},
	} {
		if got := reason(&c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}

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

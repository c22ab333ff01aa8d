package chart

import (
	"testing"
)

func TestCrosses(t *testing.T) {
	a := area{left: 10, top: 10, right: 20, bottom: 20}
	for name, test := range map[string]struct {
		segment
		want bool
	}{
		"through":             {segment{0, 12, 30, 18}, true},
		"inside":              {segment{12, 12, 13, 13}, true},
		"ends inside":         {segment{0, 0, 15, 15}, true},
		"ends before":         {segment{0, 15, 9, 15}, false},
		"passes a corner":     {segment{0, 15, 15, 0}, false},
		"level, above":        {segment{0, 5, 30, 5}, false},
		"level, through":      {segment{0, 15, 30, 15}, true},
		"upright, beside":     {segment{25, 0, 25, 30}, false},
		"upright, from below": {segment{15, 30, 15, 15}, true},
	} {
		if got := test.crosses(a); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

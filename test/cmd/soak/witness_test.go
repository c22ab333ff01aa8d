package main

import (
	"testing"
	"time"
)

// TestTooLong: silence counts once it is longer than the machine explains.
func TestTooLong(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	quick, slow, stuck := &witness{}, &witness{}, &witness{}
	for s := 0.0; s < 60; s += 0.2 {
		quick.note(at(s), at(s+0.01))
	}
	for s := 0.0; s < 60; s += 4 {
		slow.note(at(s), at(s+3.8))
	}
	stuck.note(at(0), at(0.1))
	for name, c := range map[string]struct {
		w        *witness
		from, to float64
		want     bool
	}{
		"a packet sent again":                     {quick, 10, 13, false},
		"a quick machine":                         {quick, 10, 16, true},
		"a slow machine":                          {slow, 10, 16, false},
		"a slow machine, and longer by far":       {slow, 10, 30, true},
		"a machine on which nothing was answered": {stuck, 10, 40, false},
		"nothing known yet":                       {&witness{}, 10, 40, false},
	} {
		if got := c.w.tooLong(at(c.from), at(c.to)); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	quick.note(at(600), at(601))
	if len(quick.asks) != 1 {
		t.Errorf("%d questions are kept", len(quick.asks))
	}
}

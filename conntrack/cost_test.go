package conntrack

import (
	"testing"
	"time"
)

// The kind of pass depends on the measured cost of both kinds.
func TestPrices(t *testing.T) {
	const buckets = 1 << 18
	// pay lets prices observe passes with so much CPU time for each visit.
	pay := func(p *prices, s size, walks, passes int, visit time.Duration) {
		visits := s.whole()
		if walks > 0 {
			visits = float64(walks) * s.walk()
		}
		for range passes {
			p.observe(s, Run{Walks: walks, CPU: time.Duration(visits) * visit})
		}
	}
	small, large := size{800, buckets}, size{200_000, buckets}
	for name, c := range map[string]struct {
		size  size
		walks int
		want  bool
	}{
		"one filter, small table":    {small, 1, false},
		"two filters, small table":   {small, 2, true},
		"two filters, large table":   {large, 2, false},
		"six filters, large table":   {large, 6, false},
		"eight filters, large table": {large, 8, true},
		"nobody knows the size":      {size{}, 2, true},
	} {
		p := newPrices()
		if got := p.wholeIsCheaper(c.size, c.walks); got != c.want {
			t.Errorf("%s: everything is cheaper: %t", name, got)
		}
		pay(&p, c.size, c.walks, 20, 3*visit) // A slow machine is slow for both kinds.
		pay(&p, c.size, 0, 20, 3*visit)
		if got := p.wholeIsCheaper(c.size, c.walks); got != c.want {
			t.Errorf("%s, slow machine: everything is cheaper: %t", name, got)
		}
	}

	// A kernel that ignores filters, or does not compare IPv6 addresses, returns more
	// entries.
	p := newPrices()
	pay(&p, large, 2, 10, 7*visit)
	if !p.wholeIsCheaper(large, 2) {
		t.Error("filtered passes were expensive and still count as cheaper")
	}
	pay(&p, large, 0, 100, visit)
	if p.wholeIsCheaper(large, 2) {
		t.Error("filtered passes never get another chance")
	}

	// The cost of deletions does not count against the kind of pass that made them.
	p = newPrices()
	p.observe(small, Run{Walks: 1, Removed: map[Reason]int{EndpointGone: 10_000},
		CPU: time.Duration(small.walk()+deleteEntry*10_000) * visit})
	if p.wholeIsCheaper(small, 1) {
		t.Error("deletions raise the price of filtered passes")
	}
	// A pass without CPU time was too short for the clock, and changes no price.
	if p.observe(small, Run{Walks: 1}); p.filtered < visit.Seconds()/2 {
		t.Error("a pass without CPU time changed the price")
	}
}

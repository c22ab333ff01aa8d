package proxy

import (
	"errors"
	"testing"
	"time"

	"nftproxy/model/treap"
	"nftproxy/nft"
)

func TestBackOff(t *testing.T) {
	for _, test := range []struct {
		refusals    int
		least, most time.Duration
	}{
		{1, 500 * time.Millisecond, time.Second},
		{2, time.Second, 2 * time.Second},
		{9, 128 * time.Second, 256 * time.Second},
		{10, 150 * time.Second, 5 * time.Minute},
		{1_000_000, 150 * time.Second, 5 * time.Minute},
	} {
		if got := backOff(test.refusals, 0); got != test.least {
			t.Errorf("%d refusals: at least %v, want %v", test.refusals, got, test.least)
		}
		if got := backOff(test.refusals, 0.999999); got <= test.least || got >= test.most {
			t.Errorf("%d refusals: at most %v, want about %v", test.refusals, got, test.most)
		}
	}
}

// TestPartStates leads one part through the states that it can have.
func TestPartStates(t *testing.T) {
	now := time.Unix(0, 0)
	program := func(part *nft.Part) *nft.Program {
		parts := treap.Map[string, *nft.Part]{}
		if part != nil {
			parts = parts.Set("a", part)
		}
		return &nft.Program{IPv4: &nft.Table{Family: nft.IPv4, Parts: parts}, IPv6: &nft.Table{Family: nft.IPv6}}
	}
	first, second := program(&nft.Part{}), program(&nft.Part{})
	one, two := errors.New("one"), errors.New("two")
	q := newQuarantine(func() float64 { return 0 })
	want := func(when string, p *nft.Program, err error, due time.Duration) {
		t.Helper()
		q.follow(p, now)
		inProgram := q.withoutHeld(p, nil).IPv4.Parts.Len()
		if got := q.reasons()["a"]; got != err || (inProgram == 0) != (err != nil) {
			t.Errorf("%s: held for %v, and %d parts in the program; want %v", when, got, inProgram, err)
		}
		switch retry := q.nextRetry(); {
		case err == nil && !retry.IsZero(), err != nil && retry.Sub(now) != due:
			t.Errorf("%s: due after %v, want %v", when, retry.Sub(now), due)
		}
	}
	refuse := func(p *nft.Program, err error) { q.refused("a", partsOf(p, "a"), err, now) }

	want("never refused", first, nil, 0)
	refuse(first, one)
	want("refused", first, one, firstRetry/2)
	now = now.Add(firstRetry)
	refuse(first, two)
	want("refused again, for another reason", first, one, firstRetry)
	q.accepted([]string{"a"})
	want("accepted", first, nil, 0)
	refuse(first, two)
	want("refused on probation", first, two, 2*firstRetry)
	want("changed", second, two, 0)
	refuse(second, one)
	want("refused after the change", second, one, firstRetry/2)
	q.pausedUntil = now.Add(retryShare * time.Second)
	want("after a long retry", second, one, retryShare*time.Second)
	now = now.Add(retryShare * time.Second)
	q.accepted([]string{"a"})
	now = now.Add(time.Hour)
	want("accepted long ago", second, nil, 0)
	refuse(second, two)
	want("refused anew", second, two, firstRetry/2)
	if q.follow(program(nil), now); len(q.parts) > 0 {
		t.Errorf("still has %v", q.parts)
	}
}

package pace

import (
	"maps"
	"sync"
	"time"
)

// Accounts share out work that many cause, so that each pays for its own. Each has a Budget. Those that have used it up
// are debtors, and owe another Burst. All debtors together have one more Budget, without a burst. The fields do not
// change after the first call. Accounts are safe for concurrent use.
type Accounts struct {
	// Rest and Burst are those of each Budget.
	Rest  int
	Burst time.Duration
	// Longest is how long the work of a debtor waits at most.
	Longest time.Duration

	mu      sync.Mutex
	each    map[string]*Budget
	debtors Budget
	// kept is how many accounts there were after the last look for those that owe nothing.
	kept int
}

// debtorPays is how many times the cost of its work a debtor owes. So a few debtors whose work never ends stay debtors,
// although each gets only a part of what all have.
const debtorPays = 10

// Charge records that work has taken this much CPU time, up to now. shares says who caused it, in any unit. It returns
// how much of it those have caused who were no debtors before, and nobody.
func (a *Accounts) Charge(now time.Time, cpu time.Duration, shares map[string]int) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.each == nil {
		a.each, a.debtors.Rest = map[string]*Budget{}, a.Rest
	}
	total := 0
	for _, n := range shares {
		total += n
	}
	left := cpu
	for name, n := range shares {
		if n == 0 {
			continue
		}
		b, share := a.each[name], time.Duration(float64(cpu)*float64(n)/float64(total))
		if b == nil {
			b = &Budget{Rest: a.Rest, Burst: a.Burst}
			a.each[name] = b
		}
		was := b.Ready().After(now)
		if was {
			a.debtors.Spend(now, share)
			left -= share
			share *= debtorPays
		}
		if b.Spend(now, share); !was && b.debt > a.Burst || b.debt > 2*a.Burst {
			b.debt = 2 * a.Burst
		}
	}
	if len(a.each) > 2*a.kept {
		maps.DeleteFunc(a.each, func(_ string, b *Budget) bool { return now.Sub(b.at) > b.debt*time.Duration(a.Rest) })
		a.kept = len(a.each)
	}
	return left
}

// Ready returns when work that has waited since then may begin. debtor is false where that is at once.
func (a *Accounts) Ready(now time.Time, name string, since time.Time) (ready time.Time, debtor bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.each[name]
	if b == nil || !b.Ready().After(now) {
		return now, false
	}
	if ready = a.debtors.Ready(); ready.After(since.Add(a.Longest)) {
		ready = since.Add(a.Longest)
	}
	return ready, true
}

// Spare says whether more than half of an account's Burst is left: work that can as well be left out leaves the other
// half to what cannot.
func (a *Accounts) Spare(now time.Time, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.each[name]
	return b == nil || now.Sub(b.at) > (b.debt-a.Burst/2)*time.Duration(a.Rest)
}

package pace

import "time"

// Budget keeps work to a share of a core in the long run. Work that took less before may take more
// for a while. Budget counts CPU time: on a busy machine work takes more elapsed time but does not
// cost more. It is not safe for concurrent use.
type Budget struct {
	// Rest is the time after which one unit of CPU time may be spent again, in the same unit: in
	// the long run the work gets 1/Rest of a core.
	Rest int
	// Burst is the CPU time that the work can spend beyond that share. It is refilled at the rate
	// of the share.
	Burst time.Duration

	// Debt, if not 0, bounds what is left of earlier work beyond Burst when more is spent: so nothing has to wait for
	// longer than for Debt and for itself, whatever else has spent.
	Debt time.Duration

	// debt is the CPU time that was spent beyond the share up to the time at.
	debt time.Duration
	at   time.Time
}

// Spend records that the work has taken this much CPU time, up to now.
func (b *Budget) Spend(now time.Time, cpu time.Duration) {
	left := max(0, b.debt-now.Sub(b.at)/time.Duration(b.Rest))
	if b.Debt > 0 {
		left = min(left, b.Burst+b.Debt)
	}
	b.debt = left + cpu
	b.at = now
}

// Ready returns the time from which the work may spend more. It may then spend more than the budget
// has left, and waits longer afterwards.
func (b *Budget) Ready() time.Time {
	return b.at.Add(max(0, b.debt-b.Burst) * time.Duration(b.Rest))
}

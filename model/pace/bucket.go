package pace

import "time"

// Bucket bounds events: Burst of them may happen at once, and later one in each
// Period. It holds up to Burst tokens and gets one back in each Period. It is full at
// first. It is not safe for concurrent use.
type Bucket struct {
	Burst  int
	Period time.Duration

	used int
	// since is the beginning of the period at whose end the next token comes back.
	since time.Time
}

// Level returns the number of tokens.
func (b *Bucket) Level(now time.Time) int {
	if back := int(now.Sub(b.since) / b.Period); b.used > 0 && back > 0 {
		b.used = max(0, b.used-back)
		b.since = b.since.Add(time.Duration(back) * b.Period)
	}
	return b.Burst - b.used
}

// Take takes a token. It returns false if there is none.
func (b *Bucket) Take(now time.Time) bool {
	if b.Level(now) == 0 {
		return false
	}
	if b.used == 0 {
		b.since = now
	}
	b.used++
	return true
}

// Next returns the time when there is a token: now if there is one.
func (b *Bucket) Next(now time.Time) time.Time {
	if b.Level(now) > 0 {
		return now
	}
	return b.since.Add(b.Period)
}

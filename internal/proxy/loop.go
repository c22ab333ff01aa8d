package proxy

import (
	"context"
	"time"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// Kernel is where the loop writes to and, after a start or an error, reads from.
type Kernel interface {
	// Claim takes existing tables into possession before they are read.
	Claim(want *nft.Program) error
	// Read returns the tables as they are.
	Read(want *nft.Program) (*nft.Model, error)
	// Apply carries out all of the batch, or nothing.
	Apply(nft.Batch) error
}

// Config says how often the loop works.
type Config struct {
	// MinSyncPeriod is the least time between the end of one sync and the start
	// of the next. The first change after a rest is not held up.
	MinSyncPeriod time.Duration
	// RetryPeriod is the time after which a sync that went wrong is tried again
	// although nothing has changed.
	RetryPeriod time.Duration
}

// DefaultConfig has the periods that suit a kernel which takes a batch in less
// than a millisecond.
func DefaultConfig() Config {
	return Config{MinSyncPeriod: 10 * time.Millisecond, RetryPeriod: time.Second}
}

// Sync is what one turn of the loop did.
type Sync struct {
	Snapshot service.Snapshot
	// Since is when the oldest change in it arrived; zero if the turn was a
	// retry or removed idle chains.
	Since time.Time
	// Start and the time that each step took.
	Start                      time.Time
	Compile, Read, Plan, Apply time.Duration
	// Program is what was wanted.
	Program *nft.Program
	// Written is the number of elements, rules and other objects that the
	// batches touched; 0 means that the kernel had everything already.
	Written int
	// Quarantined lists the parts that the kernel refused, with its errors;
	// everything else is in force.
	Quarantined map[string]error
	// Err is why the program is not in force, at least in one family.
	Err error
}

// Latency is the time from the oldest change to the end of the sync.
func (s *Sync) Latency() time.Duration {
	if s.Since.IsZero() {
		return 0
	}
	return s.End().Sub(s.Since)
}

// End is when the kernel had it.
func (s *Sync) End() time.Time { return s.Start.Add(s.Compile + s.Read + s.Plan + s.Apply) }

// Loop brings the kernel after the snapshots of a mailbox.
type Loop struct {
	config  Config
	kernel  Kernel
	compile func(service.Snapshot) *nft.Program
	observe []func(Sync)

	applier applier
	update  service.Update
	known   bool // update holds something
}

// New makes a loop. Observers are called after each sync, in order and before
// the next one: they must not wait for anything.
func New(c Config, k Kernel, compile func(service.Snapshot) *nft.Program, observe ...func(Sync)) *Loop {
	return &Loop{config: c, kernel: k, compile: compile, observe: observe, applier: applier{kernel: k}}
}

// Run works until the context ends; the tables stay. It returns nil.
func (l *Loop) Run(ctx context.Context, in *service.Mailbox) error {
	wake := time.NewTimer(0)
	wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-in.C():
		case <-wake.C:
		}
		s, ok := l.turn(in)
		if !ok {
			continue
		}
		if at := l.next(s); !at.IsZero() {
			wake.Reset(max(0, time.Until(at)))
		}
		if !rest(ctx, l.config.MinSyncPeriod) {
			return nil
		}
	}
}

// turn syncs the newest snapshot; false means that there is none yet.
func (l *Loop) turn(in *service.Mailbox) (Sync, bool) {
	var since time.Time
	if u, ok := in.Take(); ok {
		l.update, l.known, since = u, true, u.Since
	}
	if !l.known {
		return Sync{}, false
	}
	s := Sync{Snapshot: l.update.Snapshot, Since: since, Start: time.Now()}
	l.sync(&s)
	for _, o := range l.observe {
		o(s)
	}
	return s, true
}

func (l *Loop) sync(s *Sync) {
	s.Program = l.compile(s.Snapshot)
	s.Compile = time.Since(s.Start)
	s.Err = l.applier.run(s)
}

// next is when the loop has work without a change: to try again, or to remove
// chains that have been idle for long enough.
func (l *Loop) next(s Sync) time.Time {
	due := l.applier.state.Due()
	if s.Err != nil {
		if retry := time.Now().Add(l.config.RetryPeriod); due.IsZero() || retry.Before(due) {
			return retry
		}
	}
	return due
}

// rest waits; false means that the context ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

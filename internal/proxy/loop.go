package proxy

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// Kernel is where the loop writes to and, after a start or an error, reads from.
type Kernel interface {
	// Claim takes an existing table into possession before it is read.
	Claim(nft.TableID) error
	// ReadTable returns the table as it is, nil if there is none.
	ReadTable(want *nft.Table) (*nft.Contents, error)
	// Apply carries out all of the batch or, with an error, nothing, as a rule:
	// after an error the loop reads before it plans again. An error about
	// certain parts has a method Parts() []string.
	Apply(nft.Batch) error
	// Spent says how much of the last Apply went into encoding, and how much into
	// the kernel's taking it.
	Spent() (encode, commit time.Duration)
	// Generation is the number of the ruleset. Every transaction, whosever it
	// is, raises it by one, but what the Kernel does to what rules have
	// remembered need not.
	Generation() (uint32, error)
	// Owned says whether nobody else can change the table.
	Owned(nft.TableID) (bool, error)
}

// Config says how often the loop works.
type Config struct {
	// MinSyncPeriod is the least time between the end of one sync and the start
	// of the next. The first change after a rest is not held up.
	MinSyncPeriod time.Duration
	// RetryPeriod is the time after which a sync that went wrong is tried again
	// although nothing has changed.
	RetryPeriod time.Duration
	// CheckPeriod is how often the loop looks whether somebody else has changed
	// the ruleset, which costs microseconds; 0 means never. Tables that we own
	// cannot be meant; others are then read, and mended if need be.
	CheckPeriod time.Duration
	// Begin is called in each turn before anything is written, if it is not
	// nil; the observers are told how the turn ended. It must not wait.
	Begin func()
}

// readShare bounds what a busy ruleset of others costs: of the time, at most
// one part in so many goes into reading our tables.
const readShare = 50

// DefaultConfig has the periods that suit a kernel which takes a batch in less
// than a millisecond.
func DefaultConfig() Config {
	return Config{MinSyncPeriod: 10 * time.Millisecond, RetryPeriod: time.Second, CheckPeriod: time.Second}
}

// Sync is what one turn of the loop did.
type Sync struct {
	Snapshot service.Snapshot
	// Since is when the oldest change arrived that was not in force before, also
	// if earlier turns have tried to bring it in; zero if there was none and the
	// turn only removed idle chains.
	Since time.Time
	// Start and the time that each step took.
	Start                      time.Time
	Compile, Read, Plan, Apply time.Duration
	// Encode and Commit are the two parts of Apply.
	Encode, Commit time.Duration
	// Program is what was wanted.
	Program *nft.Program
	// Applied is what is in force: Program without quarantined parts or, in a
	// family where that is not in force, what was there last, as far as known;
	// a table without sets stands for nothing yet.
	Applied *nft.Program
	// Adopted says that what the kernel had in some family was read, and was
	// not, as far as known, what Applied last told: nobody knows then what its
	// rules have done.
	Adopted bool
	// Found is what the kernel's tables were before this loop wrote to them, in
	// the families that it first looked at in this turn; nil in turns without.
	Found *nft.Model
	// Written is the number of elements, rules and other objects that the
	// batches touched; 0 means that the kernel had everything already.
	Written int
	// Check says that the turn was made because somebody else had changed the
	// ruleset: what it wrote, if anything, is repair.
	Check bool
	// Quarantined lists the parts that the kernel refused, with its errors;
	// everything else is in force.
	Quarantined map[string]error
	// Err is why the program is not in force, at least in one family; InForce
	// says in which.
	Err error
}

// InForce says whether the program, but for quarantined parts, is in force in
// the family.
func (s *Sync) InForce(f nft.Family) bool { return s.FamilyErr(f) == nil }

// FamilyErr is why the program is not in force in the family; nil if it is.
func (s *Sync) FamilyErr(f nft.Family) error {
	var failed FamilyErrors
	if errors.As(s.Err, &failed) {
		return failed[f]
	}
	return s.Err
}

// Serves says whether any service is in the family: where none is, nobody
// misses a program that is not in force. It looks at all of them at worst.
func (s *Sync) Serves(f nft.Family) bool {
	for _, svc := range s.Snapshot.Services.All() {
		if svc.InFamily(f == nft.IPv6) {
			return true
		}
	}
	return false
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
	compile func(service.Snapshot) *nft.Program
	observe []func(Sync)

	applier applier
	update  service.Update
	// since is when the oldest change arrived that is not in force.
	since time.Time
	// checkAfter is when a check may next lead to a read.
	checkAfter time.Time
	// busy is when the turn that is under way began, nil between turns.
	busy atomic.Pointer[time.Time]
}

// New makes a loop. Observers are called after each sync, in order and before
// the next one: they must not wait for anything.
func New(c Config, k Kernel, compile func(service.Snapshot) *nft.Program, observe ...func(Sync)) *Loop {
	return &Loop{config: c, compile: compile, observe: observe, applier: newApplier(k)}
}

// Busy is when the turn that is under way began, or the zero time between
// turns: one that never ends, observers included, shows only here. It is safe
// for concurrent use.
func (l *Loop) Busy() time.Time {
	if start := l.busy.Load(); start != nil {
		return *start
	}
	return time.Time{}
}

// Run works until the context ends; the tables stay. It returns nil.
func (l *Loop) Run(ctx context.Context, in *service.Mailbox) error {
	wake := time.NewTimer(0)
	wake.Stop()
	defer wake.Stop()
	check, stop := ticks(l.config.CheckPeriod)
	defer stop()
	for {
		tampered := false
		select {
		case <-ctx.Done():
		case <-check:
			if tampered = l.tampered(); !tampered {
				continue
			}
			l.take(in)
		case <-in.C():
			if !l.take(in) { // An earlier turn has read it already.
				continue
			}
		case <-wake.C:
			l.take(in)
		}
		if ctx.Err() != nil {
			return nil
		}
		wake.Stop()
		s := l.turn(tampered)
		if at := l.next(s); !at.IsZero() {
			wake.Reset(max(0, time.Until(at)))
		}
		if s.Err == nil && s.Written == 0 {
			// Nothing went to the kernel: the next change is the first after a
			// rest. A pod's new interface, for example, changes the node's
			// addresses just before its endpoint comes.
			continue
		}
		if !rest(ctx, l.config.MinSyncPeriod) {
			return nil
		}
	}
}

// take reads the newest snapshot; false means that there is no newer one.
func (l *Loop) take(in *service.Mailbox) bool {
	u, ok := in.Take()
	if !ok {
		return false
	}
	l.update = u
	if l.since.IsZero() {
		l.since = u.Since
	}
	return true
}

// turn syncs the newest snapshot and tells the observers.
func (l *Loop) turn(check bool) Sync {
	s := Sync{Snapshot: l.update.Snapshot, Since: l.since, Start: time.Now(), Check: check}
	l.busy.Store(&s.Start)
	defer l.busy.Store(nil)
	s.Program = l.compile(s.Snapshot)
	s.Compile = time.Since(s.Start)
	if l.config.Begin != nil {
		l.config.Begin()
	}
	s.Err = l.applier.run(&s)
	if s.Err == nil {
		l.since = time.Time{}
	}
	l.checkAfter = s.End().Add(readShare * s.Read)
	for _, o := range l.observe {
		o(s)
	}
	return s
}

// tampered says whether our tables may no longer be what they were.
func (l *Loop) tampered() bool {
	return !time.Now().Before(l.checkAfter) && l.applier.tampered()
}

// ticks is a ticker's channel and its end; a period of 0 never ticks.
func ticks(period time.Duration) (<-chan time.Time, func()) {
	if period <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(period)
	return t.C, t.Stop
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

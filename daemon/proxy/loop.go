package proxy

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// Kernel is the kernel's nftables: the loop writes to it and, after a start or an error, reads from it.
type Kernel interface {
	// Own makes this process the owner of an existing table before it is read.
	Own(nft.TableID) error
	// ReadTable returns the contents of the table, nil if there is none.
	ReadTable(want *nft.Table) (*nft.Contents, error)
	// Apply carries out all of the batch. With an error it carries out nothing, as a rule: the loop reads before it plans
	// again. An error about certain parts has a method Parts() []string.
	Apply(nft.Batch) error
	// Spent says how much of the last Apply the encoding took, and how much the kernel.
	Spent() (encode, commit time.Duration)
	// Generation is the number of the ruleset. Every transaction of any program raises it by one. A change of the clients
	// that maps remember may leave it as it is.
	Generation() (uint32, error)
	// Owned says whether no other program can change the table.
	Owned(nft.TableID) (bool, error)
	// Objects is the number of the table's chains and sets, 0 where there is no table.
	// Asking costs the same for any table.
	Objects(nft.TableID) (int, error)
}

// Config says how often the loop works.
type Config struct {
	// MinSyncPeriod is the least time between the end of one sync and the start
	// of the next, on average over 100 ms or itself, whichever is longer. The first change after a rest does not wait.
	MinSyncPeriod time.Duration
	// RetryPeriod is the time after which a failed sync is repeated although nothing has changed.
	RetryPeriod time.Duration
	// CheckPeriod is how often the loop checks for changes to the ruleset by other programs; 0 means never. A check costs
	// microseconds. After such a change the loop reads the tables that we do not own, and repairs them if need be, as
	// often as checkRest and repairBurst let it. A table that has gone is always made again at once.
	CheckPeriod time.Duration
	// OwnedCheckPeriod takes the place of CheckPeriod, if it is longer, while no other
	// program can change our tables. A proxy at rest spends its time on these checks.
	OwnedCheckPeriod time.Duration
	// Begin is called in each sync before anything is written, if it is not nil.
	// The observers hear how the sync ended. Begin must not wait.
	Begin func()
	// CPU returns the CPU time of the process so far. Nil stands for a process that works all the time.
	CPU func() time.Duration
	// Accounts, if not nil, are told what syncs have cost each namespace. What debtors pay delays no further sync.
	Accounts *pace.Accounts
	// Jitter spreads the retries of refused parts: it returns a number from 0 to 1, not included. Nil is a random one.
	Jitter func() float64
}

// DefaultConfig has the periods that suit a kernel which takes a batch in less than a millisecond.
func DefaultConfig() Config {
	return Config{MinSyncPeriod: 10 * time.Millisecond, RetryPeriod: time.Second, CheckPeriod: 250 * time.Millisecond,
		OwnedCheckPeriod: time.Second}
}

// Loop applies the newest snapshot of a mailbox to the kernel.
type Loop struct {
	config Config
	// minSyncPeriod is a time.Duration.
	minSyncPeriod atomic.Int64

	compile func(service.Snapshot) *nft.Program
	observe []func(Sync)

	applier applier
	update  service.Update
	// since is when the oldest change arrived that is not in force.
	since time.Time
	// triggers are the causes of the changes that are not in force in their family.
	triggers service.Triggers
	pacing   pacing
	// program is that of the last sync.
	program *nft.Program
	// busy is when the sync under way began, nil between syncs.
	busy atomic.Pointer[time.Time]
}

// New makes a loop. The loop calls the observers after each sync, in order and
// before the next one: they must not wait for anything.
func New(c Config, k Kernel, compile func(service.Snapshot) *nft.Program, observe ...func(Sync)) *Loop {
	if c.Jitter == nil {
		c.Jitter = rand.Float64
	}
	if c.CPU == nil {
		began := time.Now()
		c.CPU = func() time.Duration { return time.Since(began) }
	}
	l := &Loop{config: c, compile: compile, observe: observe, applier: newApplier(k, c.Jitter),
		pacing: newPacing(c.Jitter)}
	l.SetMinSyncPeriod(c.MinSyncPeriod)
	return l
}

// SetMinSyncPeriod changes the configuration's period, from the next sync on. It is safe for concurrent use.
func (l *Loop) SetMinSyncPeriod(d time.Duration) { l.minSyncPeriod.Store(int64(d)) }

// Busy is when the sync under way began, or the zero time between syncs. A sync that never ends, its observers
// included, shows only here. Busy is safe for concurrent use.
func (l *Loop) Busy() time.Time {
	if start := l.busy.Load(); start != nil {
		return *start
	}
	return time.Time{}
}

// Run works until the context ends; the tables stay. It returns nil. The observers are further ones, after those of
// New: what is told of the loop may be made of it.
func (l *Loop) Run(ctx context.Context, in *service.Mailbox, observe ...func(Sync)) error {
	l.observe = append(l.observe, observe...)
	wake := time.NewTimer(0)
	wake.Stop()
	defer wake.Stop()
	tick := time.NewTimer(l.config.CheckPeriod)
	defer tick.Stop()
	if l.config.CheckPeriod <= 0 {
		tick.Stop()
	}
	// crowded says that changes come faster than the syncs may: then the loop rests at once after a sync. Otherwise
	// it rests only when the next change comes too early: the timer of a rest would wake the process once more for
	// each change.
	crowded := false
	for {
		l.pacing.follow(time.Duration(l.minSyncPeriod.Load()))
		if crowded {
			if !pause(ctx, l.pacing.left(time.Now())) {
				return nil
			}
			crowded = len(in.C()) > 0
		}
		why := work
		told := false // by the mailbox, of an update that an earlier sync may have taken
		select {
		case <-ctx.Done():
		case <-tick.C:
			why = l.check()
			tick.Reset(l.checkPeriod())
			if why == nothing {
				continue
			}
		case <-in.C():
			told = true
		case <-wake.C:
		}
		early := l.pacing.left(time.Now())
		crowded = crowded || early > 0
		if !pause(ctx, early) {
			return nil
		}
		if !l.takeNewest(in) && told {
			continue
		}
		wake.Stop()
		if why == work && l.doubtful() {
			why = workInDoubt
		}
		s := l.sync(why)
		if at := l.nextSync(s); !at.IsZero() {
			wake.Reset(max(0, time.Until(at)))
		}
		// If nothing went to the kernel, the next change is the first after a rest: a pod's new
		// interface changes the node's addresses just before its endpoint comes.
		if s.Err != nil || s.Written > 0 {
			l.pacing.wrote(time.Now())
		}
	}
}

// takeNewest takes the newest snapshot; false means that there is no newer one.
func (l *Loop) takeNewest(in *service.Mailbox) bool {
	u, ok := in.Take()
	if !ok {
		return false
	}
	l.update = u
	l.triggers.Join(u.Triggers)
	if l.since.IsZero() {
		l.since = u.Since
	}
	return true
}

// sync applies the newest snapshot and calls the observers.
func (l *Loop) sync(why reason) Sync {
	s := Sync{Snapshot: l.update.Snapshot, Since: l.since, Changes: l.update.Changes, Triggers: l.triggers,
		Start: time.Now(), Check: why == doubt || why == loss}
	l.busy.Store(&s.Start)
	defer l.busy.Store(nil)
	before := l.config.CPU()
	s.Program = l.compile(s.Snapshot)
	s.Compile = time.Since(s.Start)
	if l.config.Begin != nil {
		l.config.Begin()
	}
	s.Err = l.applier.applyProgram(&s)
	if s.Err == nil {
		l.since = time.Time{}
	}
	l.triggers = service.Triggers{} // The observers have the lists.
	for _, f := range nft.Families() {
		if !s.InForce(f) {
			*l.triggers.Of(f) = slices.Clone(*s.Triggers.Of(f))
		}
	}
	if s.Repaired() {
		l.pacing.repaired(s.End())
	}
	took := s.End().Sub(s.Start)
	cpu := min(took, l.config.CPU()-before)
	if l.config.Accounts != nil && !s.Check {
		cpu = l.config.Accounts.Charge(s.End(), cpu, shares(&s, l.program))
	}
	l.program = s.Program
	l.pacing.spent(s.End(), why, took, cpu)
	s.Rest = l.pacing.long(s.End())
	for _, o := range l.observe {
		o(s)
	}
	return s
}

// check looks whether another program calls for a sync. Beyond the budget for doubts it only looks whether something
// is lost, and beyond the one for losses not even that.
func (l *Loop) check() reason {
	repair, forDoubt, forLoss := l.pacing.may(time.Now())
	switch {
	case repair && forDoubt:
		if l.applier.tampered() {
			return doubt
		}
	case forLoss && l.applier.lost(repair):
		return loss
	}
	return nothing
}

// doubtful has the tables read before a change goes in, if another program may have changed them and the loop may not
// repair them for that alone. So a change of a Service never rests on what another proxy left.
func (l *Loop) doubtful() bool {
	repair, forDoubt, _ := l.pacing.may(time.Now())
	return !repair && forDoubt && l.applier.tampered()
}

func (l *Loop) checkPeriod() time.Duration {
	if l.config.OwnedCheckPeriod > l.config.CheckPeriod && l.applier.owned() {
		return l.config.OwnedCheckPeriod
	}
	return l.config.CheckPeriod
}

// nextSync is when the loop has work although no snapshot comes. After a sync that failed all of it waits for
// RetryPeriod, since it could not be done before.
func (l *Loop) nextSync(s Sync) time.Time {
	retry := time.Now().Add(l.config.RetryPeriod)
	switch {
	case s.Err != nil:
		return retry
	case l.applier.mustRead():
		return pace.Soonest(l.applier.due(), retry)
	}
	return l.applier.due()
}

// pause waits; false means that the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

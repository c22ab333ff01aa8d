// Package affinity promises that no client stays with an endpoint that its
// service address no longer uses: the kernel's rules remember clients by
// themselves (session affinity), and what they remember of such endpoints is
// removed soon after the endpoints have left the program.
//
// It decides neither which endpoints may be remembered (nft/ruleset does) nor
// how entries are found and deleted (nft/kernel).
package affinity

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"nftproxy/internal/pace"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// pause is the least time between two sweeps, in durations of the earlier one:
// while endpoints leave all the time, sweeping takes at most half a core. Most
// sweeps take milliseconds. That of a full map takes seconds, and as long as it
// has not ended clients are sent to where nobody answers: so no more rest.
const pause = 1

// late are the waits before further sweeps after one that had a reason: a sweep
// is no snapshot. The kernel finds its place in a map again by counting, so it
// leaves out entries where others go at the same time, as it does once a second
// with all that have expired: 3 to 12 % of 40,000 entries were missed then. And
// a rule asks whether an endpoint may be remembered just before it remembers it:
// on a CPU that stands still between the two (a virtual machine's can), the entry
// comes after the sweep. The waits are no multiples of that second or each other.
func late() []time.Duration {
	return []time.Duration{700 * time.Millisecond, 2300 * time.Millisecond, 7 * time.Second}
}

// Kernel is where the clients are remembered.
type Kernel interface {
	// Sweep deletes the entries of a dynamic map that keep refuses and returns
	// how many, and how many there are besides. A map that is not there has
	// none. An error names the map; the end of the context is one.
	Sweep(ctx context.Context, table nft.TableID, set *nft.Set, keep func(key, data nft.Value) bool) (left, swept int, err error)
}

// Run is what one sweep of the maps concerned did.
type Run struct {
	// Swept is the number of stale entries that were removed.
	Swept int
	// Maps are those that were looked at to the end.
	Maps []Map
	// Duration is the wall time that it took.
	Duration time.Duration
	// Err is why it was incomplete, or nil. It is tried again later.
	Err error
	// Repeated says that Err reads the same as the last sweep's: count it, but
	// there is no need to log it again.
	Repeated bool
}

// Map is how full a map was after a sweep.
type Map struct {
	Name ruleset.AffinityName
	// Entries are the clients in it, of Size at most.
	Entries, Size int
}

// Sweeper removes stale entries after syncs, beside them. Stale entries come
// only of an endpoint that leaves the program: it may be remembered until the
// rules without it are in force, and no longer. So sweeps after that are enough,
// of the maps that may have it, and syncs that only add cost nothing.
//
// From the transaction to the end of the sweep, remembered clients that come
// again are sent to the endpoint that has gone: for 30 ms with 10,000 clients in
// the map, 0.7 s with 100,000, 3.5 to 5 s with 262,144, which fill it
// (BenchmarkStaleWindow), and up to three times that if another sweep had just
// begun. Judging takes some 20 ms more where 10,000 services with ten endpoints
// each have affinity.
type Sweeper struct {
	kernel   Kernel
	observe  func(Run)
	schedule pace.Schedule
	failure  string // the last sweep's error, or empty
	// concerned are the maps that may hold stale entries, and when their first
	// sweep since they may began; the zero time before it.
	concerned map[ruleset.AffinityName]time.Time
	// spread is how long after its first sweep a map's last one is.
	spread time.Duration

	wake chan struct{} // holds one token while something is stale

	mu sync.Mutex
	// latest is the program in force.
	latest *nft.Program
	// shrunk are the maps that the last sweep knew nothing of.
	shrunk []ruleset.AffinityName
}

// NewSweeper makes a Sweeper. observe is called by Run, after each sweep.
func NewSweeper(k Kernel, observe func(Run)) *Sweeper {
	s := &Sweeper{
		kernel: k, observe: observe, wake: make(chan struct{}, 1),
		schedule:  pace.Schedule{Pause: pause, Late: late()},
		concerned: map[ruleset.AffinityName]time.Time{},
	}
	for _, wait := range late() {
		s.spread += wait
	}
	return s
}

// Notify says which program is in force after a sync; unknown says that the
// kernel's maps may hold entries from before that the last program told of did
// not allow. Call it after each sync, in order. It costs what has changed, and
// never blocks.
func (s *Sweeper) Notify(inForce *nft.Program, unknown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var shrunk []ruleset.AffinityName
	switch {
	case unknown:
		for _, m := range ruleset.AffinityMaps(inForce) {
			shrunk = append(shrunk, m.Name)
		}
	case s.latest != nil:
		shrunk = ruleset.AffinityShrunk(s.latest, inForce)
	}
	s.latest = inForce
	if len(shrunk) == 0 {
		return
	}
	for _, name := range shrunk {
		if !slices.Contains(s.shrunk, name) {
			s.shrunk = append(s.shrunk, name)
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Sweeper) newest() *nft.Program {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// take returns the program in force, and takes over which maps may have become
// stale up to it.
func (s *Sweeper) take() *nft.Program {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.shrunk {
		s.concerned[name] = time.Time{}
	}
	s.shrunk = s.shrunk[:0]
	return s.latest
}

// Run sweeps until the context ends, and then returns nil. A sweep under way is
// cut short. Errors of the kernel do not end it: they are
// observed and the sweep is tried again.
func (s *Sweeper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if at, ok := s.schedule.Next(); ok {
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			s.schedule.Request(true)
		case <-due:
			s.run(ctx)
		}
	}
}

func (s *Sweeper) run(ctx context.Context) {
	run := Run{}
	start := time.Now()
	s.schedule.Begin(start)
	run.Err = s.sweep(ctx, start, &run)
	if ctx.Err() != nil {
		return // cut short on purpose: not a failure
	}
	run.Duration = time.Since(start)
	s.schedule.End(time.Now(), run.Duration, run.Err != nil)
	last := s.failure
	s.failure = ""
	if run.Err != nil {
		s.failure = run.Err.Error()
		run.Repeated = s.failure == last
	}
	s.observe(run)
}

// sweep looks at every map concerned, also if there is trouble with one.
func (s *Sweeper) sweep(ctx context.Context, start time.Time, run *Run) error {
	j := newJudge(s.take())
	var errs []error
	for i, m := range j.maps {
		first, concerned := s.concerned[m.Name]
		if !concerned || ctx.Err() != nil {
			continue
		}
		if m.Set == nil { // Nothing is in force in this family yet.
			delete(s.concerned, m.Name)
			continue
		}
		left, swept, err := s.kernel.Sweep(ctx, m.Table, m.Set, func(key, data nft.Value) bool {
			return j.keep(i, key, data, s.newest)
		})
		run.Swept += swept
		if err != nil {
			errs = append(errs, err) // It says itself which map it is about.
			continue
		}
		run.Maps = append(run.Maps, Map{m.Name, left, int(m.Set.Size)})
		switch {
		case first.IsZero():
			s.concerned[m.Name] = start
		case start.Sub(first) >= s.spread:
			delete(s.concerned, m.Name)
		}
	}
	return errors.Join(errs...)
}

// judge says what is stale by the newest program.
type judge struct {
	program *nft.Program
	maps    []ruleset.AffinityMap
}

func newJudge(p *nft.Program) *judge { return &judge{p, ruleset.AffinityMaps(p)} }

// keep is about an entry of the i-th map. Syncs go on meanwhile: an entry of an
// endpoint that is newer than the program is none to take away. One that only
// the older program allows stays for the next sweep, which is due then.
func (j *judge) keep(i int, key, data nft.Value, newest func() *nft.Program) bool {
	if j.maps[i].Keep(key, data) {
		return true
	}
	p := newest()
	if p == j.program {
		return false
	}
	*j = *newJudge(p)
	return j.maps[i].Keep(key, data)
}

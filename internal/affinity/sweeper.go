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
	"sync"
	"time"

	"nftproxy/internal/pace"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

const (
	// pause is the least time between two sweeps, in durations of the earlier
	// one: while endpoints leave all the time, sweeping takes at most a fifth
	// of a core. A sweep of empty maps takes microseconds.
	pause = 4
	// late is how long after a sweep there is another. A rule asks whether an
	// endpoint may be remembered just before it remembers it; on a CPU that
	// stands still between the two (a virtual machine's can), the entry comes
	// after the sweep, and as long as its client comes back it would stay.
	late = time.Second
)

// Kernel is where the clients are remembered.
type Kernel interface {
	// Sweep deletes the entries of a dynamic map that keep refuses and returns
	// how many. A map that is not there has none. An error names the map; the
	// end of the context is one.
	Sweep(ctx context.Context, table nft.TableID, set *nft.Set, keep func(key, data nft.Value) bool) (int, error)
}

// Run is what one sweep of all maps did.
type Run struct {
	// Swept is the number of stale entries that were removed.
	Swept int
	// Duration is the wall time that it took.
	Duration time.Duration
	// Err is why it was incomplete, or nil. It is tried again later.
	Err error
	// Repeated says that Err reads the same as the last sweep's: count it, but
	// there is no need to log it again.
	Repeated bool
}

// Sweeper removes stale entries after syncs, beside them. Stale entries come
// only of an endpoint that leaves the program: it may be remembered until the
// rules without it are in force, and no longer. So a sweep after that is enough,
// and syncs that only add cost nothing.
type Sweeper struct {
	kernel   Kernel
	observe  func(Run)
	schedule pace.Schedule
	failure  string // the last sweep's error, or empty

	wake chan struct{} // holds one token while something is stale

	mu sync.Mutex
	// latest is the program in force.
	latest *nft.Program
}

// NewSweeper makes a Sweeper. observe is called by Run, after each sweep.
func NewSweeper(k Kernel, observe func(Run)) *Sweeper {
	return &Sweeper{
		kernel: k, observe: observe, wake: make(chan struct{}, 1),
		schedule: pace.Schedule{Pause: pause, Late: late},
	}
}

// Notify says which program is in force after a sync; unknown says that the
// kernel's maps may hold entries from before that the last program told of did
// not allow. Call it after each sync, in order. It costs what has changed, and
// never blocks.
func (s *Sweeper) Notify(inForce *nft.Program, unknown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale := unknown || s.latest != nil && ruleset.AffinityShrunk(s.latest, inForce)
	s.latest = inForce
	if !stale {
		return
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
	start := time.Now()
	s.schedule.Begin(start)
	swept, err := s.sweep(ctx)
	if ctx.Err() != nil {
		return // cut short on purpose: not a failure
	}
	run := Run{Swept: swept, Duration: time.Since(start), Err: err}
	s.schedule.End(time.Now(), run.Duration, err != nil)
	last := s.failure
	s.failure = ""
	if err != nil {
		s.failure = err.Error()
		run.Repeated = s.failure == last
	}
	s.observe(run)
}

// sweep looks at every map, also if there is trouble with one.
func (s *Sweeper) sweep(ctx context.Context) (int, error) {
	j := newJudge(s.newest())
	swept := 0
	var errs []error
	for i, m := range j.maps {
		if ctx.Err() != nil {
			break
		}
		if m.Set == nil {
			continue // Nothing is in force in this family yet.
		}
		n, err := s.kernel.Sweep(ctx, m.Table, m.Set, func(key, data nft.Value) bool {
			return j.keep(i, key, data, s.newest)
		})
		swept += n
		errs = append(errs, err) // It says itself which map it is about.
	}
	return swept, errors.Join(errs...)
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

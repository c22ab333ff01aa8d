// Package affinity ensures that no client stays with an endpoint that its Service no longer uses. With session affinity
// the kernel's rules remember clients by themselves. The Sweeper removes the clients of an endpoint soon after it has
// left the program. For each Service port that costs time that grows with its remembered clients.
//
// The package decides neither which endpoints may be remembered (nft/ruleset does)
// nor how clients are found and deleted (nft/kernel does).
package affinity

import (
	"context"
	"sync"
	"time"

	"nftproxy/model/pace"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// pause is the least time between two sweeps of a map, in durations of the earlier one. A sweep also waits after the
// sweep of another map: for pause times the duration of its own map's last sweep, or until all earlier sweeps have been
// rested for. So sweeping takes at most half a core, and a map with short sweeps waits for one long sweep at most.
// Until a sweep has ended, clients are sent to endpoints that do not answer.
const pause = 1

// These bound what sweeps take in the long run: one part in longRest of a core, and a burst of CPU time beyond that,
// which is for rolling updates. Once the burst is used up, a sweep waits longRest-1 times as long as it will take. So
// the small map of one Service does not wait for what the large ones of others have spent.
const (
	longRest = 20
	burst    = 12 * time.Second
)

// patience is how long clients may be sent to an endpoint that has gone, since their sweep waits for CPU time. Then the
// map is emptied: that takes a tenth of a sweep's time or less, and clients that lose their endpoint are better off
// than those that get no answer.
const patience = time.Second

// lateWaits are the waits before further sweeps after one that had a reason. One sweep can miss clients in two ways.
// The kernel finds its place in a map again by counting, so it leaves out elements while it removes others, and once a
// second it removes all that have expired: of 40,000 clients 3 to 12 % were missed then. And a rule checks that an
// endpoint may be remembered just before it remembers it: if the CPU stands still between the two, as a virtual
// machine's can, the client comes after the sweep. The waits are no multiples of that second or of each other.
func lateWaits() []time.Duration {
	return []time.Duration{700 * time.Millisecond, 2300 * time.Millisecond, 7 * time.Second}
}

// Kernel has the maps that remember clients.
type Kernel interface {
	// Sweep deletes the clients in a dynamic map for which keep returns false. It returns how many clients are left and
	// how many it deleted. A missing map has none. An error names the map; the end of the context is an error too.
	Sweep(ctx context.Context, table nft.TableID, set *nft.Set, keep func(key, data nft.Value) bool) (left, swept int,
		err error)
	// Forget deletes all clients in a dynamic map, at a small part of the cost of a sweep.
	Forget(table nft.TableID, set *nft.Set) error
}

// Run is the result of one sweep of a Service port's clients.
type Run struct {
	Name ruleset.AffinityName
	// Swept is the number of stale clients that were removed.
	Swept int
	// Clients is the number of clients that are left, at most Limit.
	Clients, Limit int
	// Forgotten says that all clients were removed, without a look at them: endpoints go
	// faster than there is time for sweeps. Swept and Clients are 0 then.
	Forgotten bool
	// Duration is the wall time of the sweep.
	Duration time.Duration
	// Err is why the sweep was incomplete, or nil. The Sweeper repeats such a sweep later.
	Err error
	// Repeated says that the last sweep of some map failed too. Such a failure
	// counts, but needs no further line in the log.
	Repeated bool
}

// Sweeper removes stale clients after syncs, in a goroutine of its own. The rules may remember an endpoint until the
// program without it is in force, and no longer. So it is enough to sweep after that, and only the maps that may have
// the endpoint. Syncs that only add endpoints cost nothing.
//
// From the transaction to the end of the sweep, remembered clients that come again are sent to the endpoint that has
// gone. That takes 30 ms with 10,000 clients of the Service port, and 0.2 to 1 s with 65,535, which fill its map
// (BenchmarkStaleWindow). A sweep waits for one of another Service's clients that is under way. Of several maps that
// are due, the one with the shortest last sweep goes first.
type Sweeper struct {
	kernel  Kernel
	cpu     func() time.Duration
	observe func(Run)
	queue   *queue
	failing map[ruleset.AffinityName]bool
	// ended is when the last sweep of any map ended.
	ended time.Time
	// rested is when all sweeps have been rested for, so that they take half a core.
	rested time.Time
	budget pace.Budget

	wake chan struct{} // holds one token while shrunk has maps

	mu     sync.Mutex
	latest *nft.Program
	// shrunk are the maps that may have become stale and that Run has not queued yet.
	shrunk map[ruleset.AffinityName]bool
}

// NewSweeper makes a Sweeper. cpu returns the CPU time of the process so far. Run calls observe after each sweep.
func NewSweeper(k Kernel, cpu func() time.Duration, observe func(Run)) *Sweeper {
	return &Sweeper{
		kernel: k, cpu: cpu, observe: observe, wake: make(chan struct{}, 1), budget: pace.Budget{Rest: longRest,
			Burst: burst},
		queue: newQueue(), failing: map[ruleset.AffinityName]bool{}, shrunk: map[ruleset.AffinityName]bool{},
	}
}

// Notify says which program is in force after a sync. unknown says that the kernel's maps may hold clients that the
// program of the last Notify did not allow. Call it after each sync, in order. Its cost grows with the change, and it
// never blocks.
func (s *Sweeper) Notify(inForce *nft.Program, unknown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case unknown:
		for _, m := range ruleset.AffinityMaps(inForce) {
			s.shrunk[m.Name] = true
		}
	case s.latest != nil:
		for _, name := range ruleset.AffinityShrunk(s.latest, inForce) {
			s.shrunk[name] = true
		}
	}
	s.latest = inForce
	if len(s.shrunk) == 0 {
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

// queueShrunk queues the maps that may have become stale since its last call.
func (s *Sweeper) queueShrunk() {
	s.mu.Lock()
	shrunk := s.shrunk
	s.shrunk = map[ruleset.AffinityName]bool{}
	s.mu.Unlock()
	for name := range shrunk {
		s.queue.request(name)
	}
}

// Run sweeps until the context ends, and then returns nil. The end of the context also ends a sweep under way. After an
// error of the kernel Run calls observe and repeats the sweep later.
func (s *Sweeper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.wake: // before a sweep that is due: one sweep may then do for both
			s.queueShrunk()
		default:
		}
		var due <-chan time.Time
		now := time.Now()
		next, at := s.next(now)
		if next != nil {
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			s.queueShrunk()
		case <-due:
			s.sweepMap(ctx, next)
		}
	}
}

// next is the map to be swept next, and when; nil for none. Where sweeps have taken too much
// it is the map that may be swept or emptied first.
func (s *Sweeper) next(now time.Time) (*waitingMap, time.Time) {
	next, at := s.queue.next(now, !now.Before(s.rested))
	if next == nil {
		return nil, at
	}
	if now.Before(s.budget.Ready()) {
		for _, m := range s.queue.ready.list {
			if s.allowed(now, m).Before(s.allowed(now, next)) {
				next = m
			}
		}
	}
	return next, pace.Later(at, s.allowed(now, next))
}

// allowed is when the sweep of a map may begin. It waits as long as it will take, or until
// all earlier sweeps have been rested for; and longer where sweeps have taken too much, but
// not beyond the time at which the map is to be emptied. To empty it costs CPU time, too.
func (s *Sweeper) allowed(now time.Time, m *waitingMap) time.Time {
	at := pace.Earlier(s.ended.Add(pause*m.took), s.rested)
	ready := s.budget.Ready()
	if !now.Before(ready) {
		return at
	}
	at = pace.Later(at, pace.Earlier(s.ended.Add((longRest-1)*m.cost), ready))
	if m.asked {
		at = pace.Earlier(at, pace.Later(s.ended.Add((longRest-1)*m.forgetCost), m.askedAt.Add(patience)))
	}
	return at
}

// mustForget says whether the map is to be emptied, since there is no time for its sweep.
func (s *Sweeper) mustForget(now time.Time, m *waitingMap) bool {
	ready := s.budget.Ready()
	return m.asked && now.Before(ready) && now.Before(pace.Earlier(s.ended.Add((longRest-1)*m.cost), ready))
}

// sweepMap sweeps one map. A map that has left the program needs no sweep: it gets one when it comes back.
func (s *Sweeper) sweepMap(ctx context.Context, m *waitingMap) {
	program := s.newest()
	current, ok := ruleset.AffinityOf(program, m.name)
	if !ok {
		s.queue.remove(m)
		delete(s.failing, m.name)
		return
	}
	start, spent := time.Now(), s.cpu()
	run := Run{Name: m.name, Limit: current.Set.Limit(), Forgotten: s.mustForget(start, m)}
	s.queue.begin(m, start)
	var err error
	if run.Forgotten {
		err = s.kernel.Forget(current.Table, current.Set)
	} else {
		run.Clients, run.Swept, err = s.kernel.Sweep(ctx, current.Table, current.Set, s.keeper(program, current))
	}
	if ctx.Err() != nil {
		return // This end of the sweep is no failure.
	}
	s.ended = time.Now()
	s.rested = pace.Later(s.rested, start).Add((1 + pause) * s.ended.Sub(start))
	run.Duration, run.Err = s.ended.Sub(start), err
	cost := min(run.Duration, s.cpu()-spent)
	s.budget.Spend(s.ended, cost)
	if run.Forgotten {
		m.forgetCost = cost // The map may fill again: assume that its next sweep costs as much as its last one.
		s.queue.end(m, s.ended, m.took, err != nil)
	} else {
		m.cost = cost
		s.queue.end(m, s.ended, run.Duration, err != nil)
	}
	if err == nil {
		delete(s.failing, m.name)
	} else {
		run.Repeated = len(s.failing) > 0
		s.failing[m.name] = true
	}
	s.observe(run)
}

// keeper returns a function that says whether one client stays in the map. Syncs go on during a sweep: a client stays
// if a newer program allows its endpoint, and, until the next sweep, which is due then, if only the older one does.
func (s *Sweeper) keeper(p *nft.Program, current ruleset.AffinityMap) func(key, data nft.Value) bool {
	return func(key, data nft.Value) bool {
		if current.Keep(key, data) {
			return true
		}
		newest := s.newest()
		if newest == p {
			return false
		}
		p = newest
		m, ok := ruleset.AffinityOf(p, current.Name)
		if ok {
			current = m
		}
		return ok && m.Keep(key, data)
	}
}

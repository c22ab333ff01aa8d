package proxy

import (
	"time"

	"golang.org/x/time/rate"

	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// reason is why the loop makes a sync.
type reason uint8

const (
	nothing reason = iota
	// work: a newer snapshot, an idle chain, or something to try again.
	work
	// workInDoubt: the same, while another program may have changed our tables. They are read first.
	workInDoubt
	// doubt: another program may have changed our tables.
	doubt
	// loss: another program has removed a table, a chain or a set of ours.
	loss
)

// restsFrom sets the burst of syncs without a rest between them: as many as fit into restsFrom at one per
// MinSyncPeriod. So changes that on average come somewhat slower than MinSyncPeriod never wait, even if they are
// irregular. A rest delays the change, and wakes the process once more.
const restsFrom = 100 * time.Millisecond

// These bound the CPU time of syncs in the long run: one part in syncRest of a core, and a burst beyond that, for first
// loads and rollouts. Most changes cost 0.1 ms and never reach it, but some make the kernel walk through all Services
// (docs/internals/data-path.md, 'A scaled Service').
const (
	syncRest  = 10
	syncBurst = 10 * time.Second
)

// These bound the CPU time of the syncs for the objects of one namespace, so that nobody else pays for them: half of
// what all have. Most namespaces never reach the burst.
const (
	namespaceRest  = 2 * syncRest
	namespaceBurst = 2 * time.Second
	// longestHold is the longest time that a change waits because of its namespace: an endpoint that has gone is no longer
	// used then.
	longestHold = 10 * time.Second
)

// NewAccounts returns the accounts of namespaces.
func NewAccounts() *pace.Accounts {
	return &pace.Accounts{Rest: namespaceRest, Burst: namespaceBurst, Longest: longestHold}
}

// perWritten is how many elements can be compiled and compared with the last ones while one is written.
const perWritten = 16

// shares says which share of a sync is for each namespace's objects: by the elements that were written, and by
// those of all parts that were compiled since the last program, which may have written nothing. Parts that are no
// Service's have none.
func shares(s *Sync, last *nft.Program) map[string]int {
	sums := map[string]int{}
	add := func(part string, n int) {
		if namespace, base := service.Name(part).Split(); base != "" {
			sums[namespace] += n
		}
	}
	for part, written := range s.Parts {
		add(part, perWritten*written)
	}
	for _, f := range nft.Families() {
		var before treap.Map[string, *nft.Part]
		if last != nil {
			before = last.Table(f).Parts
		}
		for c := range treap.Diff(before, s.Program.Table(f).Parts) {
			add(c.Key, 1+max(c.Old.Len(), c.New.Len()))
		}
	}
	return sums
}

// These bound what other programs cost that change the ruleset: in the long run one part in so many of the time goes
// into syncs that read our tables for it, and a burst beyond that after a rest. Reads for a mere doubt and repairs of a
// loss have a budget each: a busy ruleset must not keep the loop from restoring a table that goes for the second time.
// A flush is restored some thirty times in a row at 10,000 Services.
const (
	checkRest  = 120
	doubtBurst = 2 * time.Second
	lossBurst  = 10 * time.Second
)

// These bound how often the loop repairs tables that another program changes again and again, such as a proxy with
// other options. The burst is for another proxy in its last seconds. Beyond it the loop waits for one to two periods
// after each repair: two proxies do not wait for the same time, so each of them is in force for a while, and their
// writes do not meet.
const (
	repairBurst  = 8
	repairPeriod = 15 * time.Second
)

// pacing decides when the loop may make a sync, and for which reasons.
type pacing struct {
	period time.Duration
	bucket *rate.Limiter // one token for each sync that writes; nil without a period
	// cpu is the CPU time of all syncs. The last one ended at ended, and took cost.
	cpu   pace.Budget
	ended time.Time
	cost  time.Duration
	// doubts and losses are the time of syncs for these reasons.
	doubts, losses pace.Budget
	repairs        *rate.Limiter
	jitter         func() float64
	// repairAfter is when the loop may repair again.
	repairAfter time.Time
}

func newPacing(jitter func() float64) pacing {
	return pacing{
		cpu:     pace.Budget{Rest: syncRest, Burst: syncBurst},
		doubts:  pace.Budget{Rest: checkRest, Burst: doubtBurst},
		losses:  pace.Budget{Rest: checkRest, Burst: lossBurst},
		repairs: rate.NewLimiter(rate.Every(repairPeriod), repairBurst), jitter: jitter,
	}
}

// follow takes the period of the configuration, which may have changed.
func (p *pacing) follow(period time.Duration) {
	if period != p.period {
		p.period = period
		p.bucket = nil
		if period > 0 {
			p.bucket = rate.NewLimiter(rate.Every(period), int(max(1, restsFrom/period)))
		}
	}
}

// left returns how long the next sync has to wait.
func (p *pacing) left(now time.Time) time.Duration {
	left := p.long(now)
	if p.bucket != nil {
		left = max(left, time.Duration((1-p.bucket.TokensAt(now))*float64(p.period)))
	}
	return left
}

// long returns how long the next sync has to wait because syncs have taken too much CPU time: until the last sync and
// the rest after it are within the share, whatever earlier syncs have cost.
func (p *pacing) long(now time.Time) time.Duration {
	ready := p.cpu.Ready()
	if !now.Before(ready) {
		return 0
	}
	return max(0, min(ready.Sub(now), p.ended.Add((syncRest-1)*p.cost).Sub(now)))
}

// may says whether the loop may repair our tables, and for which reasons it may read them.
func (p *pacing) may(now time.Time) (repair, forDoubt, forLoss bool) {
	return !now.Before(p.repairAfter), !now.Before(p.doubts.Ready()), !now.Before(p.losses.Ready())
}

// spent notes what a sync took that ends now: all of the time, and the CPU time that counts.
func (p *pacing) spent(now time.Time, why reason, took, cpu time.Duration) {
	p.cpu.Spend(now, cpu)
	p.ended, p.cost = now, cpu
	switch why {
	case workInDoubt, doubt:
		p.doubts.Spend(now, took)
	case loss:
		p.losses.Spend(now, took)
	}
}

func (p *pacing) repaired(now time.Time) {
	if p.repairs.AllowN(now, 1); p.repairs.TokensAt(now) < 1 {
		p.repairAfter = now.Add(time.Duration((1 + p.jitter()) * float64(repairPeriod)))
	}
}

// wrote counts a sync that has ended, its observers too, and that wrote, or tried to.
func (p *pacing) wrote(now time.Time) {
	if p.bucket != nil {
		p.bucket.ReserveN(now, 1)
	}
}

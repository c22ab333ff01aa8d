package proxy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// often checks as often as DefaultConfig.
func often() proxy.Config {
	c := config()
	c.CheckPeriod = proxy.DefaultConfig().CheckPeriod
	return c
}

// repairsOf counts the repairs among the syncs from the n-th on.
func (r *rig) repairsOf(n int) (count int) {
	for _, s := range r.syncs[n:] {
		if s.Repaired() {
			count++
		}
	}
	return count
}

// TestOtherProxyRewrites: another program undoes each write of the loop, as a second proxy
// with other options does. The loop answers a few times at once, and then seldom. A change
// of a Service goes in all the same, with all that belongs to it. When the other program
// has ended, the program is in force within half a minute.
func TestOtherProxyRewrites(t *testing.T) {
	for what, undo := range map[string]func(r *rig){
		"elements": func(r *rig) { r.deleteAll("endpoints", "services") },
		"a chain": func(r *rig) {
			delete(r.kernel.model.Table(r.program().IPv4.ID()).Chains, "postrouting")
			r.kernel.generation++
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startWith(t, often(), newKernel(), services(3))
				r.publishAndWait()
				const minutes = 10
				for range minutes * 60 * 4 {
					undo(r)
					r.sleep(250 * time.Millisecond)
				}
				if n := r.repairsOf(0); n < 8+2*minutes || n > 8+4*minutes {
					t.Errorf("%d repairs in %d minutes, want 8 at once and then 2 to 4 a minute", n, minutes)
				}
				undo(r)
				r.services.Set(both("web", "10.0.0.1:80"))
				r.sleep(time.Second)
				r.publishAndWait()
				r.sleep(often().MinSyncPeriod) // the loop may just have made a repair, and then rests
				r.inForce()
				undo(r)
				r.sleep(30 * time.Second)
				r.inForce()
				before := len(r.syncs)
				r.sleep(5 * time.Minute)
				undo(r)
				r.sleep(250 * time.Millisecond)
				r.inForce()
				if n := r.repairsOf(before); n != 1 {
					t.Errorf("after a rest: %d repairs, want one at once", n)
				}
			})
		})
	}
}

// TestFlushedEachSecond: a table that goes again and again comes back at once each time, as
// long as that is cheap.
func TestFlushedEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, often(), newKernel(), services(3))
		r.publishAndWait()
		for range 100 {
			_ = strict.Apply(r.kernel.model, nft.Batch{Ops: []nft.Op{nft.DeleteTable{Table: r.program().IPv4.ID()},
				nft.DeleteTable{Table: r.program().IPv6.ID()}}})
			r.kernel.generation++
			r.sleep(time.Second)
			r.inForce()
		}
	})
}

// TestOldProxyGoes: in a rolling update, the old proxy rewrites the tables in its last
// seconds. The rules are then those of the new one at once, and stay.
func TestOldProxyGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, often(), newKernel(), services(3))
		r.publishAndWait()
		for range 5 {
			r.deleteAll("endpoints", "services")
			r.sleep(250 * time.Millisecond)
			r.inForce()
		}
		r.sleep(time.Minute)
		r.inForce()
		r.wantSyncs(6)
	})
}

package proxy_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

func checking() proxy.Config {
	c := config()
	c.CheckPeriod = time.Second
	return c
}

// TestTamperingRepaired: another program deletes elements of our tables. The loop
// restores them within a period, although no Service changes.
func TestTamperingRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, checking(), newKernel(), services(3))
		r.publishAndWait()
		r.deleteAll("endpoints", "services")
		r.sleep(time.Second)
		r.inForce()
		r.wantSyncs(2)
		if s := r.last(); !s.Check || s.Written == 0 || s.Err != nil || s.Latency() != 0 || !s.Adopted {
			t.Errorf("check %t, written %d, err %v, latency %v, adopted %t", s.Check, s.Written, s.Err, s.Latency(), s.Adopted)
		}
		r.sleep(time.Hour)
		r.wantSyncs(2)
	})
}

// TestNothingToRepair: another program has written, but not to our tables.
func TestNothingToRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, checking(), newKernel(), services(3))
		r.publishAndWait()
		r.kernel.generation++
		r.sleep(time.Second)
		r.wantSyncs(2)
		if s := r.last(); !s.Check || s.Written > 0 || s.Adopted || s.Applied == nil {
			t.Errorf("check %t, written %d, adopted %t, applied %v", s.Check, s.Written, s.Adopted, s.Applied)
		}
	})
}

// TestOwnWritesAreNoTampering: the loop does not read again after its own writes.
func TestOwnWritesAreNoTampering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, checking(), newKernel(), services(3))
		for n := range 5 {
			r.services.Set(both("web", "10.0.0.1:80", "10.0.0.2:80")) // Another change, then the same again.
			r.services.Delete("default/web")
			r.services.Set(services(3 + n).Snapshot().Services.At("ns-0/svc-0"))
			r.publishAndWait()
			r.sleep(time.Minute)
		}
		if r.kernel.reads != perRead {
			t.Errorf("read %d tables, want each once", r.kernel.reads)
		}
	})
}

// TestOwnedTablesAreNotRead: writes of other programs lead to no read of owned tables.
func TestOwnedTablesAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.owned = true
		r := startWith(t, checking(), k, services(3))
		r.publishAndWait()
		for range 10 {
			k.generation++
			r.sleep(time.Second)
		}
		r.wantSyncs(1)
		if k.reads != perRead {
			t.Errorf("read %d tables, want each once", k.reads)
		}
	})
}

// TestOwnedTablesAreCheckedLess: a loop at rest asks for the generation less often while
// no other program can change its tables, and as often as before once one could.
func TestOwnedTablesAreCheckedLess(t *testing.T) {
	for _, owned := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			k := newKernel()
			k.owned = owned
			c := checking()
			c.OwnedCheckPeriod = 4 * c.CheckPeriod
			r := startWith(t, c, k, services(3))
			r.publishAndWait()
			during := func(d time.Duration) int {
				before := k.asked
				r.sleep(d)
				return k.asked - before
			}
			want := 100
			if owned {
				want = 25
				r.sleep(c.CheckPeriod) // The first check finds the owner.
			}
			if got := during(100 * c.CheckPeriod); got != want {
				t.Errorf("owned %t: %d checks in 100 periods, want %d", owned, got, want)
			}
			if !owned {
				return
			}
			k.owned = false
			k.generation++
			r.sleep(2 * c.OwnedCheckPeriod) // One check reads the tables, and the next finds no owner.
			if got := during(100 * c.CheckPeriod); got != 100 {
				t.Errorf("without an owner again: %d checks in 100 periods, want 100", got)
			}
		})
	}
}

// TestBusyRuleset: another program writes all the time. Reading our tables takes a
// hundredth of the time at most, however long one read takes, also where Services change meanwhile.
func TestBusyRuleset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.readTakes = 300 * time.Millisecond
		r := startWith(t, checking(), k, services(3))
		r.publish()
		const minutes = 60
		for n := range minutes * 60 {
			r.sleep(time.Second)
			k.generation++
			if n%3 == 0 {
				r.services.Set(both("web", fmt.Sprintf("10.0.0.1:%d", 80+n)))
				r.publishAndWait()
			}
		}
		if spent := time.Duration(k.reads) * k.readTakes; spent > minutes*time.Minute/100 || k.reads < 10 {
			t.Errorf("%d reads, %v of %d minutes", k.reads, spent, minutes)
		}
	})
}

// busyRuleset starts a loop on tables that take long to read, and has another program
// write until the loop may read no more.
func busyRuleset(t *testing.T) *rig {
	t.Helper()
	k := newKernel()
	k.readTakes = 300 * time.Millisecond
	r := startWith(t, checking(), k, services(3))
	r.publish()
	for range 60 {
		r.sleep(time.Second)
		k.generation++
	}
	reads := k.reads
	r.sleep(2 * time.Second)
	if k.reads != reads {
		t.Fatal("the loop still reads after each change")
	}
	return r
}

// TestLossBesideABusyRuleset: another program writes all the time, so the loop may not
// read our tables. It restores a table, chain or set that goes all the same, each time.
func TestLossBesideABusyRuleset(t *testing.T) {
	for what, remove := range map[string]func(id nft.TableID, m *nft.Model){
		"table": func(id nft.TableID, m *nft.Model) {
			_ = strict.Apply(m, nft.Batch{Ops: []nft.Op{nft.DeleteTable{Table: id}}})
		},
		"chain": func(id nft.TableID, m *nft.Model) { delete(m.Table(id).Chains, "postrouting") },
		"set":   func(id nft.TableID, m *nft.Model) { delete(m.Table(id).Sets, "hairpin") },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := busyRuleset(t)
				for range 5 {
					remove(r.program().IPv4.ID(), r.kernel.model)
					r.kernel.generation++
					r.sleep(2 * time.Second)
					r.inForce()
				}
			})
		})
	}
}

// TestTableRemovedAgainAndAgain: the repair of a table that another program removes
// each second takes a small share of the time, too.
func TestTableRemovedAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := busyRuleset(t)
		const minutes = 60
		reads := r.kernel.reads
		for range minutes * 60 {
			_ = strict.Apply(r.kernel.model, nft.Batch{Ops: []nft.Op{nft.DeleteTable{Table: r.program().IPv4.ID()}}})
			r.kernel.generation++
			r.sleep(time.Second)
		}
		if spent := time.Duration(r.kernel.reads-reads) * r.kernel.readTakes; spent > minutes*time.Minute/50 {
			t.Errorf("%v of %d minutes", spent, minutes)
		}
		r.sleep(5 * time.Minute)
		r.inForce()
	})
}

// TestRepairsInARow: another program changes our tables now and then. The loop repairs each
// change within a period, also where one read takes long.
func TestRepairsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.readTakes = 100 * time.Millisecond
		r := startWith(t, checking(), k, services(3))
		r.publishAndWait()
		r.sleep(time.Second)
		for range 20 {
			r.sleep(time.Minute)
			r.deleteAll("endpoints", "services")
			r.sleep(checking().CheckPeriod + perRead*k.readTakes)
			r.inForce()
		}
	})
}

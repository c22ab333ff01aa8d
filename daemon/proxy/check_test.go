package proxy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
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

// TestBusyRuleset: another program writes all the time. Reading our tables takes a
// small share of the time, however long one read takes.
func TestBusyRuleset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.readTakes = 300 * time.Millisecond
		r := startWith(t, checking(), k, services(3))
		r.publish()
		const minutes = 10
		for range minutes * 60 {
			r.sleep(time.Second)
			k.generation++
		}
		if spent := time.Duration(k.reads) * k.readTakes; spent > minutes*time.Minute/45 || k.reads < 10 {
			t.Errorf("%d reads, %v of %d minutes", k.reads, spent, minutes)
		}
	})
}

package proxy_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/test/gen"
)

// TestQuarantineEnds: an unchanged part that was refused is in force soon after the
// kernel accepts it. The loop does not read the tables for that.
func TestQuarantineEnds(t *testing.T) {
	for name, refused := range map[string]time.Duration{"a moment": time.Second, "an hour": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, newKernel(), services(4))
				r.kernel.refuse = refuseParts(errRefused, "ns-1/svc-1", "ns-2/svc-2")
				r.publishAndWait()
				r.sleep(refused)
				r.inForce("ns-1/svc-1", "ns-2/svc-2")
				reads := r.kernel.reads
				r.kernel.refuse = refuseParts(errRefused, "ns-2/svc-2")
				r.sleep(min(4*refused, 5*time.Minute)) // The wait at most doubles, up to 5 minutes.
				r.inForce("ns-2/svc-2")
				if s := r.last(); s.Err != nil || len(s.Quarantined) != 1 || s.Quarantined["ns-2/svc-2"] == nil {
					t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
				}
				if r.kernel.reads > reads {
					t.Errorf("read %d tables", r.kernel.reads-reads)
				}
			})
		})
	}
}

// TestRetryHoldsUpNobody: the kernel refuses some parts for good. A change of another
// part still goes in at once, in one batch. A change of a refused part is tried in
// a batch of its own.
func TestRetryHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(4))
		bad := []string{"ns-1/svc-1", "ns-2/svc-2"}
		r.kernel.refuse = refuseParts(errRefused, bad...)
		r.publishAndWait()
		r.sleep(time.Hour)
		reads := r.kernel.reads
		for n := range 20 {
			r.services.Set(gen.UniformService(1, 5+n%2)) // The kernel refuses this one again.
			r.services.Set(gen.UniformService(3, 5+n%2))
			batches, refused, changed := len(r.kernel.applied), r.kernel.refused, time.Now()
			r.publishAndWait()
			r.inForce(bad...)
			if n := len(r.kernel.applied) - batches; n != 1 || !r.kernel.applied[batches].at.Equal(changed) {
				t.Errorf("%d batches, the first at %v, want one at %v", n, r.kernel.applied[batches].at, changed)
			}
			if n := r.kernel.refused - refused; n != 1 && n != 2 { // The other part may be due.
				t.Errorf("%d refused batches for a change", n)
			}
			r.sleep(time.Second)
		}
		if r.kernel.reads > reads {
			t.Errorf("read %d tables", r.kernel.reads-reads)
		}
	})
}

// TestManyRefused: however many parts are refused, the retries of a sync are bounded.
// Every part is tried in the end.
func TestManyRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		b := snapshots.NewBuilder(gen.PlainNode())
		var bad []string
		for i := range n {
			s := gen.UniformService(i, 1)
			b.Set(s)
			if i%2 == 0 {
				bad = append(bad, string(s.Name))
			}
		}
		r := start(t, newKernel(), b)
		r.kernel.refuse = refuseParts(errRefused, bad...)
		r.publishAndWait()
		r.inForce(bad...)
		// From now on the kernel names no part.
		r.kernel.refuse = func(b nft.Batch) error {
			if err := refuseParts(errRefused, bad[0], bad[50])(b); err != nil {
				return errRefused
			}
			return nil
		}
		syncs := len(r.syncs)
		refused := r.kernel.refused
		r.sleep(time.Minute)
		r.inForce(bad[0], bad[50])
		if tries, syncs := r.kernel.refused-refused, len(r.syncs)-syncs; tries > 16*syncs || syncs > 200 {
			t.Errorf("%d refused batches in %d syncs", tries, syncs)
		}
	})
}

// TestFailedReadWithIdleChain: after a sync that fails the loop waits for RetryPeriod,
// also while an idle chain is due to be removed.
func TestFailedReadWithIdleChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		r := startWith(t, checking(), k, services(3))
		r.publishAndWait()
		r.sleep(time.Second)
		r.services.Set(gen.UniformService(2, 7))
		r.publishAndWait()
		r.sleep(time.Second)
		r.services.Set(gen.UniformService(2, 3))
		r.publishAndWait() // The chain endpoints-7 is idle from now on.
		k.handOver()
		k.readErr = syscall.EIO
		k.generation++
		r.sleep(nft.IdleLife + time.Second)
		syncs := len(r.syncs)
		const minutes = 10
		r.sleep(minutes * time.Minute)
		if n, want := len(r.syncs)-syncs, int(minutes*time.Minute/config().RetryPeriod); n > want+1 {
			t.Errorf("%d syncs in %d minutes, want %d", n, minutes, want)
		}
		k.readErr = nil
		r.sleep(config().RetryPeriod)
		r.inForce()
	})
}

// TestInnocent: another program changes our tables between the read and the write. No
// part is to blame, and the wanted program is in force after the same sync.
func TestInnocent(t *testing.T) {
	for name, edit := range map[string]func(r *rig, e nft.OwnedElement){
		"element added": func(r *rig, e nft.OwnedElement) {
			e.Data, e.Verdict = e.Data[:0], nft.Verdict{Code: nft.Drop}
			r.foreign(nft.AddElements{Table: r.program().IPv4.ID(), Set: r.program().IPv4.Set("services"),
				Elements: []nft.OwnedElement{e}})
		},
		"elements deleted": func(r *rig, _ nft.OwnedElement) { r.deleteAll("services") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKernel()
				k.elementErrors = true
				r := start(t, k, services(3))
				r.publishAndWait()
				r.sleep(time.Second)
				var next nft.OwnedElement
				for _, e := range r.programWith(gen.UniformService(5, 3)).IPv4.Parts.At("ns-5/svc-5").Elements {
					if e.Set == "services" {
						next = nft.OwnedElement{Element: e}
					}
				}
				r.deleteAll("endpoints") // The next write fails and leads to a read.
				k.afterRead = func() {
					k.afterRead = nil
					edit(r, next)
				}
				r.services.Set(gen.UniformService(0, 2))
				r.services.Set(gen.UniformService(5, 3))
				r.services.Delete("ns-1/svc-1")
				r.publishAndWait()
				if s := r.last(); s.Err != nil || len(s.Quarantined) > 0 {
					t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
				}
				r.inForce()
			})
		})
	}
}

// TestGuiltyBesideAnother: a part that the kernel refuses each time is left out, also
// while another program writes to the ruleset all the time.
func TestGuiltyBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.afterRead = func() { k.generation++ }
		r := start(t, k, services(4))
		k.refuse = refuseParts(errRefused, "ns-1/svc-1")
		r.publishAndWait()
		r.inForce("ns-1/svc-1")
		if s := r.last(); s.Err != nil || len(s.Quarantined) != 1 {
			t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
		}
		if r.kernel.reads > 10 {
			t.Errorf("read %d tables", r.kernel.reads)
		}
	})
}

// TestBatchTooLarge: a batch that is too large for the kernel goes in part by part, in
// the same sync. A part that is too large by itself keeps no other part out.
func TestBatchTooLarge(t *testing.T) {
	for _, giant := range []int{0, 5000} {
		t.Run(fmt.Sprintf("giant of %d", giant), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, except := services(45), []string(nil)
				if giant > 0 {
					var pods []string
					for i := range giant {
						pods = append(pods, fmt.Sprintf("10.1.%d.%d:80", i/250, 1+i%250))
					}
					b.Set(both("giant", pods...))
					except = []string{"default/giant"}
				}
				r := start(t, newKernel(), b)
				r.kernel.refuse = refuseLarge(1500)
				r.publishAndWait()
				r.inForce(except...)
				r.wantSyncs(1)
				s := r.last()
				if got := slices.Sorted(maps.Keys(s.Quarantined)); !slices.Equal(got, except) || s.Err != nil {
					t.Errorf("quarantined %v, want %v; err %v", got, except, s.Err)
				}
				if err := s.Quarantined["default/giant"]; giant > 0 && !errors.Is(err, syscall.ENOMEM) {
					t.Errorf("quarantined for %v", err)
				}
				r.kernel.refuse = nil
				r.sleep(time.Minute)
				r.inForce()
			})
		})
	}
}

// TestNoMemoryForAMoment: the kernel has no memory for a small batch. The sync fails,
// the tables stay, and the next sync succeeds.
func TestNoMemoryForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(4))
		r.publishAndWait()
		before := r.kernel.model.String()
		r.sleep(time.Second)
		r.kernel.refuse = always(shortError{syscall.ENOMEM})
		r.services.Set(gen.UniformService(0, 9))
		r.publishAndWait()
		if s := r.last(); !errors.Is(s.Err, syscall.ENOMEM) || len(s.Quarantined) > 0 || r.kernel.model.String() != before {
			t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
		}
		r.kernel.refuse = nil
		r.sleep(config().RetryPeriod)
		r.inForce()
	})
}

// TestHogMakesRoom: one part takes all of the memory, and small changes of other parts
// fail. After some time the large part is left out for them.
func TestHogMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := services(4)
		b.Set(gen.UniformService(9, 900))
		r := start(t, newKernel(), b)
		r.publishAndWait()
		r.sleep(time.Second)
		// The kernel has memory for as many elements as it has now.
		full := r.kernel.elements()
		r.kernel.refuse = func(b nft.Batch) error {
			after := r.kernel.elements() + added(b)
			for _, op := range b.Ops {
				if gone, ok := op.(nft.DeleteElements); ok {
					after -= len(gone.Elements)
				}
			}
			if after > full {
				return shortError{syscall.ENOMEM}
			}
			return nil
		}
		r.services.Set(gen.UniformService(5, 3))
		r.publishAndWait()
		r.sleep(10 * config().RetryPeriod)
		r.inForce("ns-9/svc-9")
		if s := r.last(); s.Err != nil || len(s.Quarantined) != 1 {
			t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
		}
		r.sleep(time.Hour)
		r.services.Set(gen.UniformService(6, 3)) // Other parts still change.
		r.publishAndWait()
		r.inForce("ns-9/svc-9")
		r.kernel.refuse = nil
		r.sleep(5 * time.Minute)
		r.inForce()
	})
}

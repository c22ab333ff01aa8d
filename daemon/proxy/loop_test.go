package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/gen"
)

// rig is a running loop on a fake kernel, and the services that it publishes.
type rig struct {
	*testing.T
	kernel   *fakeKernel
	services *snapshots.Builder
	mailbox  *service.Mailbox
	loop     *proxy.Loop
	syncs    []proxy.Sync
	stop     context.CancelFunc
	stopped  chan struct{}
}

func config() proxy.Config {
	return proxy.Config{MinSyncPeriod: 100 * time.Millisecond, RetryPeriod: 3 * time.Second}
}

func rulesetConfig() ruleset.Config {
	return ruleset.Config{
		Table: "test", Settings: service.Settings{
			ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16")},
		},
	}
}

// start runs a loop until the test ends or calls stop.
func start(t *testing.T, k *fakeKernel, services *snapshots.Builder) *rig {
	return startWith(t, config(), k, services)
}

func startWith(t *testing.T, c proxy.Config, k *fakeKernel, services *snapshots.Builder) *rig {
	return startCompiling(t, c, k, services, ruleset.NewCompiler(rulesetConfig()).Compile)
}

// startCompiling is startWith with another compiler.
func startCompiling(t *testing.T, c proxy.Config, k *fakeKernel, services *snapshots.Builder,
	compile func(service.Snapshot) *nft.Program) *rig {
	r := &rig{T: t, kernel: k, services: services, mailbox: service.NewMailbox(), stopped: make(chan struct{})}
	r.loop = proxy.New(c, k, compile, func(s proxy.Sync) {
		k.handOver()
		r.syncs = append(r.syncs, s)
	})
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = func() {
		cancel()
		<-r.stopped
	}
	t.Cleanup(r.stop)
	go func() {
		defer close(r.stopped)
		if err := r.loop.Run(ctx, r.mailbox); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	return r
}

// services makes n services of n endpoints each.
func services(n int) *snapshots.Builder {
	b := snapshots.NewBuilder(gen.PlainNode())
	for i := range n {
		b.Set(gen.UniformService(i, n))
	}
	return b
}

// both is a Service with a cluster IP of each family, so with a part in both tables.
func both(name string, endpoints ...string) *service.Service {
	var list []service.Endpoint
	for _, e := range endpoints {
		list = append(list, service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true})
	}
	p := service.Port{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}
	return &service.Service{
		Name:       service.NewName("default", name),
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.9.9"), netip.MustParseAddr("fd00:96::9")},
		Ports:      []service.Port{p},
	}
}

// publish puts a snapshot of the services into the mailbox.
func (r *rig) publish() {
	r.kernel.handOver()
	r.mailbox.Put(service.Update{Snapshot: r.services.Snapshot(), Since: time.Now()})
}

// publishAndWait also waits until the loop has nothing to do at this moment.
func (r *rig) publishAndWait() {
	r.Helper()
	r.publish()
	synctest.Wait()
}

func (r *rig) program(except ...string) *nft.Program {
	p := ruleset.Compile(rulesetConfig(), r.services.Snapshot())
	for _, name := range except {
		p.IPv4.Parts, p.IPv6.Parts = p.IPv4.Parts.Delete(name), p.IPv6.Parts.Delete(name)
	}
	return p
}

// inForce checks that the kernel has the program without the excepted parts.
func (r *rig) inForce(except ...string) {
	r.Helper()
	if diff := check.Diff(r.program(except...), r.kernel.model); diff != "" {
		r.Errorf("kernel (-want +got):\n%s", diff)
	}
}

func (r *rig) last() *proxy.Sync {
	r.Helper()
	if len(r.syncs) == 0 {
		r.Fatal("no sync")
	}
	return &r.syncs[len(r.syncs)-1]
}

func (r *rig) wantSyncs(n int) {
	r.Helper()
	if len(r.syncs) != n {
		r.Errorf("%d syncs, want %d", len(r.syncs), n)
	}
}

func (r *rig) wantBatches(n int) {
	r.Helper()
	if len(r.kernel.applied) != n {
		r.Errorf("%d batches, want %d", len(r.kernel.applied), n)
		for _, a := range r.kernel.applied {
			r.Logf("%v:\n%s", a.at, a.batch)
		}
	}
}

// sleep lets the time pass, and the loop do its work.
func (r *rig) sleep(d time.Duration) {
	r.kernel.handOver()
	time.Sleep(d)
	synctest.Wait()
}

func TestNothingBeforeFirstSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(1))
		r.sleep(time.Hour)
		r.wantSyncs(0)
		if r.kernel.owns+r.kernel.reads > 0 {
			t.Error("the kernel was touched")
		}
	})
}

func TestFirstChangeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		began := time.Now()
		r.publishAndWait()
		r.inForce()
		r.sleep(time.Minute) // After a rest the next change goes in at once too.
		r.services.Set(gen.UniformService(0, 4))
		changed := time.Now()
		r.publishAndWait()
		r.inForce()
		r.wantBatches(2)
		for i, want := range []time.Time{began, changed} {
			if s := r.syncs[i]; !s.Start.Equal(want) || !s.Since.Equal(want) || s.Err != nil || s.Latency() != 0 ||
				s.Written == 0 {
				t.Errorf("sync %d: %+v, want one at %v", i, s, want)
			}
		}
	})
}

// TestNothingWrittenNoPause: after a snapshot that changed nothing in the kernel, the
// next snapshot does not wait.
func TestNothingWrittenNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		r.publishAndWait()
		r.sleep(time.Second)
		r.publishAndWait()
		r.services.Set(gen.UniformService(0, 4))
		changed := time.Now()
		r.publishAndWait()
		r.inForce()
		r.wantSyncs(3)
		r.wantBatches(2)
		if at := r.kernel.applied[1].at; !at.Equal(changed) {
			t.Errorf("the change was written after %v, want at once", at.Sub(changed))
		}
	})
}

// TestBurst: all changes within a period are one batch, and the last snapshot counts.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(2))
		for i := range 1000 {
			r.services.Set(gen.UniformService(0, 1+i%47))
			r.publish()
			r.sleep(time.Millisecond)
		}
		r.sleep(config().MinSyncPeriod)
		r.inForce()
		batches := r.kernel.applied
		for i := 1; i < len(batches); i++ {
			if gap := batches[i].at.Sub(batches[i-1].at); gap < config().MinSyncPeriod {
				t.Errorf("batches %v apart, want at least %v", gap, config().MinSyncPeriod)
			}
		}
		if n := len(batches); n < 10 || n > 11 {
			t.Errorf("%d batches in a second, want 10 or 11", n)
		}
		for i, s := range r.syncs {
			if s.Latency() > config().MinSyncPeriod {
				t.Errorf("sync %d: a change waited for %v", i, s.Latency())
			}
		}
	})
}

// TestNoRestForIrregularChanges: changes that come as fast as the syncs may on average are written at once, also those
// that come one right after the other. Faster ones are written together, at that rate.
func TestNoRestForIrregularChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config()
		c.MinSyncPeriod = 10 * time.Millisecond
		r := startWith(t, c, newKernel(), services(2))
		change := func(i int) {
			r.services.Set(gen.UniformService(0, 1+i%47))
			r.publish()
		}
		r.publishAndWait()
		r.sleep(time.Second)
		for i := range 200 {
			change(i)
			r.sleep([]time.Duration{time.Millisecond, 3 * time.Millisecond, 26 * time.Millisecond}[i%3])
		}
		r.wantBatches(1 + 200)
		for i, s := range r.syncs {
			if s.Latency() > 0 {
				t.Errorf("sync %d: a change waited for %v", i, s.Latency())
			}
		}
		before := len(r.kernel.applied)
		for i := range 1000 {
			change(i)
			r.sleep(time.Millisecond)
		}
		r.sleep(c.MinSyncPeriod)
		r.inForce()
		if n := len(r.kernel.applied) - before; n < 100 || n > 111 {
			t.Errorf("%d batches in a second, want 100, and up to 11 more of the beginning", n)
		}
		for i, s := range r.syncs {
			if s.Latency() > c.MinSyncPeriod {
				t.Errorf("sync %d: a change waited for %v", i, s.Latency())
			}
		}
	})
}

func TestNothingChangedNothingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		r.publishAndWait()
		r.sleep(time.Second)
		r.publishAndWait()
		r.sleep(time.Hour)
		r.wantBatches(1)
		r.wantSyncs(2)
		if s := r.last(); s.Written != 0 || s.Err != nil {
			t.Errorf("second sync wrote %d objects, err %v", s.Written, s.Err)
		}
		if r.kernel.reads != perRead {
			t.Errorf("read %d tables, want each once", r.kernel.reads)
		}
	})
}

func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		r := start(t, k, services(4))
		r.publishAndWait()
		// The changes give the pools another order than a first write would.
		r.services.Set(gen.UniformService(1, 2))
		r.sleep(time.Second)
		r.publishAndWait()
		r.services.Set(gen.UniformService(1, 4))
		r.sleep(time.Minute)
		r.publishAndWait()
		r.sleep(time.Minute)
		r.stop()
		written := len(k.applied)

		again := start(t, k, r.services)
		again.publishAndWait()
		again.wantBatches(written)
		again.inForce()
		if k.owns != 2*perRead {
			t.Errorf("owned %d tables, want each once at each start", k.owns)
		}
		again.services.Delete(gen.UniformService(2, 4).Name)
		r.sleep(time.Second)
		again.publishAndWait()
		again.wantBatches(written + 1)
		again.inForce()
	})
}

func TestIdleChainsGoWithoutChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		r.publishAndWait()
		r.sleep(time.Second)
		r.services.Set(gen.UniformService(2, 7))
		r.publishAndWait()
		r.sleep(time.Second)
		r.services.Set(gen.UniformService(2, 3))
		r.publishAndWait()
		idle := []string{"ip endpoints-7"}
		if diff := cmp.Diff(idle, check.Idle(r.program(), r.kernel.model)); diff != "" {
			t.Fatalf("idle chains (-want +got):\n%s", diff)
		}
		r.sleep(nft.IdleLife - time.Millisecond)
		r.wantBatches(3)
		r.sleep(time.Millisecond)
		r.wantBatches(4)
		if left := check.Idle(r.program(), r.kernel.model); left != nil {
			t.Errorf("still there: %v", left)
		}
		if s := r.last(); !s.Since.IsZero() || s.Latency() != 0 {
			t.Errorf("removal counts as a change of %v", s.Since)
		}
		r.sleep(time.Hour)
		r.wantSyncs(4)
	})
}

func TestStopsAtOnce(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Millisecond, time.Hour} {
		t.Run(fmt.Sprint("after ", wait), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, newKernel(), services(1))
				r.publishAndWait()
				r.sleep(wait)
				asked := time.Now()
				r.stop()
				if took := time.Since(asked); took != 0 {
					t.Errorf("stopped after %v", took)
				}
				r.inForce()
			})
		})
	}
}

// TestStopWithChangeWaiting: the end of the context comes before a change of the same
// moment.
func TestStopWithChangeWaiting(t *testing.T) {
	for range 50 { // select chooses at random among ready channels.
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			k, in := newKernel(), service.NewMailbox()
			in.Put(service.Update{Snapshot: services(1).Snapshot(), Since: time.Now()})
			loop := proxy.New(config(), k, ruleset.NewCompiler(rulesetConfig()).Compile)
			if err := loop.Run(ctx, in); err != nil {
				t.Error(err)
			}
			if k.owns > 0 {
				t.Error("the loop worked after the end")
			}
		})
	}
}

func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.hang = make(chan struct{})
		r := start(t, k, services(1))
		if busy := r.loop.Busy(); !busy.IsZero() {
			t.Errorf("busy since %v before the first change", busy)
		}
		began := time.Now()
		r.publish()
		r.sleep(time.Hour)
		if busy := r.loop.Busy(); !busy.Equal(began) {
			t.Errorf("busy since %v, want %v", busy, began)
		}
		close(k.hang)
		synctest.Wait()
		if busy := r.loop.Busy(); !busy.IsZero() {
			t.Errorf("busy since %v after the sync", busy)
		}
		if got := r.last().Latency(); got != time.Hour {
			t.Errorf("latency %v, want 1h", got)
		}
	})
}

// TestBegin: the loop calls Begin in each sync before it writes.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, began := newKernel(), 0
		k.hang = make(chan struct{})
		c := config()
		c.Begin = func() { began++ }
		r := startWith(t, c, k, services(1))
		if began > 0 {
			t.Error("Begin was called before the first change")
		}
		r.publish()
		r.sleep(time.Hour)
		if began != 1 {
			t.Errorf("Begin was called %d times while the kernel has the batch, want 1", began)
		}
		r.wantSyncs(0)
		close(k.hang)
		synctest.Wait()
		r.wantSyncs(1)
	})
}

func TestRetryWithoutChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.ownErr = syscall.EPERM
		r := start(t, k, services(2))
		began := time.Now()
		r.publishAndWait()
		r.wantSyncs(1)
		if err := r.last().Err; !errors.Is(err, syscall.EPERM) {
			t.Fatalf("err %v, want EPERM", err)
		}
		r.sleep(config().RetryPeriod - time.Millisecond)
		r.wantSyncs(1)
		r.sleep(time.Millisecond)
		r.wantSyncs(2)
		k.ownErr, k.readErr = nil, syscall.EIO
		r.sleep(config().RetryPeriod)
		if err := r.last().Err; !errors.Is(err, syscall.EIO) {
			t.Fatalf("err %v, want EIO", err)
		}
		k.readErr = nil
		r.sleep(config().RetryPeriod)
		r.wantSyncs(4)
		r.inForce()
		s := r.last()
		if s.Err != nil || !s.Since.Equal(began) || s.Latency() != 3*config().RetryPeriod {
			t.Errorf("err %v, since %v, latency %v: want the change at %v in force", s.Err, s.Since, s.Latency(), began)
		}
		r.sleep(time.Hour)
		r.wantSyncs(4)
	})
}

// TestChangeInsteadOfRetry: a change does not wait for the retry. Once it is in force
// there is no retry any more.
func TestChangeInsteadOfRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.refuse = always(syscall.EPERM)
		r := start(t, k, services(2))
		began := time.Now()
		r.publishAndWait()
		r.sleep(time.Second)
		k.refuse = nil
		r.services.Set(gen.UniformService(0, 5))
		r.publishAndWait()
		r.inForce()
		if s := r.last(); !s.Since.Equal(began) {
			t.Errorf("since %v, want the oldest change that was not in force, %v", s.Since, began)
		}
		r.sleep(time.Hour)
		r.wantSyncs(2)
	})
}

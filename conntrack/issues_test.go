package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// The tests of this file have the numbers of kubernetes/kubernetes issues that users of
// kube-proxy met. Each fails if nftproxy has the fault of the issue.

// #139628: when a Service lost its last endpoint, its UDP flows stayed and went on to the
// removed pod. For a statsd client that never stopped sending, that lasted 13 hours,
// although another pod had come long before.
func TestKubernetes139628ScaleToZero(t *testing.T) {
	families(t, func(l *live) {
		statsd := func(endpoints ...string) string { return webWith("  port statsd udp 8125\n", endpoints...) }
		l.become(statsd("ONE-SILENT"), "")
		l.standBy()
		c := l.dial(l.client, l.at("CLUSTER", 8125))
		c.wantHeard("one")
		c.wantHeard("one")
		l.become(statsd(), "endpoint gone: 1")
		c.wantAnswer("refused")
		c.wantNoEntry()
		l.become(statsd("TWO-SILENT"), "")
		c.wantHeard("two")
	})
}

// #141371: when a Service was deleted, its UDP flows stayed. The next Service with the
// same address did not get the clients.
func TestKubernetes141371DeletedService(t *testing.T) {
	families(t, func(l *live) {
		cidr := "service-cidr SERVICES\n"
		l.become(cidr+web("ONE-POD"), "")
		l.standBy()
		c, outside := l.dial(l.client, l.at("CLUSTER", 53)), l.dial(l.Outside, l.at("NODE", 30053))
		c.wantAnswer("one")
		outside.wantAnswer("one")
		l.become(cidr+bystander, "service gone: 2")
		c.wantNoEntry()
		outside.wantAnswer("refused")
		c.send() // The rules drop it, and it leaves no entry.
		c.wantNoEntry()
		l.become(cidr+web("TWO-POD"), "node port: 1") // the flow that the node itself refused
		c.wantAnswer("two")
		outside.wantAnswer("two")

		// The Service is deleted and made again, and the watcher sees one step.
		l.become(cidr+web("ONE-POD"), "endpoint gone: 2")
		c.wantAnswer("one")
	})
}

// #122740: a restart of kube-proxy removed every UDP flow, also flows to endpoints that
// existed before and after.
func TestKubernetes122740RestartSparesFlows(t *testing.T) {
	families(t, func(l *live) {
		old := "service default/old created 2026-01-01T00:00:00Z\n  cluster-ip BALANCER\n  external-ip EXTERNAL\n" +
			"  port dns udp 53 node-port 30054\n    endpoint ONE-POD node ready serving\n"
		end := l.startCleaner()
		l.become(web("ONE-POD", "TWO-POD")+old, "")
		l.standBy()
		pairs, least := 40, 10
		if testing.Short() {
			pairs, least = 12, 2
		}
		var stay, leave []*conn
		for range pairs {
			for _, c := range []*conn{l.dial(l.client, l.at("CLUSTER", 53)), l.dial(l.Outside, l.at("NODE", 30053))} {
				if c.ask() == "one" {
					stay = append(stay, c)
				} else {
					leave = append(leave, c)
				}
			}
		}
		if len(stay) < least || len(leave) < least {
			t.Fatalf("%d and %d flows prove nothing", len(stay), len(leave))
		}
		orphans := []*conn{
			l.dial(l.client, l.at("BALANCER", 53)), l.dial(l.client, l.at("EXTERNAL", 53)),
			l.dial(l.Outside, l.at("NODE", 30054)),
		}
		for _, c := range orphans {
			c.wantAnswer("one")
		}
		ids := map[*conn]uint32{}
		for _, c := range stay {
			f, _ := c.entry()
			ids[c] = f.ID
		}
		end()

		// Nothing changed while no process ran.
		restart := func(services, removed string) {
			t.Helper()
			end := l.startCleaner()
			defer end()
			m, err := l.kernel.Read(ruleset.Compile(l.cfg, l.builder.Snapshot()))
			l.must(err)
			l.cleaner.ServedBefore(func() service.Snapshot {
				return ruleset.ReadBack(m, l.cfg.Table, l.builder.Snapshot().Node)
			})
			l.updates++ // The index gets the former snapshot, and then the present one.
			l.become(services, removed)
		}
		restart(web("ONE-POD", "TWO-POD")+old, "")
		// One endpoint and one Service went away meanwhile.
		restart(web("ONE-POD"), fmt.Sprintf("endpoint gone: %d, service gone: 3", len(leave)))
		for _, c := range stay {
			if f, found := c.entry(); !found || f.ID != ids[c] {
				t.Errorf("%v: entry %v, found %t, had ID %d", c.tuple(), f, found, ids[c])
			}
		}
		for _, c := range slices.Concat(stay, leave) {
			c.wantAnswer("one")
		}
		for _, c := range orphans {
			c.wantNoEntry()
		}
	})
}

// endless is a table that makes its flows when they are read.
type endless struct {
	flow    Flow
	size    int
	deleted int
}

func (e *endless) Flows(_ context.Context, filter Filter, yield func(Flow) error) error {
	f := e.flow
	for i := range e.size {
		f.ID = uint32(i)
		if !filter.Selects(&f) {
			continue
		}
		if err := yield(f); err != nil {
			return err
		}
	}
	return nil
}

func (e *endless) Size(context.Context) (entries, buckets int, err error) {
	return e.size, 1 << 18, nil
}

func (e *endless) Delete(_ context.Context, flows []Flow) (int, error) {
	e.deleted += len(flows)
	return len(flows), nil
}

// #129982: every change of a UDP endpoint took memory for the whole table at once: 12 GB
// on a node with many flows.
func TestKubernetes129982MemoryStaysBounded(t *testing.T) {
	const gone = "    endpoint 10.0.0.1:53 n1 ready serving\n"
	pass := func(size int) (bytes uint64) {
		table := &endless{flow: dnated(service.UDP, "10.0.0.9", "10.96.0.1:53", "10.0.0.1:53", SeenReply), size: size}
		b := snapshots.NewBuilder(service.Node{})
		before, after := become(b, parse(t, dnatedCluster)), become(b, parse(t, replace(gone, "")(dnatedCluster)))
		c := NewCleaner(table, NewIndex(Options{}), CleanerConfig{Observe: func(Run) {}})
		c.judge.index.Update(before)
		c.SyncDone(after, false)
		c.learn()
		if s := c.agenda.begin(time.Now(), false); s.Everything {
			t.Fatalf("scope %+v, want that of the endpoint's service", s)
		}
		var start, end runtime.MemStats
		runtime.ReadMemStats(&start)
		c.makePass(t.Context())
		runtime.ReadMemStats(&end)
		if table.deleted != size {
			t.Fatalf("%d of %d flows deleted", table.deleted, size)
		}
		return end.TotalAlloc - start.TotalAlloc
	}
	few, many := pass(1000), pass(1_000_000)
	// The total includes garbage.
	if most := few + 64<<10; many > most {
		t.Errorf("%d bytes for 1,000,000 stale flows, %d for 1,000", many, few)
	}
}

// slowDeletes is a table with many stale flows whose deletions do not end.
type slowDeletes struct {
	endless
	hang chan struct{}
}

func (s *slowDeletes) Delete(ctx context.Context, _ []Flow) (int, error) {
	select {
	case <-s.hang:
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// instantKernel takes every batch at once.
type instantKernel struct{ model *nft.Model }

func (k instantKernel) Own(nft.TableID) error { return nil }
func (k instantKernel) ReadTable(want *nft.Table) (*nft.Contents, error) {
	return k.model.Table(want.ID()), nil
}
func (k instantKernel) Apply(b nft.Batch) error               { return strict.Apply(k.model, b) }
func (k instantKernel) Spent() (encode, commit time.Duration) { return 0, 0 }
func (k instantKernel) Generation() (uint32, error)           { return 0, nil }
func (k instantKernel) Owned(nft.TableID) (bool, error)       { return true, nil }
func (k instantKernel) Objects(nft.TableID) (int, error)      { return 0, nil }

// #135323: kube-proxy deleted flows one by one within the sync, and the rules waited.
func TestKubernetes135323DeletesDoNotStallSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stale := Flow{Protocol: service.TCP, Status: DstNAT, Original: Tuple{netip.MustParseAddrPort("10.9.9.9:1"),
			netip.MustParseAddrPort("172.30.0.0:80")}}
		table := &slowDeletes{endless{flow: stale, size: 10_000}, make(chan struct{})}
		passes := 0
		cleaner := NewCleaner(table, NewIndex(Options{}), CleanerConfig{Observe: func(Run) { passes++ },
			Alone: func() bool { return true }})
		cfg := ruleset.Config{Table: ruleset.DefaultTable}
		var syncs []proxy.Sync
		loop := proxy.New(proxy.DefaultConfig(), instantKernel{nft.NewModel()}, ruleset.NewCompiler(cfg).Compile,
			func(s proxy.Sync) {
				if !s.Since.IsZero() { // Otherwise it only removed idle chains and sets.
					syncs = append(syncs, s)
				}
				cleaner.SyncDone(s.Snapshot, s.Adopted)
			})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 2)
		mailbox, b := service.NewMailbox(), snapshots.NewBuilder(gen.PlainNode())
		go func() { done <- loop.Run(ctx, mailbox) }()
		go func() { done <- cleaner.Run(ctx) }()
		const changes = 20
		for i := range changes {
			b.Set(gen.UniformService(0, i+1))
			mailbox.Put(service.Update{Snapshot: b.Snapshot(), Since: time.Now()})
			time.Sleep(time.Second) // in a bubble
		}
		synctest.Wait()
		if len(syncs) != changes || passes > 0 {
			t.Errorf("%d syncs, %d passes done, want %d and none", len(syncs), passes, changes)
		}
		for i, s := range syncs {
			if s.Err != nil || s.Latency() > proxy.DefaultConfig().MinSyncPeriod {
				t.Errorf("sync %d: waited for %v, %v", i, s.Latency(), s.Err)
			}
		}
		close(table.hang)
		time.Sleep(time.Minute)
		synctest.Wait()
		if passes == 0 || cleaner.judge.index.snapshot.Services != b.Snapshot().Services {
			t.Errorf("%d passes, and the index did not follow to the latest snapshot", passes)
		}
		stop()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

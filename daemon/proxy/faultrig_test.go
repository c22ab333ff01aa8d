package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/lib/netlinkfault"
	"nftproxy/test/lib/testnet"
)

// faultRig is a real kernel whose answers go wrong on command. The loop that works on it has a
// clock of its own: retries and idle times take no time.
type faultRig struct {
	injector *netlinkfault.Injector
	// conn is the one with faults. other has none, and owns nothing.
	conn, other *kernel.Conn
	ns          *testnet.Namespace
}

func newFaultRig(t *testing.T) *faultRig {
	r := &faultRig{injector: netlinkfault.New(netlinkfault.None), ns: testnet.NamespaceForTest(t, "faults")}
	for c, config := range map[**kernel.Conn]kernel.Config{
		&r.conn:  {NetNS: r.ns.Fd(), Syscalls: func() nfnetlink.Syscalls { return r.injector.Wire() }},
		&r.other: {NetNS: r.ns.Fd()},
	} {
		var err error
		if *c, err = kernel.Open(config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*c).Close() })
	}
	return r
}

// faultCase is what a loop does while faults come.
type faultCase struct {
	name string
	// before writes tables that are there when the loop starts; nil for none.
	before func(t *testing.T, r *faultRig)
	// earlier, if any, is in force before the faults begin. wanted is published with them.
	earlier, wanted *service.Snapshot
	config          ruleset.Config
	// changes are published later, one after the other, while the faults go on.
	changes []service.Snapshot
	// faults is how long they go on, and settle how long the loop runs after that.
	faults, settle time.Duration
}

// faultRun is how the loop came through.
type faultRun struct {
	// syncs are those since the faults began.
	syncs []proxy.Sync
	// recovered is when the first sync ended after the last one that failed or left parts out, from
	// the begin of the faults; 0 if none did.
	recovered time.Duration
	// leftOut are all parts that some sync left out.
	leftOut []string
	// wrong is how the kernel's tables differ from those of a fresh compile.
	wrong string
}

// run runs a loop through the case, with the faults that decide chooses.
func (r *faultRig) run(t *testing.T, c *faultCase, decide func(netlinkfault.Place) (netlinkfault.Fault,
	bool)) (run faultRun) {
	t.Helper()
	r.injector.Decide(netlinkfault.None)
	r.deleteTables(t)
	if c.before != nil {
		c.before(t, r)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		counts, bad := false, false
		compiler := ruleset.NewCompiler(c.config)
		config := proxy.DefaultConfig()
		config.Jitter = func() float64 { return 0.5 }
		loop := proxy.New(config, r.conn, compiler.Compile, func(s proxy.Sync) {
			if !counts {
				return
			}
			run.syncs = append(run.syncs, s)
			was := bad
			if bad = s.Err != nil || len(s.Quarantined) > 0; bad || was {
				run.recovered = time.Since(began)
			}
			run.leftOut = append(run.leftOut, slices.Collect(maps.Keys(s.Quarantined))...)
		})
		ctx, cancel := context.WithCancel(t.Context())
		mailbox, stopped := service.NewMailbox(), make(chan error)
		publish := func(s service.Snapshot) { mailbox.Put(service.Update{Snapshot: s, Since: time.Now()}) }
		go func() { stopped <- loop.Run(ctx, mailbox) }()
		if c.earlier != nil {
			publish(*c.earlier)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		began, counts = time.Now(), true
		r.injector.Decide(decide)
		publish(*c.wanted)
		last := *c.wanted
		for _, s := range c.changes {
			time.Sleep(c.faults / time.Duration(len(c.changes)+1))
			publish(s)
			last = s
		}
		time.Sleep(time.Until(began.Add(c.faults)))
		synctest.Wait()
		if c.settle > 0 {
			r.injector.Decide(netlinkfault.None)
			time.Sleep(c.settle)
			synctest.Wait()
		}
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		run.wrong = r.difference(ruleset.Compile(c.config, last))
	})
	slices.Sort(run.leftOut)
	run.leftOut = slices.Compact(run.leftOut)
	return run
}

// difference is how the kernel's tables differ from the program, idle chains and sets included.
func (r *faultRig) difference(want *nft.Program) string {
	m, err := r.other.Read(want)
	if err != nil {
		return err.Error()
	}
	if diff := check.Diff(want, m); diff != "" {
		return diff
	}
	if idle := check.Idle(want, m); len(idle) > 0 {
		return fmt.Sprintf("left over: %v", idle)
	}
	return ""
}

// deleteTables deletes the tables, which the rig's Conn owns or nobody.
func (r *faultRig) deleteTables(t *testing.T) {
	t.Helper()
	for _, f := range nft.Families() {
		err := r.conn.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteTable{Table: nft.TableID{Family: f,
			Name: rulesetConfig().Table}}}})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			t.Fatal(err)
		}
	}
}

// addUnownedTables makes tables that everyone can change, as on kernels before 6.9.
func (r *faultRig) addUnownedTables(t *testing.T) {
	t.Helper()
	var b nft.Batch
	for _, f := range nft.Families() {
		b.Ops = append(b.Ops, nft.AddTable{Table: nft.TableID{Family: f, Name: rulesetConfig().Table}})
	}
	r.writeUnowned(t, b)
}

// writeUnowned writes a batch. The tables that it adds have no owner.
func (r *faultRig) writeUnowned(t *testing.T, b nft.Batch) {
	t.Helper()
	datagram, err := kernel.Encode(b)
	if err != nil {
		t.Fatal(err)
	}
	err = r.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.Close(fd))
	})
	if err != nil {
		t.Fatal(err)
	}
}

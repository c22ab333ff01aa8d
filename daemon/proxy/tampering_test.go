package proxy_test

import (
	"context"
	"testing"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestKernelTampering: other programs can change our tables, as on kernels before 6.9.
// One flushes the whole ruleset, and the loop restores the tables.
func TestKernelTampering(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "tampering")
	cmd := netfilter.NFTForTest(t)
	// A table that was made without an owner cannot be owned.
	for _, family := range []string{"ip", "ip6"} {
		if err := cmd.Load(ns, "add table "+family+" "+rulesetConfig().Table); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: ns.Fd()}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })

	syncs := make(chan proxy.Sync, 1)
	c := proxy.DefaultConfig()
	c.CheckPeriod = 10 * time.Millisecond
	loop := proxy.New(c, conn, ruleset.NewCompiler(rulesetConfig()).Compile, func(s proxy.Sync) {
		if s.Err != nil || s.Written > 0 {
			syncs <- s
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- loop.Run(ctx, published(services(3))) }()
	defer func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}()

	first := <-syncs
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	if err := cmd.Load(ns, "flush ruleset"); err != nil {
		t.Fatal(err)
	}
	if s := <-syncs; s.Err != nil || !s.Check {
		t.Fatalf("after the flush: err %v, check %t", s.Err, s.Check)
	}
	program := ruleset.Compile(rulesetConfig(), first.Snapshot)
	m, err := conn.Read(program)
	if err != nil {
		t.Fatal(err)
	}
	if diff := check.Diff(program, m); diff != "" {
		t.Errorf("repaired (-want +got):\n%s", diff)
	}
}

func published(b *snapshots.Builder) *service.Mailbox {
	m := service.NewMailbox()
	m.Put(service.Update{Snapshot: b.Snapshot(), Since: time.Now()})
	return m
}

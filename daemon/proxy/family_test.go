package proxy_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestKernelForeignFamily: while another process owns the IPv6 table, the IPv4 table
// is in force and follows changes. When that process ends, both are in force.
func TestKernelForeignFamily(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "foreign")
	open := func() *kernel.Conn {
		conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: ns.Fd()}))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	other, conn := open(), open()
	t.Cleanup(func() { conn.Close() })
	id := nft.TableID{Family: nft.IPv6, Name: rulesetConfig().Table}
	if err := other.Apply(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: id}}}); err != nil {
		t.Fatal(err)
	}
	if has, err := netfilter.OwnedTables(ns.Fd()); err != nil {
		t.Fatal(err)
	} else if !has {
		t.Skip("this kernel has no owned tables that persist")
	}

	syncs := make(chan proxy.Sync)
	c := proxy.DefaultConfig()
	c.RetryPeriod = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	loop := proxy.New(c, conn, ruleset.NewCompiler(rulesetConfig()).Compile, func(s proxy.Sync) {
		select {
		case syncs <- s:
		case <-ctx.Done():
		}
	})
	cluster := services(3)
	cluster.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
	mailbox := published(cluster)
	stopped := make(chan error)
	go func() { stopped <- loop.Run(ctx, mailbox) }()
	defer func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}()

	for n, pods := range [][]string{{"10.1.0.1:8080", "[fd00:1::1]:8080"}, {"10.1.0.2:8080", "[fd00:1::2]:8080"}} {
		cluster.Set(both("web", pods...))
		want := cluster.Snapshot()
		if n > 0 {
			mailbox.Put(service.Update{Snapshot: want, Since: time.Now()})
		}
		s := <-syncs
		for s.Snapshot != want {
			s = <-syncs
		}
		if err := s.FamilyErr(nft.IPv6); !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "stop it first") ||
			!s.InForce(nft.IPv4) {
			t.Errorf("IPv6: %v; IPv4: %v", err, s.FamilyErr(nft.IPv4))
		}
		expectTable(t, conn, s.Program, nft.IPv4)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	s := <-syncs
	for s.Err != nil {
		s = <-syncs
	}
	expectTable(t, conn, s.Program, nft.IPv4)
	expectTable(t, conn, s.Program, nft.IPv6)
}

// expectTable checks that the kernel has the program's table: a plan is empty.
func expectTable(t *testing.T, conn *kernel.Conn, want *nft.Program, f nft.Family) {
	t.Helper()
	contents, err := conn.ReadTable(want.Table(f))
	if err != nil || contents == nil {
		t.Fatalf("read table %s: %v, %v", want.Table(f).ID(), contents, err)
	}
	m := nft.NewModel()
	m.Put(contents)
	if b, _ := nft.Adopt(m, want).PlanTable(want.Table(f), time.Now()); !b.Empty() {
		t.Errorf("table %s lacks:\n%s", want.Table(f).ID(), b)
	}
}

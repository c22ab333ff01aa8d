package proxy_test

import (
	"context"
	"testing"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// busyKernel is a kernel in which another program writes just after a read.
type busyKernel struct {
	*kernel.Conn
	afterRead func()
}

func (k *busyKernel) ReadTable(want *nft.Table) (*nft.Contents, error) {
	contents, err := k.Conn.ReadTable(want)
	if do := k.afterRead; do != nil && want.Family == nft.IPv6 {
		k.afterRead = nil
		do()
	}
	return contents, err
}

// TestKernelInnocent: other programs can change our tables, as on kernels before 6.9.
// One takes the key of a new Service, or deletes the elements of an old one, between
// the read and the write. Neither Service is left out.
func TestKernelInnocent(t *testing.T) {
	for name, edit := range map[string]string{
		"element added":    "add element ip test services { 172.30.0.5 . tcp . 80 : drop }",
		"elements deleted": "flush map ip test services",
	} {
		t.Run(name, func(t *testing.T) {
			ns := testnet.NamespaceForTest(t, "innocent")
			cmd := netfilter.NFTForTest(t)
			load := func(script string) {
				if err := cmd.Load(ns, script); err != nil {
					t.Error(err)
				}
			}
			// A table that was made without an owner cannot be owned.
			load("add table ip test; add table ip6 test")
			conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: ns.Fd()}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			k := &busyKernel{Conn: conn}
			b := services(3)
			program := func() *nft.Program { return ruleset.Compile(rulesetConfig(), b.Snapshot()) }

			syncs := make(chan proxy.Sync)
			c := proxy.DefaultConfig()
			c.CheckPeriod = 0
			ctx, cancel := context.WithCancel(t.Context())
			loop := proxy.New(c, k, ruleset.NewCompiler(rulesetConfig()).Compile, func(s proxy.Sync) {
				select {
				case syncs <- s:
				case <-ctx.Done():
				}
			})
			mailbox, ended := published(b), make(chan error)
			go func() { ended <- loop.Run(ctx, mailbox) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			if s := <-syncs; s.Err != nil {
				t.Fatal(s.Err)
			}
			load("flush map ip test endpoints") // The next write fails and leads to a read.
			k.afterRead = func() { load(edit) }
			b.Set(gen.UniformService(0, 2))
			b.Set(gen.UniformService(5, 3))
			b.Delete("ns-1/svc-1")
			mailbox.Put(service.Update{Snapshot: b.Snapshot()})
			if s := <-syncs; s.Err != nil || len(s.Quarantined) > 0 {
				t.Errorf("err %v, quarantined %v", s.Err, s.Quarantined)
			}
			if k.afterRead != nil {
				t.Error("the loop has not read the tables")
			}
			expectTable(t, conn, program(), nft.IPv4)
			expectTable(t, conn, program(), nft.IPv6)
		})
	}
}

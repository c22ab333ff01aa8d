package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// program is nftproxy's own, for the objects of the API server: the bare kernel loads the same elements as
// nftproxy. It is made of what an informer sees.
func (w *world) program(ctx context.Context) (_ *nft.Program, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mailbox := service.NewMailbox()
	watcher := watch.NewWatcher(watch.Options{Node: "bench-none", NodeTimeout: time.Millisecond}, mailbox)
	ended := make(chan error, 1)
	go func() { ended <- watcher.RunKubernetes(ctx, w.client) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()

	compiler := ruleset.NewCompiler(ruleset.Config{
		Table: ruleset.DefaultTable, Settings: service.Settings{
			// The nodes have the same CIDRs.
			ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")},
		},
	})
	select {
	case <-mailbox.C():
	case <-ctx.Done():
		return nil, fmt.Errorf("read the API server's objects: %w", ctx.Err())
	}
	u, _ := mailbox.Take()
	return compiler.Compile(u.Snapshot), nil
}

// load returns the batch that makes a program in an empty kernel. It declares a size for
// each set.
func load(p *nft.Program) nft.Batch {
	b, _ := nft.State{}.Plan(p, time.Now())
	return b
}

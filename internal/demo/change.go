package demo

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// update is a change of the manifests that has reached the kernel.
type update struct {
	what string
	syncReport
	// total is the time from just before the manifest's rename, or the start of
	// the proxy, until its log says that the kernel has it.
	total time.Duration
}

// change lists the endpoints in the manifest and waits until the kernel has
// them.
func (w *world) change(ctx context.Context, what string, endpoints []endpoint) error {
	start := time.Now()
	if err := writeManifest(w.config.manifests, w.dir, endpointsFile, newState(w.net.NodeAddrs, endpoints)); err != nil {
		return err
	}
	report, err := w.awaitWrite(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	w.updates = append(w.updates, update{what, report, time.Since(start)})
	return nil
}

// awaitWrite waits for the sync that brings the manifests into the kernel. Other
// syncs may come before it: the addresses on the node's interfaces change as
// pods come and go.
func (w *world) awaitWrite(ctx context.Context) (syncReport, error) {
	want, err := w.wanted(ctx)
	if err != nil {
		return syncReport{}, err
	}
	for {
		report, err := w.proxy.next(ctx)
		if err != nil {
			return syncReport{}, err
		}
		if report.Written == 0 {
			continue
		}
		if held, err := w.holds(want); held || err != nil {
			return report, err
		}
	}
}

// wanted is what the manifests ask for, by nftproxy's own packages but not by
// the running process.
func (w *world) wanted(ctx context.Context) (*nft.Program, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	mailbox := service.NewMailbox()
	var problem error
	watcher := watch.NewWatcher(watch.Options{Node: nodeName, Report: func(p watch.Problem) {
		if problem == nil {
			problem = p
		}
	}}, mailbox)
	group, watching := errgroup.WithContext(ctx)
	done := fmt.Errorf("done")
	group.Go(func() error { return watcher.RunManifests(watching, w.dir) })
	group.Go(func() error {
		select {
		case <-mailbox.C():
			return done
		case <-watching.Done():
			return context.Cause(watching)
		}
	})
	if err := group.Wait(); err != done {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if problem != nil {
		return nil, fmt.Errorf("read manifests: %w", problem)
	}
	latest, _ := mailbox.Take()
	return ruleset.Compile(w.rulesetConfig(), latest.Snapshot), nil
}

func (w *world) rulesetConfig() ruleset.Config {
	return ruleset.Config{
		Table:         ruleset.DefaultTable,
		ClusterCIDRs:  w.net.ClusterCIDRs,
		MasqueradeBit: ruleset.DefaultMasqueradeBit,
	}
}

// holds says whether the kernel has all of the program and nothing else but
// chains that wait for their removal.
func (w *world) holds(want *nft.Program) (bool, error) {
	have, err := w.tables.Read(want)
	if err != nil {
		return false, fmt.Errorf("read tables: %w", err)
	}
	missing, _ := nft.Adopt(have, want).Plan(want, time.Now())
	return missing.Empty(), nil
}

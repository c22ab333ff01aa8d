package main

import (
	"context"
	"fmt"
	"time"
)

// update is a change of the manifests that has reached the kernel.
type update struct {
	what string
	syncReport
	// start is just before the manifest's rename, or the start of the proxy.
	start time.Time
}

// total is the time until the log says that the kernel has it.
func (u update) total() time.Duration { return u.at.Sub(u.start) }

// change lists the endpoints of default/web in the manifest and waits until the kernel
// has them.
func (w *world) change(ctx context.Context, what string, endpoints []endpoint) error {
	return w.replaceManifest(ctx, what, endpointsFile, state{endpoints: endpoints})
}

// replaceManifest replaces one manifest and waits until the kernel has what it asks for.
func (w *world) replaceManifest(ctx context.Context, what, file string, s state) error {
	start := time.Now()
	if err := writeManifest(w.config.manifests, w.dir, file, s); err != nil {
		return err
	}
	report, err := w.awaitWrite(ctx, start)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	w.updates = append(w.updates, update{what, report, start})
	return nil
}

// awaitWrite waits for the sync that brings the manifests into the kernel, as they are
// since the given time. Other syncs may come earlier: the addresses of the node's
// interfaces change as pods come and go, and idle chains go after a while.
func (w *world) awaitWrite(ctx context.Context, since time.Time) (syncReport, error) {
	want, err := w.wanted(ctx)
	if err != nil {
		return syncReport{}, err
	}
	for {
		report, err := w.proxy.next(ctx)
		if err != nil {
			return syncReport{}, err
		}
		if report.Written == 0 || report.begun().Before(since) {
			continue
		}
		if held, err := w.holds(want); held || err != nil {
			return report, err
		}
	}
}

package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"nftproxy/internal/service"
	"nftproxy/watch"
)

// api is where objects come from and events go to: an API server, or manifests.
type api struct {
	manifests string
	client    kubernetes.Interface // nil with manifests
	record    func(watch.Event)
}

// newAPI reads the client's configuration and asks nobody anything. Events are
// written until the context ends; with manifests there is only the log.
func (d *daemon) newAPI(ctx context.Context) (api, error) {
	if path := d.options.manifests; path != "" {
		return api{manifests: path, record: func(watch.Event) {}}, nil
	}
	config, client, err := d.options.client()
	if err != nil {
		return api{}, err
	}
	events, err := kubernetes.NewForConfig(watch.EventClientConfig(config))
	if err != nil {
		return api{}, fmt.Errorf("make a client for events: %w", err)
	}
	recorder := watch.NewRecorder(ctx, events, d.node, func(err error) {
		d.log.Warn("events cannot be written; the log has all of it", "err", err)
	})
	return api{client: client, record: recorder.Record}, nil
}

// watch keeps the watcher's mailbox filled until the context ends.
func (a api) watch(ctx context.Context, w *watch.Watcher) error {
	if a.client == nil {
		return w.RunManifests(ctx, a.manifests)
	}
	return w.RunKubernetes(ctx, a.client)
}

// recordRefused tells of a Service that the kernel refuses. What else a part of
// the program may be is no object.
func (d *daemon) recordRefused(w *watch.Watcher, part string, err error) {
	o := w.ServiceObject(service.Name(part))
	if o.UID != "" {
		d.record(watch.Event{Object: o, Reason: watch.ReasonRefused, Note: fmt.Sprintf("left out on node %s: %v", d.node, err)})
	}
}

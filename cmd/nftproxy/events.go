package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"

	"nftproxy/daemon/process"
	"nftproxy/model/service"
	"nftproxy/watch"
)

// api is the source of the objects: an API server, which also takes events, or
// manifests.
type api struct {
	manifests string
	client    *watch.Client // nil with manifests
	dialer    *dialer       // of the client
	record    func(watch.Event)
}

// newAPI reads the client's configuration and sends no request. It writes events
// until the context ends; with manifests it writes none.
func (d *daemon) newAPI(ctx context.Context) (api, error) {
	if path := d.options.manifests; path != "" {
		return api{manifests: path, record: func(watch.Event) {}}, nil
	}
	config, client, dialer, err := d.options.client()
	if err != nil {
		return api{}, err
	}
	events, err := kubernetes.NewForConfig(watch.EventClientConfig(config))
	if err != nil {
		return api{}, fmt.Errorf("make a client for events: %w", err)
	}
	recorder := watch.NewRecorder(ctx, events, d.node, func(err error) {
		d.log.Warn("cannot write events; the log has the same information", "err", err)
	})
	return api{client: client, dialer: dialer, record: recorder.Record}, nil
}

// recordFailure returns a function that writes an event about a server that cannot
// listen. The note is kube-proxy's.
func (d *daemon) recordFailure(reason watch.Reason, prefix string) func(error) {
	return func(err error) {
		d.record(watch.Event{Object: watch.NodeObject(d.node), Reason: reason, Note: prefix + err.Error()})
	}
}

// watch keeps the watcher's mailbox filled until the context ends.
func (a api) watch(ctx context.Context, w *watch.Watcher) error {
	if a.client == nil {
		return w.RunManifests(ctx, a.manifests)
	}
	a.dialer.reportTo(w.AddAPIServer)
	return w.RunKubernetes(ctx, a.client)
}

// reconnectAfterSleep closes the connections to the API server when the machine has slept, until the
// context ends. The API server may have given them up meanwhile. Without an answer from it,
// client-go would find out only after 45 s.
func (a api) reconnectAfterSleep(ctx context.Context, log *slog.Logger) {
	if a.dialer == nil {
		return
	}
	process.FollowSleep(ctx, func(slept time.Duration) {
		log.Info("the machine has slept, or its clock was set ahead; connecting to the API server anew", "ahead", slept.Round(time.Second).String())
		a.dialer.closeAll()
	})
}

// recordRefused writes an event for a Service that the kernel refuses. It writes
// none for a part of the program that is no object.
func (d *daemon) recordRefused(w *watch.Watcher, part string, err error) {
	o := w.ServiceObject(service.Name(part))
	if o.UID != "" {
		d.record(watch.Event{Object: o, Reason: watch.ReasonRefused, Note: fmt.Sprintf("left out on node %s: %v", d.node, err)})
	}
}

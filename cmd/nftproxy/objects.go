package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nftproxy/model/service"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// sourceTimeout is how long the commands wait for the objects of the source.
const sourceTimeout = 30 * time.Second

// objectSource reads objects from an API server or from manifests, for commands that end.
type objectSource struct {
	watch.Source
	// objects says which objects count, and the bounds that they have.
	objects  watch.Options
	node     string
	nodeCIDR bool
	// settings are those of the rules.
	settings service.Settings
}

// objects are the objects of a source, followed until end.
type objects struct {
	watcher *watch.Watcher
	mailbox *service.Mailbox
	last    service.Snapshot
	cancel  context.CancelFunc
	ended   chan error

	// failure is the first error of judge.
	mu      sync.Mutex
	failure error
}

// follow begins to follow the source, and returns once it has a first snapshot. addrs are the
// addresses of the node. judge gets each problem, from one goroutine at a time; its error
// ends everything.
func (s *objectSource) follow(ctx context.Context, addrs hostaddr.Addresses, judge func(watch.Problem) error) (*objects, error) {
	// client-go would log the errors that are reported here.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	o := &objects{mailbox: service.NewMailbox(), ended: make(chan error, 1)}
	ctx, o.cancel = context.WithCancel(ctx)
	options := s.objects
	options.Settings = s.settings
	options.Node, options.AwaitPodCIDRs, options.PodCIDRTimeout = s.node, s.nodeCIDR, sourceTimeout/2
	options.NodeTimeout = sourceTimeout / 6
	options.Networks = func(ranges []netip.Prefix) []netip.Prefix {
		list, err := new(hostaddr.Networks).In(ctx, ranges)
		if err != nil {
			o.fail(err)
		}
		return list
	}
	options.Report = func(p watch.Problem) {
		err := judge(p)
		if unreadable := (*watch.UnreadableError)(nil); errors.As(p, &unreadable) {
			err = cmp.Or(err, unreadable.Err)
		}
		if err != nil {
			o.fail(fmt.Errorf("%s: %w", s, err))
		}
	}
	o.watcher = watch.NewWatcher(options, o.mailbox)
	o.watcher.SetHostAddresses(addrs.Own, addrs.Broadcast...)
	go func() { o.ended <- s.watch(ctx, o.watcher) }()
	timeout := time.NewTimer(sourceTimeout)
	defer timeout.Stop()
	select {
	case <-o.mailbox.C():
		return o, nil
	case <-timeout.C:
		o.fail(fmt.Errorf("%s did not answer within %s", s, sourceTimeout))
	case err := <-o.ended:
		o.ended <- cmp.Or(err, ctx.Err())
	}
	return nil, o.end()
}

// fail ends the following, and keeps the first error for end.
func (o *objects) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure == nil {
		o.failure = err
	}
	o.cancel()
}

// newest is the newest snapshot.
func (o *objects) newest() service.Snapshot {
	if update, ok := o.mailbox.Take(); ok {
		o.last = update.Snapshot
	}
	return o.last
}

// end ends the following. It returns the error of judge or of the source if there was one
// before.
func (o *objects) end() error {
	o.cancel()
	err := <-o.ended
	o.mu.Lock()
	defer o.mu.Unlock()
	return cmp.Or(o.failure, err)
}

func (s *objectSource) watch(ctx context.Context, w *watch.Watcher) error {
	source, err := s.Connect()
	if err != nil {
		return err
	}
	return source.Run(ctx, w)
}

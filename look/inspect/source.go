package inspect

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
	"nftproxy/nft/ejecttable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// sourceTimeout is how long the commands wait for the objects of the source.
const sourceTimeout = 30 * time.Second

// Source reads objects from an API server or from manifests, for commands that end.
type Source struct {
	watch.Source
	// Objects says which objects count, and the bounds that they have.
	Objects watch.Options
	Node    string
	// Rules are those that are made of them.
	Rules ruleset.Config
}

// Objects are the objects of a source, followed until End.
type Objects struct {
	watcher *watch.Watcher
	mailbox *service.Mailbox
	last    service.Snapshot
	cancel  context.CancelFunc
	ended   chan error

	// failure is the first error of judge.
	mu      sync.Mutex
	failure error
}

// Follow begins to follow the source, and returns once it has a first snapshot. addrs are the
// addresses of the node. judge gets each problem, from one goroutine at a time; its error
// ends everything.
func (s *Source) Follow(ctx context.Context, addrs hostaddr.Addresses,
	judge func(watch.Problem) error) (*Objects, error) {
	// client-go would log the errors that are reported here.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	o := &Objects{mailbox: service.NewMailbox(), ended: make(chan error, 1)}
	ctx, o.cancel = context.WithCancel(ctx)
	options := s.Objects
	options.Settings = s.Rules.Settings
	options.Node, options.AwaitPodCIDRs, options.PodCIDRTimeout = s.Node, s.Rules.NodeCIDR, sourceTimeout/2
	options.NodeTimeout = sourceTimeout / 6
	options.Networks = func(ranges []netip.Prefix) []netip.Prefix {
		list, err := new(hostaddr.Networks).In(ctx, ranges)
		if err != nil {
			o.fail(err)
		}
		return list
	}
	options.TryTimeouts = sync.OnceValue(tryTimeouts)
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
	o.SetHostAddresses(addrs)
	if err := o.ReadAdjustments(s.Rules.Table); err != nil {
		return nil, err
	}
	go func() { o.ended <- s.run(ctx, o.watcher) }()
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
	return nil, o.End()
}

// tryTimeouts is watch.Options.TryTimeouts.
func tryTimeouts() error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.TryTimeouts()
}

// fail ends the following, and keeps the first error for End.
func (o *Objects) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure == nil {
		o.failure = err
	}
	o.cancel()
}

// Newest is the newest snapshot.
func (o *Objects) Newest() service.Snapshot {
	if update, ok := o.mailbox.Take(); ok {
		o.last = update.Snapshot
	}
	return o.last
}

// Problems says what cannot be used now of a Service.
func (o *Objects) Problems(name service.Name) []string { return o.watcher.Problems(name) }

// End ends the following. It returns the error of judge or of the source if there was one
// before.
func (o *Objects) End() error {
	o.cancel()
	err := <-o.ended
	o.mu.Lock()
	defer o.mu.Unlock()
	return cmp.Or(o.failure, err)
}

func (s *Source) run(ctx context.Context, w *watch.Watcher) error {
	source, err := s.Connect()
	if err != nil {
		return err
	}
	return source.Run(ctx, w)
}

// Unlisted returns the error of a problem by which Services or endpoints are missing.
func Unlisted(p watch.Problem) error {
	request := (*watch.RequestError)(nil)
	if errors.As(p, &request) && (request.Resource == "services" || request.Resource == "endpointslices") {
		return fmt.Errorf("%s %s: %w", request.Verb, request.Resource, request.Err)
	}
	return nil
}

// ReadAdjustments learns from the kernel which endpoints have less than their weight in the tables with that name.
func (o *Objects) ReadAdjustments(table string) error {
	adjustments, err := ejecttable.Read(table)
	if err != nil {
		return err
	}
	o.watcher.SetAdjustments(adjustments)
	return nil
}

// SetHostAddresses says which addresses the node has now.
func (o *Objects) SetHostAddresses(a hostaddr.Addresses) {
	o.watcher.SetHostAddresses(a.Own, a.Shared, a.Broadcast...)
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nftproxy/conntrack"
	"nftproxy/look/basechain"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
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

// flowSource provides the Services by which the commands judge flows.
type flowSource struct {
	options     sourceOptions
	node        string
	config      ruleset.Config
	established []service.Protocol
}

// kind returns the name of the source in the JSON output.
func (s *flowSource) kind() string {
	if s.options.from == (watch.Source{}) {
		return "table"
	}
	return s.options.from.Kind()
}

// String describes the source to a person.
func (s *flowSource) String() string {
	if s.kind() == "table" {
		return fmt.Sprintf("the kernel's tables ip and ip6 %s", s.options.table)
	}
	return s.options.from.String()
}

// index reads the source and returns an index of its Services, and the snapshot. It
// prints to notes the parts of the objects that cannot be used.
func (s *flowSource) index(ctx context.Context, notes io.Writer) (*conntrack.Index, service.Snapshot, error) {
	addrs, err := hostaddr.List(ctx)
	if err != nil {
		return nil, service.Snapshot{}, err
	}
	routes, err := hostaddr.LocalRoutes(ctx)
	if err != nil {
		return nil, service.Snapshot{}, err
	}
	tables, err := s.tables()
	if s.kind() == "table" {
		if err != nil {
			return nil, service.Snapshot{}, err
		}
		if tables == nil {
			return nil, service.Snapshot{}, fmt.Errorf("no table %s in this network namespace says which flows go to Services: start nftproxy run, or give --kubeconfig or --nftproxy-manifests", s.options.table)
		}
		config := ruleset.ReadBackConfig(tables, s.options.table)
		snapshot := ruleset.ReadBack(tables, s.options.table, &service.Node{Name: s.node, HostAddresses: addrs.Own})
		index := s.newIndex(config, routes)
		index.Update(snapshot)
		return index, snapshot, s.presume(index)
	}
	if err != nil {
		fmt.Fprintf(notes, "nftproxy: cannot recognize flows of Services that are gone: %v\n", err)
	}
	snapshot, err := s.objects(ctx, addrs, notes)
	if err != nil {
		return nil, snapshot, err
	}
	index := s.newIndex(s.config, routes)
	if tables != nil {
		// The index compares the Services in the rules with the objects, and so learns
		// which Services and endpoints are gone.
		index.Update(ruleset.ReadBack(tables, s.options.table, snapshot.Node))
	}
	index.Update(snapshot)
	return index, snapshot, s.presume(index)
}

// presume tells the index where no other program translates destinations. Elsewhere only flows
// to endpoints that are in the rules and not among the objects are known to be former ones of ours.
func (s *flowSource) presume(index *conntrack.Index) error {
	others, err := basechain.OthersTranslate(s.options.table)
	if err == nil && !others {
		index.Presume()
	}
	return err
}

func (s *flowSource) newIndex(config ruleset.Config, routes []netip.Prefix) *conntrack.Index {
	index := conntrack.NewIndex(conntrack.Options{
		NodePortAddresses: config.NodePortAddresses, Established: s.established, Pod: config.Pod,
	})
	index.SetLocalRoutes(routes)
	return index
}

// tables reads nftproxy's tables from the kernel. It returns nil if there are none.
func (s *flowSource) tables() (*nft.Model, error) {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	return inspect.ReadTables(conn, s.options.table)
}

// objects reads one snapshot from the API server or the manifests.
func (s *flowSource) objects(ctx context.Context, addrs hostaddr.Addresses, notes io.Writer) (service.Snapshot, error) {
	source := objectSource{
		Source: s.options.from, node: s.node, nodeCIDR: s.config.NodeCIDR, settings: s.config.Settings,
		objects: s.options.claims.watchOptions(ownServers(defaultMetricsAddress, defaultHealthAddress, defaultProbeAddress)),
	}
	found, err := source.follow(ctx, addrs, func(p watch.Problem) error {
		request := (*watch.RequestError)(nil)
		switch {
		case errors.As(p, &request) && (request.Resource == "services" || request.Resource == "endpointslices"):
			return fmt.Errorf("%s %s: %w", request.Verb, request.Resource, request.Err)
		case !errors.Is(p, watch.ErrIgnoredKind):
			fmt.Fprintf(notes, "nftproxy: %v\n", p)
		}
		return nil
	})
	if err != nil {
		return service.Snapshot{}, err
	}
	return found.newest(), found.end()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"nftproxy/conntrack"
	"nftproxy/daemon/hostaddr"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// sourceTimeout is how long the commands wait for the objects of the source.
const sourceTimeout = 30 * time.Second

// flowSource provides the Services by which the commands judge flows.
type flowSource struct {
	options     sourceOptions
	node        string
	config      ruleset.Config
	established []service.Protocol
}

// kind returns the name of the source in the JSON output.
func (s *flowSource) kind() string {
	switch {
	case s.options.manifests != "":
		return "manifests"
	case s.options.kubeconfig != "" || s.options.master != "":
		return "kubernetes"
	}
	return "table"
}

// String describes the source to a person.
func (s *flowSource) String() string {
	switch s.kind() {
	case "manifests":
		return "the manifests at " + s.options.manifests
	case "kubernetes":
		return "the API server"
	}
	return fmt.Sprintf("the kernel's tables ip and ip6 %s", s.options.table)
}

// index reads the source and returns an index of its Services, and the snapshot. It
// prints to notes the parts of the objects that cannot be used.
func (s *flowSource) index(ctx context.Context, notes io.Writer) (*conntrack.Index, service.Snapshot, error) {
	addrs, err := hostaddr.List(ctx)
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
		snapshot := ruleset.ReadBack(tables, s.options.table, &service.Node{Name: s.node, HostAddresses: addrs})
		index := s.newIndex(config)
		index.Update(snapshot)
		return index, snapshot, nil
	}
	if err != nil {
		fmt.Fprintf(notes, "nftproxy: cannot recognize flows of Services that are gone: %v\n", err)
	}
	snapshot, err := s.objects(ctx, addrs, notes)
	if err != nil {
		return nil, snapshot, err
	}
	index := s.newIndex(s.config)
	if tables != nil {
		// The index compares the Services in the rules with the objects, and so learns
		// which Services and endpoints are gone.
		index.Update(ruleset.ReadBack(tables, s.options.table, snapshot.Node))
	}
	index.Update(snapshot)
	return index, snapshot, nil
}

func (s *flowSource) newIndex(config ruleset.Config) *conntrack.Index {
	return conntrack.NewIndex(conntrack.Options{
		NodePortAddresses: config.NodePortAddresses, Established: s.established, Pod: config.Pod,
	})
}

// tables reads nftproxy's tables from the kernel. It returns nil if there are none.
func (s *flowSource) tables() (*nft.Model, error) {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	want := ruleset.Compile(ruleset.Config{Table: s.options.table}, service.Snapshot{Node: &service.Node{}})
	tables, err := conn.Read(want)
	if err != nil {
		return nil, err
	}
	for _, f := range nft.Families() {
		if tables.Table(want.Table(f).ID()) != nil {
			return tables, nil
		}
	}
	return nil, nil
}

// objects reads one snapshot from the API server or the manifests.
func (s *flowSource) objects(ctx context.Context, addrs []netip.Addr, notes io.Writer) (service.Snapshot, error) {
	// client-go would log the errors that are reported here.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeoutCause(ctx, sourceTimeout, fmt.Errorf("%s did not answer within %s", s, sourceTimeout))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	mailbox := service.NewMailbox()
	o := s.options.claims.watchOptions(ownServers(defaultMetricsAddress, defaultHealthAddress, defaultProbeAddress))
	o.Node, o.AwaitPodCIDRs, o.PodCIDRTimeout = s.node, s.config.NodeCIDR, sourceTimeout/2
	o.NodeTimeout = sourceTimeout / 6
	o.Report = func(p watch.Problem) {
		request := (*watch.RequestError)(nil)
		switch {
		case errors.As(p, &request) && (request.Resource == "services" || request.Resource == "endpointslices"):
			fail(fmt.Errorf("%s: %s %s: %w", s, request.Verb, request.Resource, request.Err))
		case !errors.Is(p, watch.ErrIgnoredKind):
			fmt.Fprintf(notes, "nftproxy: %v\n", p)
		}
	}
	w := watch.NewWatcher(o, mailbox)
	w.SetHostAddresses(addrs)
	ended := make(chan error, 1)
	go func() { ended <- s.watch(ctx, w) }()
	select {
	case <-mailbox.C():
		update, _ := mailbox.Take()
		fail(nil)
		return update.Snapshot, <-ended
	case err := <-ended:
		if err == nil {
			err = context.Cause(ctx)
		}
		return service.Snapshot{}, err
	}
}

func (s *flowSource) watch(ctx context.Context, w *watch.Watcher) error {
	from := api{manifests: s.options.manifests}
	if s.kind() == "kubernetes" {
		var err error
		if _, from.client, from.dialer, err = s.options.client(); err != nil {
			return err
		}
	}
	return from.watch(ctx, w)
}

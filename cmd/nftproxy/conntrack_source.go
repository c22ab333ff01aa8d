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
	"nftproxy/internal/hostaddr"
	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// sourceTimeout is how long the objects may take to come.
const sourceTimeout = 30 * time.Second

// flowSource says what services there are, so that flows can be judged.
type flowSource struct {
	options     sourceOptions
	node        string
	config      ruleset.Config
	established []service.Protocol
}

// kind is the name of the source in the output.
func (s *flowSource) kind() string {
	switch {
	case s.options.manifests != "":
		return "manifests"
	case s.options.kubeconfig != "" || s.options.master != "":
		return "kubernetes"
	}
	return "table"
}

// String is for people.
func (s *flowSource) String() string {
	switch s.kind() {
	case "manifests":
		return "the manifests at " + s.options.manifests
	case "kubernetes":
		return "the API server"
	}
	return fmt.Sprintf("the kernel's tables ip and ip6 %s", s.options.table)
}

// index asks the source, and returns what judges flows by its answer. What
// cannot be used of it is told to notes.
func (s *flowSource) index(ctx context.Context, notes io.Writer) (*conntrack.Index, service.Snapshot, error) {
	addrs, err := hostaddr.List()
	if err != nil {
		return nil, service.Snapshot{}, err
	}
	tables, err := s.tables()
	if s.kind() == "table" {
		if err != nil {
			return nil, service.Snapshot{}, err
		}
		if tables == nil {
			return nil, service.Snapshot{}, fmt.Errorf("there is no table %s in this network namespace that says which flows are services': start nftproxy run, or give --kubeconfig or --manifests", s.options.table)
		}
		config := ruleset.ReadBackConfig(tables, s.options.table)
		snapshot := ruleset.ReadBack(tables, s.options.table, &service.Node{Name: s.node, HostAddresses: addrs})
		index := s.newIndex(config)
		index.Update(snapshot)
		return index, snapshot, nil
	}
	if err != nil {
		fmt.Fprintf(notes, "nftproxy: flows of services that have gone are not recognised: %v\n", err)
	}
	snapshot, err := s.objects(ctx, addrs, notes)
	if err != nil {
		return nil, snapshot, err
	}
	index := s.newIndex(s.config)
	if tables != nil {
		// What the rules lead to that is not there any more is what departed.
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

// tables reads those of the kernel; nil for none.
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

// objects takes one snapshot of the API server's, or the manifests'.
func (s *flowSource) objects(ctx context.Context, addrs []netip.Addr, notes io.Writer) (service.Snapshot, error) {
	// client-go would log what is reported here anyway.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeoutCause(ctx, sourceTimeout, fmt.Errorf("%s did not answer within %s", s, sourceTimeout))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	mailbox := service.NewMailbox()
	w := watch.NewWatcher(watch.Options{
		Node: s.node, AwaitPodCIDRs: s.config.NodeCIDR, PodCIDRTimeout: sourceTimeout / 2,
		Report: func(p watch.Problem) {
			request := (*watch.RequestError)(nil)
			switch {
			case errors.As(p, &request) && (request.Resource == "services" || request.Resource == "endpointslices"):
				fail(fmt.Errorf("%s: %s %s: %w", s, request.Verb, request.Resource, request.Err))
			case !errors.Is(p, watch.ErrIgnoredKind):
				fmt.Fprintf(notes, "nftproxy: %v\n", p)
			}
		},
	}, mailbox)
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
		if _, from.client, err = s.options.client(); err != nil {
			return err
		}
	}
	return from.watch(ctx, w)
}

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"nftproxy/conntrack"
	"nftproxy/look/basechain"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// FlowSource provides the Services by which commands judge flows: an API server or manifests, or without either the
// tables in the kernel.
type FlowSource struct {
	Source
	// InPod says that an empty Source stands for the API server of this pod's cluster, as for run.
	InPod bool
	// Established has the protocols of which even established connections are
	// stale when their endpoint is gone.
	Established []service.Protocol
	// Ignored are the problems of EndpointSlices that do not count, once Snapshot has returned.
	Ignored []watch.Problem
	// Problems says what cannot be used of a Service by the objects, once Snapshot has returned.
	Problems func(service.Name) []string
}

// Kind returns the name of the source in the JSON output.
func (s *FlowSource) Kind() string {
	if s.Source.Source == (watch.Source{}) && !s.InPod {
		return "table"
	}
	return s.Source.Kind()
}

// String describes the source to a person.
func (s *FlowSource) String() string {
	if s.Kind() == "table" {
		return fmt.Sprintf("the kernel's tables ip and ip6 %s", s.Rules.Table)
	}
	return s.Source.String()
}

// Index reads the source and returns an index of its Services, and the snapshot. It
// prints to notes the parts of the objects that cannot be used.
func (s *FlowSource) Index(ctx context.Context, notes io.Writer) (*conntrack.Index, service.Snapshot, error) {
	addrs, err := hostaddr.List(ctx)
	if err != nil {
		return nil, service.Snapshot{}, err
	}
	routes, err := hostaddr.LocalRoutes(ctx)
	if err != nil {
		return nil, service.Snapshot{}, err
	}
	tables, err := s.ReadTables()
	if s.Kind() == "table" {
		if err != nil {
			return nil, service.Snapshot{}, err
		}
		if tables == nil {
			return nil, service.Snapshot{}, fmt.Errorf("no table %s in this network namespace says which flows go to "+
				"Services: start nftproxy run, or give --kubeconfig or --nftproxy-manifests", s.Rules.Table)
		}
		config := ruleset.ReadBackConfig(tables, s.Rules.Table)
		snapshot := ruleset.ReadBack(tables, s.Rules.Table, &service.Node{Name: s.Node, HostAddresses: addrs.Own})
		index := s.newIndex(config, routes)
		index.Update(snapshot)
		return index, snapshot, s.presume(index)
	}
	if err != nil {
		fmt.Fprintf(notes, "nftproxy: cannot recognize flows of Services that are gone: %v\n", err)
	}
	snapshot, err := s.Snapshot(ctx, addrs, notes)
	if err != nil {
		return nil, snapshot, err
	}
	index := s.newIndex(s.Rules, routes)
	if tables != nil {
		// The index compares the Services in the rules with the objects, and so learns
		// which Services and endpoints are gone.
		index.Update(ruleset.ReadBack(tables, s.Rules.Table, snapshot.Node))
	}
	index.Update(snapshot)
	return index, snapshot, s.presume(index)
}

// presume tells the index where no other program translates destinations. Elsewhere only flows
// to endpoints that are in the rules and not among the objects are known to be former ones of ours.
func (s *FlowSource) presume(index *conntrack.Index) error {
	others, err := basechain.OthersTranslate(s.Rules.Table)
	if err == nil && !others {
		index.Presume()
	}
	return err
}

func (s *FlowSource) newIndex(config ruleset.Config, routes []netip.Prefix) *conntrack.Index {
	index := conntrack.NewIndex(conntrack.Options{
		NodePortAddresses: config.NodePortAddresses, Established: s.Established, Pod: config.Pod,
	})
	index.SetLocalRoutes(routes)
	return index
}

// ReadTables reads nftproxy's tables from the kernel. It returns nil if there are none.
func (s *FlowSource) ReadTables() (*nft.Model, error) {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	return ReadTables(conn, s.Rules.Table)
}

// Snapshot reads one snapshot from the API server or the manifests.
func (s *FlowSource) Snapshot(ctx context.Context, addrs hostaddr.Addresses,
	notes io.Writer) (service.Snapshot, error) {
	found, err := s.Follow(ctx, addrs, func(p watch.Problem) error {
		err := Unlisted(p)
		if ignored := (*watch.SliceIgnoredError)(nil); errors.As(p, &ignored) {
			s.Ignored = append(s.Ignored, p)
			if s.Objects.AllSlices && p.Source == "" {
				return nil // A cluster may have many. The Service that misses one names it.
			}
		}
		if err == nil && !errors.Is(p, watch.ErrIgnoredKind) {
			fmt.Fprintf(notes, "nftproxy: %v\n", p)
		}
		return err
	})
	if err != nil {
		return service.Snapshot{}, err
	}
	s.Problems = found.Problems
	return found.Newest(), found.End()
}

// FlowFilter selects rows. A zero field selects all.
type FlowFilter struct {
	Services Selection
	Protocol service.Protocol
	Stale    bool
}

func (f FlowFilter) selects(r *FlowRow) bool {
	return f.Services.Has(r.name) &&
		(f.Protocol == 0 || f.Protocol == r.Flow.Protocol) && (!f.Stale || r.Stale)
}

// Flows returns the selected flows of the kernel's table, and the table, still open. It prints to notes what Services
// the source has.
func (s *FlowSource) Flows(ctx context.Context, filter FlowFilter,
	notes io.Writer) (*conntrack.Table, []FlowRow, error) {
	index, snapshot, err := s.Index(ctx, notes)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(notes, "nftproxy: %s, from %s\n", Plural(snapshot.Services.Len(), "service"), s)
	if err := filter.Services.Unknown(NamesOf(&snapshot), s.String()); err != nil {
		return nil, nil, err
	}
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return nil, nil, err
	}
	rows, err := readFlows(ctx, table, index, filter, notes)
	if err != nil {
		return nil, nil, errors.Join(err, table.Close())
	}
	return table, rows, nil
}

// FlowRow is one flow of a Service. The help promises the names in the JSON.
type FlowRow struct {
	Protocol       string `json:"protocol"`
	Client         string `json:"client"`
	Service        string `json:"service"`
	Port           string `json:"port"`
	Address        string `json:"address"`
	Endpoint       string `json:"endpoint"`
	State          string `json:"state"`
	AgeSeconds     *int64 `json:"ageSeconds"`
	ExpiresSeconds int64  `json:"expiresSeconds"`
	Stale          bool   `json:"stale"`
	Reason         string `json:"reason"`

	name service.Name
	Flow conntrack.Flow `json:"-"`
}

// readFlows returns the selected flows of Services, and the stale flows that no
// Service owns, in the order of the Services' names.
func readFlows(ctx context.Context, table *conntrack.Table, index *conntrack.Index, filter FlowFilter,
	notes io.Writer) ([]FlowRow, error) {
	rows, now := []FlowRow{}, time.Now()
	err := table.Flows(ctx, conntrack.Filter{Protocol: filter.Protocol}, func(f conntrack.Flow) error {
		if r, ok := NewFlowRow(f, index, now); ok && filter.selects(&r) {
			rows = append(rows, r)
		}
		return nil
	})
	if errors.Is(err, conntrack.ErrInterrupted) {
		fmt.Fprintf(notes, "nftproxy: flows may be missing: %v\n", err)
		err = nil
	}
	slices.SortFunc(rows, func(a, b FlowRow) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol),
			a.Flow.Original.Dst.Compare(b.Flow.Original.Dst), a.Flow.Original.Src.Compare(b.Flow.Original.Src))
	})
	return rows, err
}

// NewFlowRow describes a flow. It returns false if the flow has nothing to do with
// Services.
func NewFlowRow(f conntrack.Flow, index *conntrack.Index, now time.Time) (FlowRow, bool) {
	reason, stale := index.Stale(f)
	s, p, owned := index.Owner(f)
	passing := f.Zone != 0 && f.Status&conntrack.DstNAT == 0 // Its packets pass the rules in another zone.
	if passing || !owned && !stale {
		return FlowRow{}, false
	}
	r := FlowRow{
		Protocol: nft.ProtocolText(uint8(f.Protocol)), Client: flowAddress(&f, f.Original.Src),
		Address: flowAddress(&f, f.Original.Dst), State: FlowState(&f),
		ExpiresSeconds: int64(f.Timeout / time.Second), Stale: stale, Reason: string(reason), Flow: f,
	}
	if owned {
		r.name, r.Service, r.Port = s.Name, string(s.Name), p.Label()
	}
	// A DNAT to the address that the packet already has does not show in the entry.
	if f.Status&conntrack.DstNAT != 0 || owned && p.Endpoint(f.Original.Dst.Port(), f.Reply.Src) != nil {
		r.Endpoint = f.Reply.Src.String()
	}
	if !f.Start.IsZero() {
		age := max(0, int64(now.Sub(f.Start)/time.Second))
		r.AgeSeconds = &age
	}
	return r, true
}

// flowAddress returns the address, with a port for the protocols that have ports.
// Flows of other protocols are listed too: an echo request can go to an unallocated
// Service address.
func flowAddress(f *conntrack.Flow, a netip.AddrPort) string {
	switch f.Protocol {
	case service.TCP, service.UDP, service.SCTP:
		return a.String()
	}
	return a.Addr().String()
}

func FlowState(f *conntrack.Flow) string {
	switch {
	case f.TCPState != 0:
		return f.TCPState.String()
	case f.Status&conntrack.Assured != 0:
		return "assured"
	case f.Status&conntrack.SeenReply != 0:
		return "replied"
	}
	return "unreplied"
}

// Confirm judges the flows again, by the Services as they are now, and returns those
// that are still selected. Rules that are younger than the Services of the first
// judgment may have made a flow: its endpoint would seem gone when it is only new.
func (s *FlowSource) Confirm(ctx context.Context, rows []FlowRow, filter FlowFilter) ([]FlowRow, error) {
	if len(rows) == 0 {
		return rows, nil
	}
	index, _, err := s.Index(ctx, io.Discard)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(rows, func(r FlowRow) bool {
		again, ok := NewFlowRow(r.Flow, index, r.Flow.Start)
		return !ok || !filter.selects(&again)
	}), nil
}

// Plural is a number of things in words.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft"
)

func newConntrackListCommand() *cobra.Command {
	var o flowOptions
	var stale bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the flows of Services, and why some are stale",
		Long: `list prints the connections and UDP flows of this node that go to Services:

  CLIENT    the client's address and port, before any NAT
  SERVICE   namespace/name and the port's name or number; - if no Service has ADDRESS
  ADDRESS   the address and port that the client sent to: a cluster IP, an external
            address, or a node port
  ENDPOINT  the address and port that the rules chose; - if they chose none
  STATE     the TCP state; for other protocols unreplied, replied (packets in both
            directions), or assured (replied for a while)
  AGE       - unless the kernel records it (sysctl net.netfilter.nf_conntrack_timestamp=1)
  EXPIRES   the time until the kernel forgets the flow if no further packet comes
  STALE     the reason, see nftproxy conntrack --help; - if the flow is not stale

-o json prints an object with source (kubernetes, manifests or table) and flows.
Each flow has protocol, client, service (namespace/name), port, address, endpoint,
state, ageSeconds (null if unknown), expiresSeconds, stale (true or false) and
reason. A string that does not apply is empty. Later versions may add fields; they
do not change these.`,
		Example: `  nftproxy conntrack list --stale
  nftproxy conntrack list --service kube-system/kube-dns --protocol udp
  nftproxy conntrack list -o json --kubeconfig /etc/kubernetes/proxy.conf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, filter, err := o.parse()
			if err != nil {
				return usageError{err}
			}
			filter.stale = stale
			return listFlows(cmd, source, filter, o.output)
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&stale, "stale", false, "only stale flows")
	return cmd
}

func listFlows(cmd *cobra.Command, source *flowSource, filter flowFilter, output string) error {
	notes := cmd.ErrOrStderr()
	table, rows, err := source.flows(cmd.Context(), filter, notes)
	if err != nil {
		return err
	}
	defer table.Close()
	if output == outputJSON {
		return writeJSON(cmd.OutOrStdout(), flowList{Source: source.kind(), Flows: rows})
	}
	if err := writeFlows(cmd.OutOrStdout(), rows); err != nil {
		return err
	}
	stale := 0
	for _, r := range rows {
		if r.Stale {
			stale++
		}
	}
	fmt.Fprintf(notes, "nftproxy: %s, %d of them stale\n", plural(len(rows), "flow"), stale)
	return nil
}

// flows returns the selected flows of the kernel's table, and the table, still open.
func (s *flowSource) flows(ctx context.Context, filter flowFilter, notes io.Writer) (*conntrack.Table, []flowRow, error) {
	index, err := s.openIndex(ctx, filter, notes)
	if err != nil {
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

// openIndex makes an index and prints to notes what Services it has and from where.
func (s *flowSource) openIndex(ctx context.Context, filter flowFilter, notes io.Writer) (*conntrack.Index, error) {
	index, snapshot, err := s.index(ctx, notes)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(notes, "nftproxy: %s, from %s\n", plural(snapshot.Services.Len(), "service"), s)
	if !filter.known(snapshot) {
		fmt.Fprintf(notes, "nftproxy: %s is not among them\n", filter.service)
	}
	return index, nil
}

// flowList is the JSON that list prints.
type flowList struct {
	Source string    `json:"source"`
	Flows  []flowRow `json:"flows"`
}

// flowRow is one flow of a Service. The help promises the names in the JSON.
type flowRow struct {
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
	flow conntrack.Flow
}

// readFlows returns the selected flows of Services, and the stale flows that no
// Service owns, in the order of the Services' names.
func readFlows(ctx context.Context, table *conntrack.Table, index *conntrack.Index, filter flowFilter, notes io.Writer) ([]flowRow, error) {
	rows, now := []flowRow{}, time.Now()
	err := table.Flows(ctx, conntrack.Filter{Protocol: filter.protocol}, func(f conntrack.Flow) error {
		if r, ok := newFlowRow(f, index, now); ok && filter.selects(&r) {
			rows = append(rows, r)
		}
		return nil
	})
	if errors.Is(err, conntrack.ErrInterrupted) {
		fmt.Fprintf(notes, "nftproxy: flows may be missing: %v\n", err)
		err = nil
	}
	slices.SortFunc(rows, func(a, b flowRow) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol),
			a.flow.Original.Dst.Compare(b.flow.Original.Dst), a.flow.Original.Src.Compare(b.flow.Original.Src))
	})
	return rows, err
}

// newFlowRow describes a flow. It returns false if the flow has nothing to do with
// Services.
func newFlowRow(f conntrack.Flow, index *conntrack.Index, now time.Time) (flowRow, bool) {
	reason, stale := index.Stale(f)
	s, p, owned := index.Owner(f)
	passing := f.Zone != 0 && f.Status&conntrack.DstNAT == 0 // Its packets pass the rules in another zone.
	if passing || !owned && !stale {
		return flowRow{}, false
	}
	r := flowRow{
		Protocol: nft.ProtocolText(uint8(f.Protocol)), Client: addressText(&f, f.Original.Src), Address: addressText(&f, f.Original.Dst), State: flowState(&f),
		ExpiresSeconds: int64(f.Timeout / time.Second), Stale: stale, Reason: string(reason), flow: f,
	}
	if owned {
		r.name, r.Service = s.Name, string(s.Name)
		r.Port = portText(p)
	}
	// A DNAT to the address that the packet already has does not show in the entry.
	if f.Status&conntrack.DstNAT != 0 || owned && leadsTo(p, f.Reply.Src) {
		r.Endpoint = f.Reply.Src.String()
	}
	if !f.Start.IsZero() {
		age := max(0, int64(now.Sub(f.Start)/time.Second))
		r.AgeSeconds = &age
	}
	return r, true
}

// portText is the port's name, or its number.
func portText(p *service.Port) string { return cmp.Or(p.Name, strconv.Itoa(int(p.Port))) }

// addressText returns the address, with a port for the protocols that have ports.
// Flows of other protocols are listed too: an echo request can go to an unallocated
// Service address.
func addressText(f *conntrack.Flow, a netip.AddrPort) string {
	switch f.Protocol {
	case service.TCP, service.UDP, service.SCTP:
		return a.String()
	}
	return a.Addr().String()
}

func leadsTo(p *service.Port, addr netip.AddrPort) bool {
	return p.Endpoints.Find(service.Endpoint{Addr: addr}) != nil
}

func flowState(f *conntrack.Flow) string {
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

// writeFlows prints a table for people.
func writeFlows(w io.Writer, rows []flowRow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PROTOCOL\tCLIENT\tSERVICE\tADDRESS\tENDPOINT\tSTATE\tAGE\tEXPIRES\tSTALE")
	for i := range rows {
		r := &rows[i]
		id := r.Service
		if id != "" {
			id += ":" + r.Port
		}
		age := "-"
		if r.AgeSeconds != nil {
			age = duration.HumanDuration(time.Duration(*r.AgeSeconds) * time.Second)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Protocol, r.Client, dashIfEmpty(printable(id)), r.Address,
			cmp.Or(r.Endpoint, "-"), r.State, age, duration.HumanDuration(r.flow.Timeout), cmp.Or(r.Reason, "-"))
	}
	return t.Flush()
}

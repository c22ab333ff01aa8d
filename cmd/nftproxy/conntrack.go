package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/printable"
	"nftproxy/model/service"
)

func newConntrackCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conntrack",
		Short: "List and remove this node's connections to Services",
		Long: `The kernel keeps an entry for each connection or UDP flow in its connection
tracking table. The rules decide about the first packet only; the entry sends all
others the same way. So a flow can go on to an endpoint that is gone, or miss a
Service that is younger than the flow. Such a flow is stale. A running nftproxy
removes stale flows by itself after each change. These commands show the flows,
and remove some of them by hand.

A flow is stale for one of these reasons:
  service address, node port    it is older than the Service and misses it
  unknown port of a cluster IP  it goes to a port of a cluster IP that is refused now
  unallocated address           it goes to a Service address that no Service has
  endpoint gone                 it goes to an address that is not, or no longer, an
                                endpoint of the Service
  service gone                  its Service is gone, or the Service's address or port
  source not in the ranges      unanswered; source ranges of the Service forbid it now
  traffic policy                unanswered; the traffic policy Local forbids it now

Established TCP and SCTP connections to endpoints that are gone stay until they
end by themselves. With --nftproxy-conntrack-clean-established=tcp,sctp they are
stale too. The commands neither show nor remove flows that have nothing to do
with Services, such as those of published container ports.

The Services come from one of three sources:
  --kubeconfig or --master  the API server; give the same flags as to run
  --nftproxy-manifests      files; give the same flags as to run
  none of these             nftproxy's tables in this node's kernel; needs no flags

The tables have only the endpoints that get new connections. So by the tables a UDP
flow to any other endpoint is stale: to one that is terminating, or that topology
or a traffic policy leaves out now. With --nftproxy-conntrack-clean-established
established TCP and SCTP connections to such an endpoint are stale as well.

A Service is NAME with -n NAMESPACE, or NAMESPACE/NAME. list takes a NAME alone for
that of any namespace, and clean takes none.

What is safe: list, sysctl and clean --dry-run change nothing. clean removes stale
flows only. The next packet of such a flow goes to a live endpoint or is refused.
But by the tables alone, clean with --nftproxy-conntrack-clean-established also
breaks connections to endpoints that still serve them. clean --all-service-flows
removes valid flows too: UDP flows may get another endpoint, and TCP connections
break.`,
		Example: `  nftproxy conntrack list                          all flows of Services, and why some are stale
  nftproxy conntrack list --stale -o json
  nftproxy conntrack clean --dry-run               the flows that clean would remove
  nftproxy conntrack clean shop/cart --protocol udp
  nftproxy conntrack sysctl                        the table's size and time-outs
  kubectl -n kube-system exec POD -- /nftproxy conntrack list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConntrackListCommand(), newConntrackCleanCommand(), newConntrackSysctlCommand())
	return cmd
}

type flowOptions struct {
	sourceOptions
	nameOptions
	established []string
	protocol    string
	output
}

func (o *flowOptions) addFlags(cmd *cobra.Command) {
	o.sourceOptions.addFlags(cmd)
	f := cmd.Flags()
	addCleanEstablished(f, &o.established)
	o.addService(cmd)
	f.StringVar(&o.protocol, "protocol", "", "only flows of this protocol: tcp, udp or sctp")
	o.addFlag(cmd)
}

func (o *flowOptions) parse(names []string) (*inspect.FlowSource, inspect.FlowFilter, error) {
	var filter inspect.FlowFilter
	node, config, err := o.sourceOptions.parse()
	if err != nil {
		return nil, filter, err
	}
	s := o.flowSource(node, config)
	if s.Established, err = cleanEstablished(o.established); err != nil {
		return nil, filter, err
	}
	if filter.Services, err = o.selected(names); err != nil {
		return nil, filter, err
	}
	if o.protocol != "" {
		if filter.Protocol, err = service.ParseProtocol(o.protocol); err != nil {
			return nil, filter, unknownValue("protocol", o.protocol)
		}
	}
	return s, filter, nil
}

// sysctlOptions are the flags about the kernel's settings of connection tracking.
// The commands run and conntrack sysctl have them.
type sysctlOptions struct {
	conntrack.Sysctls
	dir string
}

// addFlags adds the flags. All but the directory have kube-proxy's names and defaults.
func (o *sysctlOptions) addFlags(f *pflag.FlagSet) {
	o.Sysctls = conntrack.DefaultSysctls()
	f.IntVar(&o.MaxPerCore, "conntrack-max-per-core", o.MaxPerCore, "minimum size of the conntrack table for each "+
		"CPU, in entries; 0: unchanged (docs/conntrack.md#kernel-settings)")
	f.IntVar(&o.Min, "conntrack-min", o.Min, "minimum size of the conntrack table, in entries "+
		"(docs/conntrack.md#kernel-settings)")
	f.DurationVar(&o.TCPEstablished, "conntrack-tcp-timeout-established", o.TCPEstablished,
		"how long the kernel tracks idle TCP connections; 0: unchanged")
	f.DurationVar(&o.TCPCloseWait, "conntrack-tcp-timeout-close-wait", o.TCPCloseWait, "how long the kernel tracks idle "+
		"TCP connections in state CLOSE_WAIT; 0: unchanged")
	f.BoolVar(&o.BeLiberal, "conntrack-tcp-be-liberal", o.BeLiberal, "track TCP packets out of the window, too "+
		"(nf_conntrack_tcp_be_liberal=1)")
	f.DurationVar(&o.UDP, "conntrack-udp-timeout", o.UDP, "how long the kernel tracks idle UDP flows; 0: unchanged")
	f.DurationVar(&o.UDPStream, "conntrack-udp-timeout-stream", o.UDPStream, "how long the kernel tracks idle UDP flows "+
		"with packets in both directions; 0: unchanged")
	f.StringVar(&o.dir, ownPrefix+"conntrack-sysctl-dir", conntrack.DefaultSettingsDir, "writable directory "+
		"of the host's /proc/sys/net/netfilter (docs/conntrack.md#settings-that-cannot-be-set)")
}

// check refuses the values that kube-proxy refuses.
func (o *sysctlOptions) check() error {
	return errors.Join(
		notNegative("conntrack-max-per-core", o.MaxPerCore), notNegative("conntrack-min", o.Min),
		notNegative("conntrack-tcp-timeout-established", o.TCPEstablished),
		notNegative("conntrack-tcp-timeout-close-wait", o.TCPCloseWait),
		notNegative("conntrack-udp-timeout", o.UDP), notNegative("conntrack-udp-timeout-stream", o.UDPStream),
	)
}

func (o *sysctlOptions) files() conntrack.Files { return conntrack.Files{Settings: o.dir} }

// cleanEstablishedFlag is the name of the flag with the protocols whose established
// connections are stale too when their endpoint is gone.
const cleanEstablishedFlag = ownPrefix + "conntrack-clean-established"

func addCleanEstablished(f *pflag.FlagSet, protocols *[]string) {
	f.StringSliceVar(protocols, cleanEstablishedFlag, nil, "protocols (tcp, sctp) whose established connections end "+
		"with their endpoint (docs/conntrack.md#connections-to-a-pod-that-disappeared)")
}

// cleanEstablished parses the flag's value. UDP is no valid word: a UDP flow has no
// connection, and is always stale when its endpoint is gone.
func cleanEstablished(words []string) ([]service.Protocol, error) {
	var list []service.Protocol
	for _, word := range words {
		p, err := service.ParseProtocol(word)
		if err != nil || p == service.UDP {
			return nil, unknownValue(cleanEstablishedFlag, word)
		}
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list, nil
}

func newConntrackListCommand() *cobra.Command {
	var o flowOptions
	var stale bool
	cmd := &cobra.Command{
		Use:   "list [NAME | NAMESPACE/NAME ...]",
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

-o json and -o yaml print an object with source (kubernetes, manifests or table) and
flows. Each flow has protocol, client, service (namespace/name), port, address,
endpoint, state, ageSeconds (null if unknown), expiresSeconds, stale (true or false)
and reason. A string that does not apply is empty. Later versions may add fields; they
do not change these.`,
		Example: `  nftproxy conntrack list --stale
  nftproxy conntrack list kube-dns -n kube-system --protocol udp
  nftproxy conntrack list -o json --kubeconfig /etc/kubernetes/proxy.conf`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			source, filter, err := o.parse(names)
			if err != nil {
				return usageError{err}
			}
			filter.Stale = stale
			return listFlows(cmd, source, filter, o.output)
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&stale, "stale", false, "only stale flows")
	return cmd
}

func listFlows(cmd *cobra.Command, source *inspect.FlowSource, filter inspect.FlowFilter, o output) error {
	notes := cmd.ErrOrStderr()
	table, rows, err := source.Flows(cmd.Context(), filter, notes)
	if err != nil {
		return err
	}
	defer table.Close()
	list := flowList{Source: source.Kind(), Flows: rows}
	err = o.print(cmd.OutOrStdout(), list, func(w io.Writer) error { return writeFlows(w, rows) })
	if err != nil || o.structured() {
		return err
	}
	stale := 0
	for _, r := range rows {
		if r.Stale {
			stale++
		}
	}
	fmt.Fprintf(notes, "nftproxy: %s, %d of them stale\n", inspect.Plural(len(rows), "flow"), stale)
	return nil
}

type flowList struct {
	Source string            `json:"source"`
	Flows  []inspect.FlowRow `json:"flows"`
}

func writeFlows(w io.Writer, rows []inspect.FlowRow) error {
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
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Protocol, r.Client, cmp.Or(printable.Text(id), "-"),
			r.Address,
			cmp.Or(r.Endpoint, "-"), r.State, age, duration.HumanDuration(r.Flow.Timeout), cmp.Or(r.Reason, "-"))
	}
	return t.Flush()
}

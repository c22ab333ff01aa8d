package main

import (
	"fmt"

	"github.com/spf13/cobra"

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
  source not in the ranges      unanswered; loadBalancerSourceRanges forbids it now
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

What is safe: list, sysctl and clean --dry-run change nothing. clean removes stale
flows only. The next packet of such a flow goes to a live endpoint or is refused.
But by the tables alone, clean with --nftproxy-conntrack-clean-established also
breaks connections to endpoints that still serve them. clean --all-service-flows
removes valid flows too: UDP flows may get another endpoint, and TCP connections
break.`,
		Example: `  nftproxy conntrack list                          all flows of Services, and why some are stale
  nftproxy conntrack list --stale -o json
  nftproxy conntrack clean --dry-run               the flows that clean would remove
  nftproxy conntrack clean --service shop/cart --protocol udp
  nftproxy conntrack sysctl                        the table's size and time-outs
  kubectl -n kube-system exec POD -- /nftproxy conntrack list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConntrackListCommand(), newConntrackCleanCommand(), newConntrackSysctlCommand())
	return cmd
}

// flowOptions are the flags of the commands about flows.
type flowOptions struct {
	sourceOptions
	established []string
	service     string
	protocol    string
	output      string
}

func (o *flowOptions) addFlags(cmd *cobra.Command) {
	o.sourceOptions.addFlags(cmd)
	f := cmd.Flags()
	addCleanEstablished(f, &o.established)
	f.StringVar(&o.service, "service", "", "only flows of this Service, NAMESPACE/NAME")
	f.StringVar(&o.protocol, "protocol", "", "only flows of this protocol: tcp, udp or sctp")
	addOutput(cmd, &o.output)
}

// parse checks the flags.
func (o *flowOptions) parse() (*flowSource, flowFilter, error) {
	var filter flowFilter
	node, config, err := o.sourceOptions.parse()
	if err != nil {
		return nil, filter, err
	}
	s := &flowSource{options: o.sourceOptions, node: node, config: config}
	if s.established, err = cleanEstablished(o.established); err != nil {
		return nil, filter, err
	}
	if o.service != "" {
		filter.service = service.Name(o.service)
		if namespace, name := filter.service.Split(); namespace == "" || name == "" {
			return nil, filter, fmt.Errorf("--service: %q: want NAMESPACE/NAME", o.service)
		}
	}
	if o.protocol != "" {
		if filter.protocol, err = service.ParseProtocol(o.protocol); err != nil {
			return nil, filter, fmt.Errorf("--protocol: %w", err)
		}
	}
	return s, filter, checkOutput(o.output)
}

// flowFilter selects rows. A zero field selects all.
type flowFilter struct {
	service  service.Name
	protocol service.Protocol
	stale    bool
}

func (f flowFilter) selects(r *flowRow) bool {
	return (f.service == "" || f.service == r.name) &&
		(f.protocol == 0 || f.protocol == r.flow.Protocol) && (!f.stale || r.Stale)
}

// known says whether the snapshot has the filter's Service.
func (f flowFilter) known(s service.Snapshot) bool {
	if f.service == "" {
		return true
	}
	_, ok := s.Services.Get(f.service)
	return ok
}

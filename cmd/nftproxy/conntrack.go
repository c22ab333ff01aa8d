package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"nftproxy/internal/service"
)

func newConntrackCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conntrack",
		Short: "See and clean this node's connections through services",
		Long: `The kernel remembers for each connection or UDP flow where it was sent, in its
connection tracking table, and asks the rules for the first packet only. So a
flow can go on to an endpoint that is gone, or past a service that has come
since. Such a flow is stale. A running nftproxy removes stale flows by itself,
after each change; these commands show what is there, and remove by hand.

A flow is stale if
  service address, node port    it was there before the service, and passes it by
  unknown port of a cluster IP  it goes to a cluster IP by a port that is refused
  unallocated address           it goes to an address for services that none has
  endpoint gone                 it leads to what is no endpoint of its service any more
  service gone                  its service has gone, or that address or port of it
  source not in the ranges      unanswered, and loadBalancerSourceRanges forbids it now
  traffic policy                unanswered, and the traffic policy Local forbids it now

Established TCP and SCTP connections to endpoints that are gone are left to end
by themselves, unless --conntrack-clean-established=tcp,sctp is given. Flows that
have nothing to do with services, such as those of published container ports, are
neither shown nor removed.

What is safe: list, sysctl and clean --dry-run change nothing. clean removes
stale flows only: the next packet of such a flow is sent to a live endpoint, or
refused. With neither an API server nor manifests, UDP flows to endpoints that
are terminating or left out count as stale (see below), and so do established
connections to them with --conntrack-clean-established: these break. clean
--all-service-flows removes valid ones as well: UDP flows may get another
endpoint, and TCP connections break.

The services are those of an API server (--kubeconfig, --master), or of
--manifests, with the same flags as run; with neither, those that the tables of
nftproxy in this node's kernel serve. These need no flags, but have only endpoints
that get new connections: a UDP flow to another one (terminating, or left out by
topology or policy since) counts as stale then; with --conntrack-clean-established
an established TCP or SCTP connection to one as well.`,
		Example: `  nftproxy conntrack list                          all flows of services, with why they are stale
  nftproxy conntrack list --stale -o json
  nftproxy conntrack clean --dry-run               what clean would remove
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
	f.Lookup("cluster-cidr").Usage = "CIDR of the pods, or one of each family with a comma"
	f.Lookup("manifests").Usage = "file or directory of Service, EndpointSlice and Node manifests"
	addCleanEstablished(f, &o.established)
	f.StringVar(&o.service, "service", "", "only flows of this service, NAMESPACE/NAME")
	f.StringVar(&o.protocol, "protocol", "", "only flows of this protocol: tcp, udp or sctp")
	addOutput(cmd, &o.output)
}

const (
	outputText = "text"
	outputJSON = "json"
)

func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", outputText, "text or json")
}

func checkOutput(output string) error {
	if output != outputText && output != outputJSON {
		return fmt.Errorf("--output: %q: want text or json", output)
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
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

// flowFilter selects rows; zero values select all.
type flowFilter struct {
	service  service.Name
	protocol service.Protocol
	stale    bool
}

func (f flowFilter) selects(r *flowRow) bool {
	return (f.service == "" || f.service == r.name) &&
		(f.protocol == 0 || f.protocol == r.flow.Protocol) && (!f.stale || r.Stale)
}

// known says whether the filter's service is there to have flows.
func (f flowFilter) known(s service.Snapshot) bool {
	if f.service == "" {
		return true
	}
	_, ok := s.Services.Get(f.service)
	return ok
}

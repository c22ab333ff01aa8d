package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
)

// endpointList is the JSON that get endpoints prints.
type endpointList struct {
	Endpoints []inspect.EndpointRow `json:"endpoints"`
}

// endpointOptions are the flags of get endpoints.
type endpointOptions struct {
	getOptions
	connections, draining bool
}

func newGetEndpointsCommand() *cobra.Command {
	var o endpointOptions
	cmd := &cobra.Command{
		Use:     "endpoints [[NAMESPACE/]SERVICE ...]",
		Aliases: []string{"endpoint", "ep"},
		Args:    cobra.ArbitraryArgs,
		Short:   "Show the endpoints of Services, and which departing ones still have connections",
		Long: `endpoints shows where connections to Services go:

  PORT         the Service port
  ENDPOINT     the address and port that connections are sent to
  LOCAL        whether the endpoint is on this node; - if unknown
  STATE        active: it gets new connections
               draining: it gets no new connections, since it terminates, is not ready, is
               gone, or topology or a traffic policy leaves it out; but conntrack still
               has connections to it
  CONNECTIONS  the connections and UDP flows that conntrack has to the endpoint through
               this Service port. TCP connections that both sides have closed do not count

-o wide adds PORT-NAME, LISTS (internal: for connections to the cluster IP; external:
to external addresses and node ports, with traffic policy Local those from pods and
the node; external-local: with traffic policy Local those of all other clients) and
CLOSING (TCP connections that both sides have closed, until conntrack forgets them).

The counts are this node's: clients of other nodes count there. With
--connections=false conntrack is not read, and no draining endpoints are shown. If
conntrack cannot be read, the rows have no counts, and the exit status is 1.

-o json prints an object with endpoints. Each has namespace, service, portName,
protocol, port, endpoint, local (null if unknown), state, lists, connections and
closing (null if not counted). Later versions may add fields; they do not change
these. Exit statuses: see nftproxy get --help.`,
		Example: `  nftproxy get endpoints
  nftproxy get endpoints shop/cart -o wide
  nftproxy get endpoints --draining                which departing endpoints are still in use
  nftproxy get endpoints --address 10.244.1.5      of which Services is this pod an endpoint
  nftproxy get ep -n kube-system -o yaml --connections=false`,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := o.selection(names)
			if o.draining && !o.connections {
				err = errors.Join(err, errors.New("--draining needs --connections"))
			}
			if err != nil {
				return usageError{err}
			}
			return o.run(cmd, s)
		},
	}
	o.addFlags(cmd, "endpoints at this address, or of Services with it", "endpoints at this port, or of Services with it")
	cmd.Flags().BoolVar(&o.connections, "connections", true, "count connections, and find draining endpoints, in the conntrack table")
	cmd.Flags().BoolVar(&o.draining, "draining", false, "only draining endpoints")
	cmd.ValidArgsFunction = o.completeServices
	return cmd
}

func (o *endpointOptions) run(cmd *cobra.Command, s inspect.Selection) error {
	r, err := o.read(cmd.Context())
	if err != nil {
		return err
	}
	defer r.conn.Close()
	var connections *inspect.Connections
	var uncounted error
	if o.connections {
		if connections, uncounted = r.countConnections(cmd); uncounted != nil {
			connections = nil
		}
	}
	rows := r.EndpointRows(s, connections)
	if o.draining {
		rows = slices.DeleteFunc(rows, func(e inspect.EndpointRow) bool { return e.State != inspect.Draining })
	}
	if err := printRows(cmd.OutOrStdout(), o.printOptions, endpointColumns(), rows, endpointList{rows}); err != nil {
		return err
	}
	if uncounted != nil {
		return fmt.Errorf("connections are not counted: %w", uncounted)
	}
	return r.finish(cmd, &o.getOptions, s, len(rows), "endpoints")
}

// countConnections reads the conntrack table.
func (r *reading) countConnections(cmd *cobra.Command) (*inspect.Connections, error) {
	connections, err := inspect.CountConnections(cmd.Context(), r.config, r.Snapshot)
	if errors.Is(err, conntrack.ErrInterrupted) {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: connections may be missing: %v\n", err)
		err = nil
	}
	if n := connections.Orphans; n > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: %s to addresses that no Service has any more\n", plural(n, "connection"))
	}
	return connections, err
}

func endpointColumns() []column[inspect.EndpointRow] {
	type row = inspect.EndpointRow
	count := func(n *int) string {
		if n == nil {
			return ""
		}
		return strconv.Itoa(*n)
	}
	return []column[row]{
		{header: "NAMESPACE", text: func(r *row) string { return r.Namespace }},
		{header: "SERVICE", text: func(r *row) string { return r.Service }},
		{header: "PORT", text: func(r *row) string { return inspect.PortText(r.PortName, r.Protocol, r.Port) }},
		{header: "PORT-NAME", wide: true, text: func(r *row) string { return r.PortName }},
		{header: "ENDPOINT", text: func(r *row) string { return r.Endpoint.String() }},
		{header: "LOCAL", text: func(r *row) string {
			if r.Local == nil {
				return ""
			}
			return yesNo(*r.Local)
		}},
		{header: "STATE", text: func(r *row) string { return r.State }},
		{header: "LISTS", wide: true, text: func(r *row) string { return strings.Join(r.Lists, ",") }},
		{header: "CONNECTIONS", text: func(r *row) string { return count(r.Connections) }},
		{header: "CLOSING", wide: true, text: func(r *row) string { return count(r.Closing) }},
	}
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/nft/ejecttable"
)

type endpointList struct {
	Endpoints []inspect.EndpointRow `json:"endpoints"`
}

type endpointOptions struct {
	getOptions
	connections, draining bool
}

func newGetEndpointsCommand() *cobra.Command {
	var o endpointOptions
	cmd := &cobra.Command{
		Use:     "endpoints [SERVICE | NAMESPACE/SERVICE ...]",
		Aliases: []string{"endpoint", "ep"},
		Args:    cobra.ArbitraryArgs,
		Short:   "Show the endpoints of Services, and which departing ones still have connections",
		Long: `endpoints shows where connections to Services go:

  PORT         the Service port
  ENDPOINT     the address and port that connections are sent to
  LOCAL        whether the endpoint is on this node; - if unknown
  STATE        active: it gets new connections
               growing: it gets fewer of them than its weight says, since it is new
               (nftproxy.io/slow-start)
               left-out: the node does without it, since it does not answer
               (--nftproxy-eject)
               draining: it gets no new connections, since it terminates, is not ready, is
               gone, or topology or a traffic policy leaves it out; but conntrack still
               has connections to it
  CONNECTIONS  the connections and UDP flows that conntrack has to the endpoint through
               this Service port. TCP connections that both sides have closed do not count

-o wide adds PORT-NAME, WHY (of endpoints that are left out or growing), LISTS
(internal: for connections to the cluster IP; external: to external addresses and node
ports, with traffic policy Local those from pods and the node; external-local: with
traffic policy Local those of all other clients), SHARES (the endpoint's share of the
new connections of each list, by weights and hashes) and CLOSING (TCP connections that
both sides have closed, until conntrack forgets them).

The counts are this node's: clients of other nodes count there. With
--connections=false conntrack is not read, and no draining endpoints are shown. If
conntrack cannot be read, the rows have no counts, and the exit status is 1.

-o json and -o yaml print an object with endpoints. Each has namespace, service,
portName, protocol, port, endpoint, local (null if unknown), state, why, lists, shares
(from 0 to 1, one for each of lists), connections and closing (null if not counted).
Later versions may add fields; they do not change these. Exit statuses: see nftproxy
get --help.`,
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
	cmd.Flags().BoolVar(&o.connections, "connections", true, "count connections, and find draining endpoints, in the "+
		"conntrack table")
	cmd.Flags().BoolVar(&o.draining, "draining", false, "only draining endpoints")
	return cmd
}

func (o *endpointOptions) run(cmd *cobra.Command, s inspect.Selection) error {
	r, err := o.read(cmd.Context())
	if err != nil {
		return err
	}
	defer r.conn.Close()
	if r.Adjustments, err = ejecttable.Read(o.table); err != nil {
		return err
	}
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

func (r *reading) countConnections(cmd *cobra.Command) (*inspect.Connections, error) {
	connections, err := inspect.CountConnections(cmd.Context(), r.config, r.Snapshot)
	if errors.Is(err, conntrack.ErrInterrupted) {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: connections may be missing: %v\n", err)
		err = nil
	}
	if n := connections.Orphans; n > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: %s to addresses that no Service has any more\n",
			inspect.Plural(n, "connection"))
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
		{header: "WHY", wide: true, text: func(r *row) string { return r.Why }},
		{header: "LISTS", wide: true, text: func(r *row) string { return strings.Join(r.Lists, ",") }},
		{header: "SHARES", wide: true, text: func(r *row) string {
			var shares []string
			for _, share := range r.Shares {
				shares = append(shares, strconv.FormatFloat(100*share, 'f', 1, 64)+"%")
			}
			return strings.Join(shares, ",")
		}},
		{header: "CONNECTIONS", text: func(r *row) string { return count(r.Connections) }},
		{header: "CLOSING", wide: true, text: func(r *row) string { return count(r.Closing) }},
	}
}

type chainList struct {
	Chains []inspect.ChainRow `json:"chains"`
}

func newGetChainsCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:     "chains [NAME ...]",
		Aliases: []string{"chain"},
		Args:    cobra.ArbitraryArgs,
		Short:   "Show the chains of the tables, their rules, and what leads to them",
		Long: `chains shows the chains of both tables:

  TABLE  the family and name of the table
  CHAIN  the name
  KIND   base            it has a hook: packets begin there
         dispatch        refuses unknown ports of cluster IPs, and looks up node ports
         refuse          answers by a TCP reset or ICMP, and counts
         drop            drops, and counts
         external-local  chooses the endpoints of externalTrafficPolicy Local
         source-ranges   lets in the clients of source ranges
         endpoints       sends connections to one of a number of endpoints
         affinity        sends remembered clients to their endpoint
         learn           remembers the endpoint of a client
         foreign         no version of nftproxy makes such a chain
  RULES  the number of its rules
  USERS  the number of map elements and chains that lead to it. Services with the same
         number of endpoints share a chain. A chain without users stays for ten seconds

-o wide adds HOOK, ELEMENTS (the number of elements of each map that lead there) and
FROM (the chains with rules that lead there). -o yaml and -o json have the rules as nft
prints them.

-n, --address and --port select the chains that connections to such Services can come
to behind the base chains.

-o json and -o yaml print an object with chains. Each has table, name, kind, hook,
rules, elements (numbers by the name of the map) and fromChains. Later versions may add
fields; they do not change these. Exit statuses: see nftproxy get --help.`,
		Example: `  nftproxy get chains
  nftproxy get chains refuse -o yaml               the rules as text
  nftproxy get chains -n kube-system -o wide       chains that a namespace's Services use
  nftproxy get chains --address 10.96.0.10 --port 53`,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := o.selection(nil)
			if err != nil {
				return usageError{err}
			}
			s.Chains = names
			return show(cmd, &o, s, "chains", chainColumns(), func(r *reading) ([]inspect.ChainRow, any, error) {
				rows := r.ChainRows(s)
				return rows, chainList{rows}, nil
			})
		},
	}
	o.addFlags(cmd, "chains of Services with this address", "chains of Services with this port or node port")
	cmd.ValidArgsFunction = o.completeChains
	return cmd
}

func chainColumns() []column[inspect.ChainRow] {
	type row = inspect.ChainRow
	return []column[row]{
		{header: "TABLE", text: func(r *row) string { return r.Table }},
		{header: "CHAIN", text: func(r *row) string { return r.Name }},
		{header: "KIND", text: func(r *row) string { return r.Kind }},
		{header: "RULES", text: func(r *row) string { return strconv.Itoa(len(r.Rules)) }},
		{header: "USERS", text: func(r *row) string { return strconv.Itoa(r.Users()) }},
		{header: "HOOK", wide: true, text: func(r *row) string { return r.Hook }},
		{header: "ELEMENTS", wide: true, text: func(r *row) string {
			var of []string
			for _, name := range slices.Sorted(maps.Keys(r.Elements)) {
				of = append(of, fmt.Sprintf("%s:%d", name, r.Elements[name]))
			}
			return strings.Join(of, ",")
		}},
		{header: "FROM", wide: true, text: func(r *row) string { return fewOf(r.FromChains) }},
	}
}

type clientList struct {
	Clients []inspect.ClientRow `json:"clients"`
	// Truncated says that --limit left clients out.
	Truncated bool `json:"truncated"`
}

func newGetAffinityCommand() *cobra.Command {
	var o getOptions
	var limit int
	cmd := &cobra.Command{
		Use:   "affinity [SERVICE | NAMESPACE/SERVICE ...]",
		Args:  cobra.ArbitraryArgs,
		Short: "Show the clients that are remembered for session affinity",
		Long: `affinity shows the clients that the kernel remembers for Services with session
affinity, and the endpoint of each:

  PORT      the Service port
  CLIENT    the client's address
  ENDPOINT  where its next connection goes
  EXPIRES   the time until the kernel forgets the client if it does not connect again

-o wide adds PORT-NAME, TIMEOUT (the same time right after a connection), LIST (local:
by a traffic policy Local the client gets endpoints on this node only; else cluster)
and STALE (the endpoint gets no new connections any more; a running nftproxy removes
such a client soon).

The kernel can remember 65,535 clients for each family and Service port, so --limit
bounds the rows. A map that changes while it is read may lack some clients.

-o json and -o yaml print an object with clients and truncated (whether --limit left
some out). Each client has namespace, service, portName, protocol, port, client,
endpoint, list, expiresSeconds, timeoutSeconds and stale. Later versions may add
fields; they do not change these. Exit statuses: see nftproxy get --help.`,
		Example: `  nftproxy get affinity
  nftproxy get affinity shop/cart -o wide
  nftproxy get affinity --address 10.244.1.7       where that client is sent
  nftproxy get affinity -n shop --limit 0 -o json  all of them`,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := o.selection(names)
			if err = cmp.Or(err, notNegative("limit", limit)); err != nil {
				return usageError{err}
			}
			var list clientList
			err = show(cmd, &o, s, "remembered clients", clientColumns(), func(r *reading) (_ []inspect.ClientRow, _ any,
				err error) {
				list, err = r.clients(s, limit)
				return list.Clients, list, err
			})
			if list.Truncated {
				fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: only the first %d clients are shown; --limit 0 shows all\n", limit)
			}
			return err
		},
	}
	o.addFlags(cmd, "clients or endpoints with this address, or of Services with it",
		"clients of endpoints at this port, or of Services with it")
	cmd.Flags().IntVar(&limit, "limit", 1000, "show at most so many clients; 0 shows all")
	return cmd
}

// clients reads the remembered clients, at most limit of them unless that is 0. It reads
// no further map once it has enough.
func (r *reading) clients(s inspect.Selection, limit int) (clientList, error) {
	list := clientList{Clients: []inspect.ClientRow{}}
	for _, m := range r.ClientMaps(s) {
		entries, err := r.conn.Learned(m.Table, m.Set)
		if err != nil {
			return list, err
		}
		list.Clients = append(list.Clients, m.Rows(s, entries)...)
		if limit > 0 && len(list.Clients) > limit {
			list.Clients, list.Truncated = list.Clients[:limit], true
			break
		}
	}
	return list, nil
}

func clientColumns() []column[inspect.ClientRow] {
	type row = inspect.ClientRow
	seconds := func(n int64) string { return duration.HumanDuration(time.Duration(n) * time.Second) }
	return []column[row]{
		{header: "NAMESPACE", text: func(r *row) string { return r.Namespace }},
		{header: "SERVICE", text: func(r *row) string { return r.Service }},
		{header: "PORT", text: func(r *row) string { return inspect.PortText(r.PortName, r.Protocol, r.Port) }},
		{header: "PORT-NAME", wide: true, text: func(r *row) string { return r.PortName }},
		{header: "CLIENT", text: func(r *row) string { return r.Client.String() }},
		{header: "ENDPOINT", text: func(r *row) string { return r.Endpoint.String() }},
		{header: "EXPIRES", text: func(r *row) string { return seconds(r.ExpiresSeconds) }},
		{header: "TIMEOUT", wide: true, text: func(r *row) string { return seconds(r.TimeoutSeconds) }},
		{header: "LIST", wide: true, text: func(r *row) string { return r.List }},
		{header: "STALE", wide: true, text: func(r *row) string { return yesNo(r.Stale) }},
	}
}

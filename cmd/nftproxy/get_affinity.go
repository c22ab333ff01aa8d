package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/look/inspect"
)

// defaultClients is how many clients get affinity prints unless --limit says otherwise.
// The kernel may remember millions: 65,535 for each family and Service port.
const defaultClients = 1000

// clientList is the JSON that get affinity prints.
type clientList struct {
	Clients []inspect.ClientRow `json:"clients"`
	// Truncated says that --limit left clients out.
	Truncated bool `json:"truncated"`
}

// affinityOptions are the flags of get affinity.
type affinityOptions struct {
	getOptions
	limit int
}

func newGetAffinityCommand() *cobra.Command {
	var o affinityOptions
	cmd := &cobra.Command{
		Use:   "affinity [[NAMESPACE/]SERVICE ...]",
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

-o json prints an object with clients and truncated (whether --limit left some out).
Each client has namespace, service, portName, protocol, port, client, endpoint, list,
expiresSeconds, timeoutSeconds and stale. Later versions may add fields; they do not
change these. Exit statuses: see nftproxy get --help.`,
		Example: `  nftproxy get affinity
  nftproxy get affinity shop/cart -o wide
  nftproxy get affinity --address 10.244.1.7       where that client is sent
  nftproxy get affinity -n shop --limit 0 -o json  all of them`,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := o.selection(names)
			if err == nil && o.limit < 0 {
				err = fmt.Errorf("--limit: %d is negative", o.limit)
			}
			if err != nil {
				return usageError{err}
			}
			return o.run(cmd, s)
		},
	}
	o.addFlags(cmd, "clients or endpoints with this address, or of Services with it", "clients of endpoints at this port, or of Services with it")
	cmd.Flags().IntVar(&o.limit, "limit", defaultClients, "show at most so many clients; 0 shows all")
	cmd.ValidArgsFunction = o.completeServices
	return cmd
}

func (o *affinityOptions) run(cmd *cobra.Command, s inspect.Selection) error {
	r, err := o.read(cmd.Context())
	if err != nil {
		return err
	}
	defer r.conn.Close()
	list, err := r.clients(s, o.limit)
	if err != nil {
		return err
	}
	if err := printRows(cmd.OutOrStdout(), o.printOptions, clientColumns(), list.Clients, list); err != nil {
		return err
	}
	if list.Truncated {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: only the first %d clients are shown; --limit 0 shows all\n", o.limit)
	}
	return r.finish(cmd, &o.getOptions, s, len(list.Clients), "remembered clients")
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
		clients := make([]inspect.Client, len(entries))
		for i, e := range entries {
			clients[i] = inspect.Client(e)
		}
		list.Clients = append(list.Clients, m.Rows(s, clients)...)
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

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
)

func newGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show what this node's kernel holds: services, endpoints, chains, affinity",
		Long: `get shows what nftproxy's tables in this node's kernel hold. It reads the tables
themselves: it needs no API server and no running proxy, and it changes nothing.
It needs CAP_NET_ADMIN.

  nftproxy get services    the Services, and what refuses or drops connections to them
  nftproxy get endpoints   the endpoints, and how many connections each still has
  nftproxy get chains      the chains, their rules, and what leads to them
  nftproxy get affinity    the clients that are remembered for session affinity

The output is as with kubectl: a table, with more columns by -o wide, or all there
is by -o json and -o yaml; -n for a namespace, --no-headers. Rows have a stable
order. Notes and errors go to stderr.

A Service is NAME with -n NAMESPACE, or NAMESPACE/NAME; svc/ may stand before both. All
namespaces are shown unless -n names one, and a NAME alone is that of any namespace.

The exit status is 0, also where nothing is found; 1 if the kernel cannot be read; 2 if
it does not have a name that is given, or for an invalid command line.`,
		Example: `  nftproxy get services                            all Services
  nftproxy get services kube-dns -n kube-system -o wide
  nftproxy get services --address 10.96.0.10 --port 53
  nftproxy get endpoints --draining                who still has connections
  nftproxy get chains -o yaml                      the rules as text
  kubectl -n kube-system exec POD -- /nftproxy get services`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGetServicesCommand(), newGetEndpointsCommand(), newGetChainsCommand(), newGetAffinityCommand())
	return cmd
}

// getOptions are the flags that all commands of get have.
type getOptions struct {
	printOptions
	nameOptions
	table         string
	allNamespaces bool
	address       string
	port          uint16
}

// addFlags adds the flags. address and port say what the flags of these names select.
func (o *getOptions) addFlags(cmd *cobra.Command, address, port string) {
	o.printOptions.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	o.addNamespace(cmd)
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Services of all namespaces, whatever --namespace says "+
		"(all are shown without --namespace, too)")
	f.StringVar(&o.address, "address", "", "only "+address)
	f.Uint16Var(&o.port, "port", 0, "only "+port)
}

// selection makes the selection of the flags and of names of Services.
func (o *getOptions) selection(names []string) (inspect.Selection, error) {
	var errs []error
	if o.allNamespaces {
		o.namespace = ""
	}
	s, err := o.selected(names)
	errs = append(errs, err, checkTableName(o.table))
	s.Port = o.port
	if o.address != "" {
		s.Address, err = netip.ParseAddr(o.address)
		if err != nil || s.Address.Zone() != "" {
			errs = append(errs, fmt.Errorf("--address: %q is no IP address", o.address))
		}
		s.Address = s.Address.Unmap()
	}
	return s, errors.Join(errs...)
}

// reading is the tables with the connection that read them.
type reading struct {
	conn *kernel.Conn
	*inspect.Tables
	config ruleset.Config
}

// read reads the tables. The caller closes the connection.
func (o *getOptions) read(ctx context.Context) (*reading, error) {
	addrs, err := hostaddr.List(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	model, err := inspect.ReadTables(conn, o.table)
	if err == nil && model == nil {
		err = fmt.Errorf("this network namespace has no table %s: nftproxy has not run here since the node started, or its "+
			"tables have another name (--%stable)", o.table, ownPrefix)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// The tables do not name the node; only endpoints on it have this name.
	node := &service.Node{Name: "this node", HostAddresses: addrs.Own}
	return &reading{conn, inspect.NewTables(model, o.table, node), ruleset.ReadBackConfig(model, o.table)}, nil
}

// show prints the rows of the tables that were selected, as a table or as the list that holds them.
func show[R any](cmd *cobra.Command, o *getOptions, s inspect.Selection, what string, columns []column[R],
	rows func(*reading) ([]R, any, error)) error {
	r, err := o.read(cmd.Context())
	if err != nil {
		return err
	}
	defer r.conn.Close()
	selected, list, err := rows(r)
	if err != nil {
		return err
	}
	if err := printRows(cmd.OutOrStdout(), o.printOptions, columns, selected, list); err != nil {
		return err
	}
	return r.finish(cmd, o, s, len(selected), what)
}

// finish prints a note where a table for people has no rows. It returns an error about
// names that the tables do not have.
func (r *reading) finish(cmd *cobra.Command, o *getOptions, s inspect.Selection, rows int, what string) error {
	if err := r.Unknown(s); err != nil {
		return err
	}
	if rows == 0 && !o.structured() {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: no %s found\n", what)
	}
	return nil
}

// fewOf joins the first texts of a list, and counts the others.
func fewOf(list []string) string { return fewBy(list, ",", "+%d") }

// fewSentences does the same with sentences: a Service may have thousands.
func fewSentences(list []string) string { return fewBy(list, "; ", "%d more") }

func fewBy(list []string, separator, more string) string {
	const most = 4
	if len(list) > most {
		list = append(slices.Clone(list[:most]), fmt.Sprintf(more, len(list)-most))
	}
	return strings.Join(list, separator)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

type serviceList struct {
	Services []inspect.ServiceRow `json:"services"`
}

func newGetServicesCommand() *cobra.Command {
	var o getOptions
	var source sourceOptions
	cmd := &cobra.Command{
		Use:     "services [NAME | NAMESPACE/NAME ...]",
		Aliases: []string{"service", "svc"},
		Args:    cobra.ArbitraryArgs,
		Short:   "Show the Services that the kernel serves, and what refuses or drops connections",
		Long: `services shows the Services in nftproxy's tables:

  CLUSTER-IP    the cluster IPs; - if the tables name none
  EXTERNAL-IP   all other addresses: external IPs and load balancers' addresses
  PORT(S)       port:nodePort/protocol of each port
  ENDPOINTS     the number of endpoints of all ports that get new connections
  OBSTACLES     what refuses or drops connections, or keeps an address from the Service:
      no-endpoints          connections are refused
      held                  connections wait for an endpoint, as the annotation
                            no-endpoints: hold asks; DETAILS says how many, since when
      no-local-endpoints    a traffic policy is Local, and no endpoint is on this node:
                            connections are dropped
      source-ranges         loadBalancerSourceRanges, or the annotation source-ranges,
                            let only some clients in
      others-source-ranges  the same, by another Service with that address
      conflict              another Service has the address and port, or it is protected

-o wide adds LOCAL (the endpoints on this node), INTERNAL and EXTERNAL (the traffic
policies), AFFINITY (how long a client is remembered), OPTIONS (what annotations ask
for, as far as the tables do it: balance, external-failover, flows, no-endpoints, port-ranges,
source-ranges, tcp-established-timeout, udp-timeouts), PROBLEMS, and DETAILS (the
obstacles in words). A policy shows in the tables only where it makes a difference; elsewhere it is
Cluster. An address of which a Service gets no port is not in the tables; the events of
the Service name it (kubectl describe).

PROBLEMS are what cannot be used of the Service and its EndpointSlices: a mistyped
annotation, a bad field. The tables do not tell. With --kubeconfig, --master or
--nftproxy-manifests as for run, or --like 1 in nftproxy's pod, get services asks
there, and lists "problems" among the obstacles too; without, they are "not known", or
null as JSON. nftproxy status shows them, too.

-o json and -o yaml print an object with services. Each has namespace, name,
clusterIPs, externalAddresses, ports, internalTrafficPolicy, externalTrafficPolicy,
sessionAffinitySeconds, options, endpoints, localEndpoints, obstacles, problems and,
where connections are held, heldConnections and heldSeconds (of the first one). A port
has name, protocol, port, nodePort, ranges (such as 6000-6999,8080, in place of name
and port), endpoints, localEndpoints and frontends; a frontend has frontend, kind
(clusterIP, external, nodePort), family, fate (served, refused, held, dropped,
dropped-outside, passed, passed-outside), sourceRanges (null admits all) and chains; an
obstacle has kind, effect (refused, held, dropped, not-served), frontends and text. Later
versions may add fields; they do not change these. Exit statuses: see nftproxy get
--help.`,
		Example: `  nftproxy get services
  nftproxy get services shop/cart -o wide
  nftproxy get services -n kube-system --no-headers
  nftproxy get services --address 10.96.0.10 --port 53 -o json
  nftproxy get svc --port 30080                    which Service has that node port`,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := o.selection(names)
			if err != nil {
				return usageError{err}
			}
			source.table = o.table
			problems, err := source.problems(cmd)
			if err != nil {
				return err
			}
			return show(cmd, &o, s, "services", serviceColumns(), func(r *reading) ([]inspect.ServiceRow, any, error) {
				if err := r.ReadHeld(r.conn); err != nil {
					return nil, nil, err
				}
				rows := r.ServiceRows(s)
				for i := range rows {
					if problems != nil {
						rows[i].Problems = append([]string{}, problems(service.NewName(rows[i].Namespace, rows[i].Name))...)
					}
				}
				return rows, serviceList{rows}, nil
			})
		},
	}
	source.addObjectFlags(cmd)
	source.addLike(cmd)
	o.addFlags(cmd, "Services with this address; an address of the node selects node ports",
		"Services with this port or node port")
	return cmd
}

func serviceColumns() []column[inspect.ServiceRow] {
	type row = inspect.ServiceRow
	return []column[row]{
		{header: "NAMESPACE", text: func(r *row) string { return r.Namespace }},
		{header: "NAME", text: func(r *row) string { return r.Name }},
		{header: "CLUSTER-IP", text: func(r *row) string { return fewOf(addressTexts(r.ClusterIPs)) }},
		{header: "EXTERNAL-IP", text: func(r *row) string { return fewOf(addressTexts(r.ExternalAddresses)) }},
		{header: "PORT(S)", text: func(r *row) string { return fewOf(portTexts(r.Ports)) }},
		{header: "ENDPOINTS", text: func(r *row) string { return strconv.Itoa(r.Endpoints) }},
		{header: "LOCAL", wide: true, text: func(r *row) string { return strconv.Itoa(r.LocalEndpoints) }},
		{header: "INTERNAL", wide: true, text: func(r *row) string { return r.InternalTrafficPolicy }},
		{header: "EXTERNAL", wide: true, text: func(r *row) string { return r.ExternalTrafficPolicy }},
		{header: "AFFINITY", wide: true, text: func(r *row) string {
			if r.SessionAffinitySeconds == 0 {
				return ""
			}
			return duration.HumanDuration(time.Duration(r.SessionAffinitySeconds) * time.Second)
		}},
		{header: "OPTIONS", wide: true, text: func(r *row) string {
			var options []string
			for _, key := range slices.Sorted(maps.Keys(r.Options)) {
				options = append(options, key+"="+fewOf(strings.Split(r.Options[key], ",")))
			}
			return strings.Join(options, ",")
		}},
		{header: "OBSTACLES", text: func(r *row) string {
			var kinds []string
			for _, o := range r.Obstacles {
				if !slices.Contains(kinds, o.Kind) {
					kinds = append(kinds, o.Kind)
				}
			}
			if len(r.Problems) > 0 {
				kinds = append(kinds, "problems")
			}
			return strings.Join(kinds, ",")
		}},
		{header: "PROBLEMS", wide: true, text: func(r *row) string {
			if r.Problems == nil {
				return "not known"
			}
			return fewSentences(r.Problems)
		}},
		{header: "DETAILS", wide: true, text: func(r *row) string {
			var details []string
			for _, o := range r.Obstacles {
				details = append(details, o.Text)
			}
			return fewSentences(details)
		}},
	}
}

func addressTexts(list []netip.Addr) []string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return texts
}

// portTexts returns ports as kubectl prints them: 80:30080/tcp.
func portTexts(ports []inspect.PortRow) []string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = inspect.PortText(p.Name, p.Protocol, p.Port)
		if p.Ranges != "" {
			texts[i] = p.Ranges + "/" + p.Protocol
		}
		if port, protocol, _ := strings.Cut(texts[i], "/"); p.NodePort != 0 {
			texts[i] = fmt.Sprintf("%s:%d/%s", port, p.NodePort, protocol)
		}
	}
	return texts
}

// The completions of a shell read the tables, as the commands do. Where they cannot be read, there are none.

func (o *getOptions) namespaces(cmd *cobra.Command) ([]string, cobra.ShellCompDirective) {
	return o.complete(cmd, nil, "", func(r *reading) (names []string) {
		for _, name := range r.Names() {
			namespace, _ := name.Split()
			names = append(names, namespace)
		}
		return names
	})
}

// completeServices completes names of Services: with --namespace NAME, else NAMESPACE/NAME.
func (o *getOptions) completeServices(cmd *cobra.Command, args []string,
	toComplete string) ([]string, cobra.ShellCompDirective) {
	return o.complete(cmd, args, toComplete, func(r *reading) (names []string) {
		for _, name := range r.Names() {
			if namespace, bare := name.Split(); o.namespace == "" || o.allNamespaces {
				names = append(names, string(name))
			} else if namespace == o.namespace {
				names = append(names, bare)
			}
		}
		return names
	})
}

func (o *getOptions) completeChains(cmd *cobra.Command, args []string,
	toComplete string) ([]string, cobra.ShellCompDirective) {
	return o.complete(cmd, args, toComplete, func(r *reading) (names []string) {
		for _, row := range r.ChainRows(inspect.Selection{}) {
			names = append(names, row.Name)
		}
		return names
	})
}

// complete reads the tables and returns the candidates that begin so, are no arguments yet, and that a shell takes as
// they are: names from a table could hold anything.
func (o *getOptions) complete(cmd *cobra.Command, args []string, toComplete string,
	candidates func(*reading) []string) ([]string, cobra.ShellCompDirective) {
	r, err := o.read(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer r.conn.Close()
	plain := func(c rune) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("-._/", c)
	}
	names := slices.DeleteFunc(candidates(r), func(name string) bool {
		return !strings.HasPrefix(name, toComplete) || slices.Contains(args, name) ||
			strings.ContainsFunc(name, func(c rune) bool { return !plain(c) })
	})
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

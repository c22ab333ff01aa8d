package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

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
order. All namespaces are shown unless -n names one. Notes and errors go to stderr.

The exit status is 0, also where nothing is found; 1 if the kernel cannot be read, or
if it does not have a name that is given; 2 for an invalid command line.`,
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
	table         string
	namespace     string
	allNamespaces bool
	address       string
	port          uint16
}

// addFlags adds the flags. address and port say what the flags of these names select.
func (o *getOptions) addFlags(cmd *cobra.Command, address, port string) {
	o.printOptions.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	f.StringVarP(&o.namespace, "namespace", "n", "", "only Services of this namespace")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Services of all namespaces, whatever --namespace says (all are shown without --namespace, too)")
	f.StringVar(&o.address, "address", "", "only "+address)
	f.Uint16Var(&o.port, "port", 0, "only "+port)
	o.completeNamespaces(cmd)
}

// selection makes the selection of the flags and of names of Services.
func (o *getOptions) selection(names []string) (inspect.Selection, error) {
	var errs []error
	if o.allNamespaces {
		o.namespace = ""
	}
	s, err := inspect.NewSelection(o.namespace, names)
	errs = append(errs, err, o.check(), checkTableName(o.table))
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
		err = noTables(o.table)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// The tables do not name the node; only endpoints on it have this name.
	node := &service.Node{Name: "this node", HostAddresses: addrs.Own}
	return &reading{conn, inspect.NewTables(model, o.table, node), ruleset.ReadBackConfig(model, o.table)}, nil
}

// finish prints a note where a table for people has no rows. It returns an error about
// names that the tables do not have.
func (r *reading) finish(cmd *cobra.Command, o *getOptions, s inspect.Selection, rows int, what string) error {
	if missing := r.Missing(s); len(missing) > 0 {
		return fmt.Errorf("not in the tables: %s", printable(strings.Join(missing, ", ")))
	}
	if rows == 0 && !o.structured() {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: no %s found\n", what)
	}
	return nil
}

// fewOf joins the first texts of a list, and counts the others.
func fewOf(list []string) string {
	const most = 4
	if len(list) <= most {
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(list[:most], ","), len(list)-most)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

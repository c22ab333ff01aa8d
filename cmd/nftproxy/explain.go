package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/node/hostaddr"
)

// The exit statuses of explain, besides 0 for an endpoint.
const (
	statusNotServed exitStatus = 1 // refused or dropped, at least at times
	statusNotKnown  exitStatus = 2 // nftproxy could not tell, or could not read
	statusUntouched exitStatus = 3 // no rule of nftproxy's is about the packet
)

type explainOptions struct {
	sourceOptions
	output
	nameOptions
	from    string
	verbose bool
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain [--from ADDR[@INTERFACE]] (ADDR:PORT[/PROTOCOL] | SERVICE[:PORT])",
		Short: "Say what the rules do with a packet, and why",
		Long: `explain takes the rules and maps from this node's kernel and evaluates them for the
first packet of a connection. It says in words, step by step, which element matched
and which chain, which endpoints the packet may go to and how likely each is, whether
it is masqueraded and by which rule, whether the client is remembered and for how
long; or where and why it is refused, dropped or not translated, who in the cluster
or on the node causes that, and what helps. It needs no API server and no running
proxy, it sends no packet, and it changes nothing. It needs CAP_NET_ADMIN.

The destination is an address and port, such as 10.96.0.10:53 or '[fd00:96::a]:53',
without a protocol for TCP. ADDR/icmp is an echo request. Or it is a Service, which
stands for its cluster IP: NAME with -n NAMESPACE, or NAMESPACE/NAME, and the name or
number of its port, as in shop/cart:http or kube-dns:53/udp, which may be left out if it
has one. A NAME alone is that of any namespace, if it is in one only.

--from is the client: an address, or an address and the interface by which its packets
come in, or "node" for a process of the node. Without --from explain chooses a likely
client, and says which: a pod of this node for an address that Services have in the
cluster, a client outside for any other. Then it also says what happens to the packet
from other clients, if that differs.

From the tables alone explain knows the Service, its port, and the endpoints that get
new connections. With a source of objects it also names conditions of endpoints,
traffic policies, topology hints and conflicts between Services, says what cannot be
used of the Service's objects (a mistyped annotation, a bad field), and where the
tables are not as the objects ask:
  --kubeconfig or --master  the API server; give the same flags as to run
  --nftproxy-manifests      files; give the same flags as to run
  --like                    those of a running nftproxy, with its flags; 1 in its pod

A packet has to pass the chains of all programs. explain names those that may drop or
change it, with table, hook and priority: firewalls, a CNI plugin, kube-proxy. It does
not evaluate their rules. It does not look at open connections either: nftproxy
conntrack list says whether the kernel knows the connection from before.

Behind the rules it asks the kernel for the way to each endpoint and back to the
client, as for their packets: forwarding, rules and tables of routing, rp_filter,
neighbours, and bridges whose packets rules do not see. It says what is not known.

The exit status is 0 if the packet goes to an endpoint, 1 if it is refused or dropped,
or if this node stops it or its answer on the way to every endpoint,
3 if no rule applies to it, and 2 if explain could not tell, could not read the
kernel or the objects, or got an invalid command line.

-o json and -o yaml print an object with packet, outcome (endpoint, refused, dropped,
untouched, undecided or mixed), summary, results (outcome, by, chance), service, port,
problems (of the Service's objects; null if no source of objects tells),
endpoints (address, chance, masqueraded, masqueradedBy, way, about), stops (endpoint,
why), affinity (map, endpoint, expiresSeconds; null if the client is not remembered),
steps (hook, table, chain, number, rule, matched, says, elements), otherwise (other
ways: chance, steps),
causes, remedies, others (chains of other programs), notes, assumed and elsewhere
(other clients, where the outcome differs). Later versions may add fields; they do not
change these. Only the first 100 endpoints have a way, and are tried.`,
		Example: `  nftproxy explain 10.96.0.10:53/udp
  nftproxy explain --from 10.244.1.5 10.96.0.10:53/udp --verbose
  nftproxy explain --from 203.0.113.9@eth0 192.168.0.2:30080
  nftproxy explain --from node 10.96.0.10:53 -o json
  nftproxy explain cart:http -n shop --from 10.244.1.5
  nftproxy explain 10.96.0.20:80 --kubeconfig /etc/kubernetes/proxy.conf
  kubectl -n kube-system exec POD -- /nftproxy explain 10.96.0.20:80`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := o.explain(cmd, args[0])
			if err == nil {
				err = o.print(cmd.OutOrStdout(), e, func(w io.Writer) error {
					_, err := io.WriteString(w, e.Text(o.verbose))
					return err
				})
			}
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: %v\n", err)
				return statusNotKnown
			}
			if e.Stopped() {
				return statusNotServed
			}
			return statusOf(e.Outcome)
		},
	}
	o.addFlags(cmd)
	o.addLike(cmd)
	o.addNamespace(cmd)
	f := cmd.Flags()
	f.Lookup("namespace").Usage = "namespace of the Service that is named"
	f.StringVar(&o.from, "from", "", "the client: `ADDR`, ADDR@INTERFACE or node (default a likely client)")
	f.BoolVar(&o.verbose, "verbose", false, "print the text of each rule, and rules that decide nothing")
	o.addFlag(cmd)
	completeWords(cmd, "from", explain.FromNode)
	return cmd
}

func (o *explainOptions) explain(cmd *cobra.Command, destination string) (explain.Explanation, error) {
	var none explain.Explanation
	source, err := o.objects()
	to, named, destinationErr := o.destination(destination)
	from, fromErr := explain.ParseOrigin(o.from)
	if err := errors.Join(err, destinationErr, fromErr); err != nil {
		return none, err
	}
	kernel, err := live.Look(cmd.Context(), source.Rules.Table)
	if err != nil {
		return none, err
	}
	defer kernel.Close()
	objects, err := readObjects(cmd, source, kernel)
	if err != nil {
		return none, err
	}
	if named != nil {
		if to, err = find(named, source, objects, kernel, from.Addr); err != nil {
			return none, err
		}
	}
	question, err := kernel.Ask(from, to)
	if err != nil {
		return none, err
	}
	return kernel.Explain(cmd.Context(), question, objects, source.Problems, source.String())
}

// readObjects reads the objects of the source, and tells the kernel's explanations which of them do not count. It
// returns nil if the source is the kernel.
func readObjects(cmd *cobra.Command, source *inspect.FlowSource, kernel *live.Node) (*service.Snapshot, error) {
	if source.Kind() == "table" {
		return nil, nil
	}
	addrs, err := hostaddr.List(cmd.Context())
	if err != nil {
		return nil, err
	}
	objects, err := source.Snapshot(cmd.Context(), addrs, cmd.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	for _, p := range source.Ignored {
		kernel.Ignore(explain.IgnoredSlice{Namespace: p.Object.Namespace, Name: p.Object.Name, Why: p.Field + ": " +
			p.Err.Error()})
	}
	return &objects, nil
}

// find finds the address of a Service by the objects, or without these by the tables.
func find(named *inspect.Target, source *inspect.FlowSource, objects *service.Snapshot, kernel *live.Node,
	client netip.Addr) (explain.Destination, error) {
	if objects != nil {
		return destinationOf(named.InObjects(objects, source.String(), client))
	}
	const anyNode = "this node"
	tables := inspect.NewTables(kernel.Tables(), source.Rules.Table, &service.Node{Name: anyNode})
	return destinationOf(named.InTables(tables, client))
}

func destinationOf(at netip.AddrPort, p service.Protocol, err error) (explain.Destination, error) {
	return explain.Destination{To: at, Protocol: uint8(p)}, err
}

// statusOf returns the exit status, nil for 0.
func statusOf(o explain.Outcome) error {
	switch o {
	case explain.Endpoint:
		return nil
	case explain.Untouched:
		return statusUntouched
	case explain.Undecided:
		return statusNotKnown
	}
	return statusNotServed
}

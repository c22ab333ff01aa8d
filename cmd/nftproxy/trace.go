package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/look/inspect"
	"nftproxy/look/tracing"
	"nftproxy/model/printable"
	"nftproxy/nft/livetrace"
	"nftproxy/nft/ruleset"
)

// The bounds of a trace, and its defaults.
const (
	maxTracedPackets, tracedPackets = 1000, 10
	maxTraceTime, traceTime         = time.Hour, 30 * time.Second
)

// statusNoPacket is the exit status of trace where no packet came.
const statusNoPacket exitStatus = 1

type traceOptions struct {
	output
	nameOptions
	table, from string
	packets     int
	timeout     time.Duration
}

func newTraceCommand() *cobra.Command {
	var o traceOptions
	cmd := &cobra.Command{
		Use:   "trace [flags] [SOURCE[:PORT] ->] (ADDRESS:PORT[/PROTOCOL] | SERVICE[:PORT])",
		Short: "Show the rules that real packets meet, one by one",
		Long: `trace waits for the first packets of new connections to an address and port,
and shows each rule that they meet: of nftproxy, and of every other program on
the node. Later packets of a connection meet no rule of nftproxy.

Each packet begins with its addresses, the interface, and its Service. A line for
each step follows: the hook, the table, the chain, and the rule with its verdict.
The end says what happened to the packet, and what connection tracking noted of it.
A rule of another program stands by its handle (nft -a list ruleset).

A source can stand before the address, as in '10.244.1.7 -> 10.96.0.10:53/udp' (with
quotes in a shell), or behind --from. The protocol is tcp, udp or sctp; without one
it is tcp. An IPv6 address with a port has brackets. A Service stands for its cluster
IP, as with nftproxy explain: NAME:PORT with -n NAMESPACE, or NAMESPACE/NAME:PORT.
trace needs CAP_NET_ADMIN and a kernel that traces (nft_meta, nft_limit, nft_ct), but
no API server and no running nftproxy.

Nothing but the packets' trace mark is changed. A table named nftproxy-trace-...
sets that mark on the described packets, ten a second at most. The table is gone
when trace ends, even if trace is killed. Kernels before 5.12 keep the table of a
killed trace. It marks nothing once --timeout is over, and the next trace, the next
start of run, or cleanup removes it a minute later.

Exit status: 0 if a packet was shown, 1 if none came in time, 2 if trace could
not work or a flag is wrong.

-o json prints an object for each packet, on a line of its own, and -o yaml the same
behind a line "---": packet (its number), time, protocol, source, destination,
inputInterface, outputInterface, service (namespace/name), port, endpoint, fate
(passed, dropped, refused or handed over), steps, omittedSteps, incomplete (true if
steps may be missing) and entry (null if there is none). Each step has hook, family,
table, chain, handle, rule, by (rule, end of chain or policy), verdict and mark. An
entry has state, replySource, replyDestination, masqueraded, expiresSeconds and stale
(the reason, empty for none). Later versions may add fields; they do not change these.`,
		Example: `  nftproxy trace 10.96.0.10:53/udp
  nftproxy trace cart:http -n shop
  nftproxy trace --packets 1 --from 10.244.1.7 10.96.0.10:443
  kubectl -n kube-system exec POD -- /nftproxy trace -o json 10.96.0.10:53/udp`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text := strings.Join(args, " ")
			if o.from != "" {
				text = o.from + " -> " + text
			}
			flow, err := o.flow(cmd.Context(), text)
			if err = errors.Join(err, o.check()); err != nil {
				return usageError{err}
			}
			shown, err := o.run(cmd, flow)
			switch {
			case err != nil:
				fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: %v\n", err)
				return statusUnknown
			case shown == 0:
				return statusNoPacket
			}
			return nil
		},
	}
	f := cmd.Flags()
	o.addFlag(cmd)
	o.addNamespace(cmd)
	f.Lookup("namespace").Usage = "namespace of the Service that is named"
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	f.StringVar(&o.from, "from", "", "only packets from this `SOURCE[:PORT]`")
	f.IntVar(&o.packets, "packets", tracedPackets, fmt.Sprintf("end after so many packets, 1 to %d", maxTracedPackets))
	f.DurationVar(&o.timeout, "timeout", traceTime, fmt.Sprintf("end after this time, 1s to %s", maxTraceTime))
	addUntilStdinCloses(cmd)
	return cmd
}

// flow reads which packets are meant. A Service's address is that of the tables.
func (o *traceOptions) flow(ctx context.Context, text string) (livetrace.Flow, error) {
	flow, err := livetrace.ParseFlow(text)
	if err == nil {
		return flow, nil
	}
	source, destination, found := strings.Cut(text, "->")
	if !found {
		source, destination = "", text
	}
	named, err := o.target(strings.TrimSpace(destination), err)
	if err != nil {
		return flow, err
	}
	r, err := (&getOptions{table: o.table}).read(ctx)
	if err != nil {
		return flow, err
	}
	defer r.conn.Close()
	to, err := destinationOf(named.InTables(r.Tables, addressIn(source)))
	if err != nil {
		return flow, err
	}
	if found {
		source += "->"
	}
	return livetrace.ParseFlow(source + to.String())
}

// addressIn is the address of SOURCE or SOURCE:PORT; invalid if there is none.
func addressIn(source string) netip.Addr {
	source = strings.TrimSpace(source)
	if at, err := netip.ParseAddrPort(source); err == nil {
		return at.Addr().Unmap()
	}
	a, _ := netip.ParseAddr(strings.Trim(source, "[]"))
	return a.Unmap()
}

func (o *traceOptions) check() error {
	var errs []error
	if o.packets < 1 || o.packets > maxTracedPackets {
		errs = append(errs, fmt.Errorf("--packets: %d: want 1 to %d", o.packets, maxTracedPackets))
	}
	if o.timeout < time.Second || o.timeout > maxTraceTime {
		errs = append(errs, fmt.Errorf("--timeout: %s: want 1s to %s", o.timeout, maxTraceTime))
	}
	return errors.Join(errs...)
}

// run traces and returns the number of packets that were shown.
func (o *traceOptions) run(cmd *cobra.Command, flow livetrace.Flow) (shown int, err error) {
	notes := cmd.ErrOrStderr()
	c := livetrace.Config{Flow: flow, Packets: o.packets, Lifetime: o.timeout}
	t, err := tracing.Open(cmd.Context(), o.table, c, notes)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	fmt.Fprintf(notes, "nftproxy: waiting for new connections %s, up to %s and %s\n", flow,
		inspect.Plural(o.packets, "packet"), o.timeout)
	// The parent's context ends with the signal; what was traced is still printed.
	err = t.Run(cmd.Context(), c, tracing.Output{
		Packet: func(p *tracing.Packet) error {
			shown++
			return printTraced(cmd.OutOrStdout(), t, p, o.output)
		},
		Lost: func() { fmt.Fprintf(notes, "nftproxy: %v\n", livetrace.ErrLost) },
	})
	if err == nil && shown == 0 {
		fmt.Fprintf(notes, "nftproxy: no new connection came\n")
		err = t.NoteFlows(notes, flow)
	}
	return shown, err
}

// tracedPacket is the JSON of a packet. The help promises the names.
type tracedPacket struct {
	*tracing.Packet
	Entry *tracing.Entry `json:"entry"`
}

// printTraced prints a packet with its entry. A packet that was dropped has none.
func printTraced(w io.Writer, t *tracing.Trace, p *tracing.Packet, o output) error {
	entry, err := t.Entry(context.Background(), p) // It is printed also after a signal.
	if err != nil {
		return err
	}
	return o.printNext(w, tracedPacket{p, entry}, func(w io.Writer) error {
		if err := p.WriteText(w, printable.Text); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "  entry: %s\n", entry)
		return err
	})
}

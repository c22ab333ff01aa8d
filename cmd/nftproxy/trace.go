package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/conntrack"
	"nftproxy/look/tracing"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
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

// traceOptions are the flags of trace.
type traceOptions struct {
	table, output, from string
	packets             int
	timeout             time.Duration
}

func newTraceCommand() *cobra.Command {
	var o traceOptions
	cmd := &cobra.Command{
		Use:   "trace [flags] [SOURCE[:PORT] ->] ADDRESS:PORT[/PROTOCOL]",
		Short: "Show the way of real packets through the rules, one by one",
		Long: `trace waits for the first packets of new connections to an address and port,
and shows each rule that they meet: of nftproxy, and of every other program on
the node. Later packets of a connection meet no rule of nftproxy.

Each packet begins with its addresses, the interface, and its Service. A line for
each step follows: the hook, the table, the chain, and the rule with its verdict.
The end says what became of the packet, and what connection tracking noted of it.
A rule of another program stands by its handle (nft -a list ruleset).

A source can stand before the address, as in '10.244.1.7 -> 10.96.0.10:53/udp' (with
quotes in a shell), or behind --from. The protocol is tcp, udp or sctp; without one
it is tcp. An IPv6 address with a port has brackets. trace needs CAP_NET_ADMIN and a
kernel that traces (nft_meta, nft_limit, nft_ct), but no API server and no running
nftproxy.

Nothing but the packets' trace mark is changed. A table named nftproxy-trace-...
sets that mark on the described packets, ten a second at most. The table is gone
when trace ends, even if trace is killed. Kernels before 5.12 keep the table of a
killed trace. It marks nothing once --timeout is over, and the next trace, the next
start of run, or cleanup removes it a minute later.

Exit status: 0 if a packet was shown, 1 if none came in time, 2 if trace could
not work or a flag is wrong.

-o json prints an object for each packet, on a line of its own: packet (its
number), time, protocol, source, destination, inputInterface, outputInterface,
service (namespace/name), port, endpoint, fate (passed, dropped, refused or
handed over), steps, omittedSteps, incomplete (true if steps may be missing) and
entry (null if there is none). Each step has hook, family, table, chain, handle,
rule, by (rule, end of chain or policy), verdict and mark. An entry has state,
replySource, replyDestination, masqueraded, expiresSeconds and stale (the reason,
empty for none). Later versions may add fields; they do not change these.`,
		Example: `  nftproxy trace 10.96.0.10:53/udp
  nftproxy trace --packets 1 --from 10.244.1.7 10.96.0.10:443
  kubectl -n kube-system exec POD -- /nftproxy trace -o json 10.96.0.10:53/udp`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text := strings.Join(args, " ")
			if o.from != "" {
				text = o.from + " -> " + text
			}
			flow, err := livetrace.ParseFlow(text)
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
	addOutput(cmd, &o.output)
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	f.StringVar(&o.from, "from", "", "only packets from this `SOURCE[:PORT]`")
	f.IntVar(&o.packets, "packets", tracedPackets, fmt.Sprintf("end after so many packets, 1 to %d", maxTracedPackets))
	f.DurationVar(&o.timeout, "timeout", traceTime, fmt.Sprintf("end after this time, 1s to %s", maxTraceTime))
	return cmd
}

func (o *traceOptions) check() error {
	errs := []error{checkOutput(o.output)}
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
	t, err := openTrace(cmd.Context(), o, flow, notes)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	fmt.Fprintf(notes, "nftproxy: waiting for new connections %s, up to %s and %s\n", flow, plural(o.packets, "packet"), o.timeout)
	// The parent's context ends with the signal; what was traced is still printed.
	assembler := tracing.NewAssembler(t.tracer.Table(), flow.Protocol, o.packets, t.names())
	err = tracing.Run(cmd.Context(), t.tracer, assembler, o.timeout, tracing.Output{
		Packet: func(p *tracing.Packet) error {
			shown++
			return t.print(cmd.OutOrStdout(), p, o.output)
		},
		Lost: func() { fmt.Fprintf(notes, "nftproxy: %v\n", livetrace.ErrLost) },
	})
	if err == nil && shown == 0 {
		fmt.Fprintf(notes, "nftproxy: no new connection came\n")
		err = t.noteFlows(notes, flow)
	}
	return shown, err
}

// trace is a trace under way, and what names its packets.
type trace struct {
	tracer *livetrace.Tracer
	conn   *kernel.Conn
	flows  *conntrack.Table
	index  *conntrack.Index
	table  string
	hooks  map[livetrace.Chain]string
	rules  map[nft.Family]map[uint64]kernel.NumberedRule
	// notes gets what could not be read; failed is the last of it.
	notes  io.Writer
	failed string
}

func openTrace(ctx context.Context, o *traceOptions, flow livetrace.Flow, notes io.Writer) (*trace, error) {
	t := &trace{table: o.table, rules: map[nft.Family]map[uint64]kernel.NumberedRule{}, notes: notes}
	source := flowSource{options: sourceOptions{table: o.table}}
	tables, err := source.tables()
	if err != nil {
		return nil, err
	}
	if tables == nil {
		fmt.Fprintf(notes, "nftproxy: there is no table %s: packets are shown without the names of Services\n", o.table)
		t.index = conntrack.NewIndex(conntrack.Options{})
	} else if t.index, _, err = source.index(ctx, notes); err != nil {
		return nil, err
	}
	if t.conn, err = kernel.Open(kernel.Config{}); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	if t.flows, err = conntrack.Open(conntrack.Config{}); err != nil {
		return nil, errors.Join(err, t.close())
	}
	t.tracer, err = livetrace.Start(livetrace.Config{Flow: flow, Packets: o.packets, Lifetime: o.timeout})
	if err == nil {
		t.hooks, err = t.tracer.Hooks()
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *trace) close() error {
	var errs []error
	if t.tracer != nil {
		errs = append(errs, t.tracer.Close())
	}
	if t.flows != nil {
		errs = append(errs, t.flows.Close())
	}
	return errors.Join(append(errs, t.conn.Close())...)
}

func (t *trace) names() tracing.Names {
	return tracing.Names{
		Rule: t.rule,
		Hook: func(family uint8, table, chain string) string {
			return t.hooks[livetrace.Chain{Family: family, Table: table, Name: chain}]
		},
		Interface: interfaceName,
		Service: func(protocol uint8, source, destination netip.AddrPort) (name, port string) {
			f := conntrack.Flow{Protocol: service.Protocol(protocol), Original: conntrack.Tuple{Src: source, Dst: destination}}
			s, p, ok := t.index.Owner(f)
			if !ok {
				return "", ""
			}
			return string(s.Name), portText(p)
		},
	}
}

// rule reads the rules of nftproxy's table the first time, and again for a handle that is new.
func (t *trace) rule(family uint8, table string, handle uint64) nft.Rule {
	id := nft.TableID{Family: nft.Family(family), Name: table}
	if families := nft.Families(); table != t.table || !slices.Contains(families[:], id.Family) {
		return nil
	}
	if _, known := t.rules[id.Family][handle]; !known {
		rules, err := t.conn.Rules(id)
		if err != nil {
			if t.failed != err.Error() {
				t.failed = err.Error()
				fmt.Fprintf(t.notes, "nftproxy: %v\n", err)
			}
			return nil
		}
		t.rules[id.Family] = rules
	}
	return t.rules[id.Family][handle].Rule
}

// interfaceName is the name of an interface, or its index if it has gone.
func interfaceName(index uint32) string {
	i, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return fmt.Sprintf("interface %d", index)
	}
	return i.Name
}

// tracedPacket is the JSON of a packet. The help promises the names.
type tracedPacket struct {
	*tracing.Packet
	Entry *tracedEntry `json:"entry"`
}

// tracedEntry is what connection tracking noted of a packet.
type tracedEntry struct {
	State            string         `json:"state"`
	ReplySource      netip.AddrPort `json:"replySource"`
	ReplyDestination netip.AddrPort `json:"replyDestination"`
	Masqueraded      bool           `json:"masqueraded"`
	ExpiresSeconds   int64          `json:"expiresSeconds"`
	Stale            string         `json:"stale"`
}

func (t *trace) newEntry(f conntrack.Flow) *tracedEntry {
	reason, _ := t.index.Stale(f)
	return &tracedEntry{
		State: flowState(&f), ReplySource: f.Reply.Src, ReplyDestination: f.Reply.Dst, Stale: string(reason),
		Masqueraded: f.Status&conntrack.SrcNAT != 0, ExpiresSeconds: int64(f.Timeout / time.Second),
	}
}

func (e *tracedEntry) String() string {
	if e == nil {
		return "none"
	}
	text := fmt.Sprintf("%s, answered by %s", e.State, e.ReplySource)
	if e.Masqueraded {
		text += fmt.Sprintf(", masqueraded as %s", e.ReplyDestination)
	}
	text += ", expires in " + duration.HumanDuration(time.Duration(e.ExpiresSeconds)*time.Second)
	if e.Stale != "" {
		text += ", stale: " + e.Stale
	}
	return text
}

// print prints a packet with its entry. A packet that was dropped has none.
func (t *trace) print(w io.Writer, p *tracing.Packet, output string) error {
	protocol, err := service.ParseProtocol(p.Protocol)
	if err != nil {
		return err
	}
	// The entry is printed also after a signal.
	f, found, err := t.flows.Find(context.Background(), protocol, conntrack.Tuple{Src: p.Source, Dst: p.Destination})
	if err != nil {
		return err
	}
	var entry *tracedEntry
	if found {
		entry = t.newEntry(f)
	}
	if output == outputJSON {
		line, err := json.Marshal(tracedPacket{p, entry})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, escapeJSON(string(line)))
		return err
	}
	if err := p.WriteText(w, printable); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "  entry: %s\n", entry)
	return err
}

// noteFlows names connections of the flow that the rules did not see, since they are older.
func (t *trace) noteFlows(notes io.Writer, flow livetrace.Flow) error {
	const most = 10
	filter := conntrack.Filter{Protocol: service.Protocol(flow.Protocol), Dst: flow.Destination.Addr(), Port: flow.Destination.Port()}
	n := 0
	err := t.flows.Flows(context.Background(), filter, func(f conntrack.Flow) error {
		if source := flow.Source; source.Addr().IsValid() && (source.Addr() != f.Original.Src.Addr() || source.Port() != 0 && source != f.Original.Src) {
			return nil
		}
		if n++; n > most {
			return nil
		}
		if n == 1 {
			fmt.Fprintln(notes, "nftproxy: connection tracking has these, whose packets meet the rules no more:")
		}
		fmt.Fprintf(notes, "  %s -> %s: %s\n", f.Original.Src, f.Original.Dst, t.newEntry(f))
		return nil
	})
	if n > most {
		fmt.Fprintf(notes, "  ... and %d more\n", n-most)
	}
	if errors.Is(err, conntrack.ErrInterrupted) {
		return nil // it is a note only
	}
	return err
}

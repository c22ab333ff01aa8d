package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/livetrace"
	"nftproxy/nft/ruleset"
)

// Trace is a trace under way, and what names its packets.
type Trace struct {
	tracer *livetrace.Tracer
	conn   *kernel.Conn
	flows  *conntrack.Table
	index  *conntrack.Index
	table  string
	hooks  map[livetrace.Chain]string
	rules  map[nft.Family]map[uint64]nft.Rule
	// notes gets what could not be read; failed is the last of it.
	notes  io.Writer
	failed string
}

// Open begins a trace of a flow, which names packets by the table. notes gets what could not be read.
func Open(ctx context.Context, table string, c livetrace.Config, notes io.Writer) (*Trace, error) {
	t := &Trace{table: table, rules: map[nft.Family]map[uint64]nft.Rule{}, notes: notes}
	source := inspect.FlowSource{Source: inspect.Source{Rules: ruleset.Config{Table: table}}}
	tables, err := source.ReadTables()
	if err != nil {
		return nil, err
	}
	if tables == nil {
		fmt.Fprintf(notes, "nftproxy: there is no table %s: packets are shown without the names of Services\n", table)
		t.index = conntrack.NewIndex(conntrack.Options{})
	} else if t.index, _, err = source.Index(ctx, notes); err != nil {
		return nil, err
	}
	if t.conn, err = kernel.Open(kernel.Config{}); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	if t.flows, err = conntrack.Open(conntrack.Config{}); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.tracer, err = livetrace.Start(c)
	if err == nil {
		t.hooks, err = t.tracer.Hooks()
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close ends the trace.
func (t *Trace) Close() error {
	var errs []error
	if t.tracer != nil {
		errs = append(errs, t.tracer.Close())
	}
	if t.flows != nil {
		errs = append(errs, t.flows.Close())
	}
	return errors.Join(append(errs, t.conn.Close())...)
}

func (t *Trace) names() Names {
	return Names{
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
			return string(s.Name), p.Label()
		},
	}
}

// rule reads the rules of nftproxy's table the first time, and again for a handle that is new.
func (t *Trace) rule(family uint8, table string, handle uint64) nft.Rule {
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
	return t.rules[id.Family][handle]
}

// interfaceName is the name of an interface, or its index if it has gone.
func interfaceName(index uint32) string {
	i, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return fmt.Sprintf("interface %d", index)
	}
	return i.Name
}

// Entry is what connection tracking noted of a packet.
type Entry struct {
	State            string         `json:"state"`
	ReplySource      netip.AddrPort `json:"replySource"`
	ReplyDestination netip.AddrPort `json:"replyDestination"`
	Masqueraded      bool           `json:"masqueraded"`
	ExpiresSeconds   int64          `json:"expiresSeconds"`
	Stale            string         `json:"stale"`
}

func (t *Trace) newEntry(f conntrack.Flow) *Entry {
	reason, _ := t.index.Stale(f)
	return &Entry{
		State: inspect.FlowState(&f), ReplySource: f.Reply.Src, ReplyDestination: f.Reply.Dst, Stale: string(reason),
		Masqueraded: f.Status&conntrack.SrcNAT != 0, ExpiresSeconds: int64(f.Timeout / time.Second),
	}
}

func (e *Entry) String() string {
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

// NoteFlows names connections of the flow that the rules did not see, since they are older.
func (t *Trace) NoteFlows(notes io.Writer, flow livetrace.Flow) error {
	const most = 10
	filter := conntrack.Filter{Protocol: service.Protocol(flow.Protocol), Dst: flow.Destination.Addr(),
		Port: flow.Destination.Port()}
	n := 0
	err := t.flows.Flows(context.Background(), filter, func(f conntrack.Flow) error {
		if source := flow.Source; source.Addr().IsValid() && (source.Addr() != f.Original.Src.Addr() || source.Port() != 0 &&
			source != f.Original.Src) {
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

// Entry is what connection tracking noted of a packet; nil for nothing, as of one that was dropped.
func (t *Trace) Entry(ctx context.Context, p *Packet) (*Entry, error) {
	protocol, err := service.ParseProtocol(p.Protocol)
	if err != nil {
		return nil, err
	}
	f, found, err := t.flows.Find(ctx, protocol, conntrack.Tuple{Src: p.Source, Dst: p.Destination})
	if err != nil || !found {
		return nil, err
	}
	return t.newEntry(f), nil
}

// Run gives each packet of the flow to the output, until there are enough or the time is over.
func (t *Trace) Run(ctx context.Context, c livetrace.Config, out Output) error {
	return Run(ctx, t.tracer, NewAssembler(t.tracer.Table(), c.Flow.Protocol, c.Packets, t.names()), c.Lifetime, out)
}

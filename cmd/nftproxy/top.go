package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"nftproxy/look/inspect"
	"nftproxy/look/traffic"
	"nftproxy/model/printable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

type topOptions struct {
	output
	nameOptions
	table     string
	endpoints bool
	interval  time.Duration
	rows      int
}

func newTopCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [NAME | NAMESPACE/NAME ...]",
		Short: "Show new connections per second of Services, and refused ones by cause",
		Long: `top reads the counters in nftproxy's tables in this node's kernel. It needs
neither the API server nor a running proxy, and it changes nothing. In a terminal
it shows them again after each interval, until Ctrl-C ends it. Elsewhere, and with
json or yaml, it reads twice, one interval apart, prints once, and ends.

New connections are counted only if nftproxy runs with --nftproxy-counters. Each
first packet counts, so a client that tries again counts again. Those to endpoints
are the ones that the rules sent there. A count begins at 0 when the element in the
table is replaced: that of a Service when the number of its endpoints changes.

Refused and dropped first packets are always counted, by cause:
  no-endpoints           refused: the Service port has no endpoint
  unknown-port           refused: the cluster IP's Service has no such port
  no-local-endpoints     dropped: the traffic policy is Local, and no endpoint is on
                         this node
  outside-source-ranges  dropped: the source ranges do not have the client
  unallocated-address    dropped: no Service has that address of a ServiceCIDR
  too-many-pings         dropped: more pings to Services than --nftproxy-answer-ping answers
  held                   dropped, so that it comes again: the Service port has no endpoint,
                         and the annotation no-endpoints is hold
The Service is known for all but unknown-port, unallocated-address and too-many-pings.

A Service is NAME with -n NAMESPACE, or NAMESPACE/NAME. A NAME alone is that of any
namespace.

-o json and -o yaml print an object with intervalSeconds, counters (whether new
connections are counted), connectionsPerSecond (of all Services), causes, services and
refused. causes has cause, verdict (refused or dropped), packets and packetsPerSecond;
services has service (namespace/name), port, protocol, connections,
connectionsPerSecond and endpoints; those have endpoint, connections and
connectionsPerSecond (null if unknown). refused has service, cause, packets and
packetsPerSecond. Later versions may add fields; they do not change these.`,
		Example: `  nftproxy top
  nftproxy top --endpoints kube-dns -n kube-system
  nftproxy top -n shop --interval 10s -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			selected, err := o.selected(names)
			if err = errors.Join(o.check(), err); err != nil {
				return usageError{err}
			}
			return o.run(cmd.Context(), selected, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	o.addService(cmd)
	f.BoolVar(&o.endpoints, "endpoints", false,
		"show the endpoints of the Services that are shown; json and yaml always have them")
	f.DurationVar(&o.interval, "interval", 2*time.Second, "time between two reads, at least 100ms")
	f.IntVar(&o.rows, "rows", 20, "greatest number of Service ports, and of Services with refused packets")
	o.addFlag(cmd)
	addUntilStdinCloses(cmd)
	return cmd
}

// minTopInterval bounds what top costs the kernel.
const minTopInterval = 100 * time.Millisecond

func (o *topOptions) check() error {
	var errs []error
	if o.interval < minTopInterval {
		errs = append(errs, fmt.Errorf("--interval: %s: want %s or more", o.interval, minTopInterval))
	}
	if o.rows < 1 {
		errs = append(errs, fmt.Errorf("--rows: %d: want 1 or more", o.rows))
	}
	if !isTableName(o.table) {
		errs = append(errs, fmt.Errorf("--%stable: %q is not a valid table name", ownPrefix, o.table))
	}
	return errors.Join(errs...)
}

func (o *topOptions) run(ctx context.Context, selected inspect.Selection, out, notes io.Writer) error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	s := traffic.NewSampler(conn, traffic.Sample{Table: o.table, Rows: o.rows, Selects: selected,
		Endpoints: o.endpoints || o.structured()})
	if err := cmp.Or(s.ReadTables(), s.Unknown()); err != nil {
		return err
	}
	if _, err := s.Read(); err != nil {
		return err
	}
	screen, live := out.(*os.File)
	live = live && term.IsTerminal(int(screen.Fd())) && !o.structured()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.interval):
		}
		view, err := s.Read()
		if err != nil {
			return err
		}
		if !live {
			return o.print(out, view, func(w io.Writer) error { return writeTop(w, view, o) })
		}
		if err := drawTop(screen, view, o); err != nil {
			return err
		}
		if err := s.Follow(); err != nil {
			fmt.Fprintf(notes, "nftproxy: %v\n", err)
		}
	}
}

// countersOff tells how connections become counted.
const countersOff = "new connections are not counted: start nftproxy run with --" + ownPrefix + "counters"

func writeTop(w io.Writer, v *traffic.View, o *topOptions) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s in the tables", inspect.Plural(v.InTables, "Service"))
	if v.Counters {
		fmt.Fprintf(&b, ", %s new connections/s", rateText(v.ConnectionsPerSecond))
	}
	b.WriteByte('\n')
	for _, verdict := range []string{"refused", "dropped"} {
		var words []string
		for _, c := range v.Causes {
			if c.Verdict == verdict {
				words = append(words, c.Cause+" "+rateText(c.PacketsPerSecond))
			}
		}
		fmt.Fprintf(&b, "%s/s: %s\n", verdict, strings.Join(words, ", "))
	}
	b.WriteByte('\n')
	if v.Counters {
		writeTopServices(&b, v, o)
	} else {
		fmt.Fprintln(&b, countersOff)
	}
	if len(v.Refused) > 0 {
		b.WriteByte('\n')
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "SERVICE\tCAUSE\tPACKETS/S\tPACKETS")
		for _, r := range v.Refused {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", printable.Text(r.Service), r.Cause, rateText(r.PacketsPerSecond), r.Packets)
		}
		t.Flush() // a Buffer takes everything
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writeTopServices(b *bytes.Buffer, v *traffic.View, o *topOptions) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tPORT\tPROTOCOL\tNEW/S\tNEW")
	for _, s := range v.Services {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", printable.Text(s.Service), printable.Text(s.Port), s.Protocol,
			rateText(s.ConnectionsPerSecond), s.Connections)
		if !o.endpoints {
			continue
		}
		for _, e := range s.Endpoints {
			rate := "-"
			if e.ConnectionsPerSecond != nil {
				rate = rateText(*e.ConnectionsPerSecond)
			}
			fmt.Fprintf(t, "  %s\t\t\t%s\t%d\n", e.Endpoint, rate, e.Connections)
		}
	}
	t.Flush() // a Buffer takes everything
}

// rateText has one digit after the point where it says something.
func rateText(r float64) string {
	if r == 0 || r >= 100 {
		return fmt.Sprintf("%.0f", r)
	}
	return fmt.Sprintf("%.1f", r)
}

// The escape sequences that draw a screen again without flicker: to the upper left corner, clear
// to the end of the line, clear to the end of the screen.
const (
	escapeHome       = "\x1b[H"
	escapeClearLine  = "\x1b[K"
	escapeClearBelow = "\x1b[J"
)

// drawTop shows one reading on a terminal, cut to its size.
func drawTop(screen *os.File, v *traffic.View, o *topOptions) error {
	var b bytes.Buffer
	if err := writeTop(&b, v, o); err != nil {
		return err
	}
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil {
		return fmt.Errorf("size of the terminal: %w", err)
	}
	_, err = io.WriteString(screen, frame(b.String(), width, height))
	return err
}

// frame is the text as one picture of a terminal of that size. The last line stays free, for the
// shell's prompt after the end.
func frame(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	lines = lines[:min(len(lines), max(1, height-1))]
	var b strings.Builder
	b.WriteString(escapeHome)
	for _, line := range lines {
		runes := []rune(line)
		b.WriteString(string(runes[:min(len(runes), max(1, width))]))
		b.WriteString(escapeClearLine + "\r\n")
	}
	b.WriteString(escapeClearBelow)
	return b.String()
}

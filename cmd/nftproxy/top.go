package main

import (
	"bytes"
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

	"nftproxy/daemon/traffic"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// topOptions are the flags of top.
type topOptions struct {
	table, namespace, service, output string
	endpoints                         bool
	interval                          time.Duration
	rows                              int
}

func newTopCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show new connections per second of Services, and refused ones by cause",
		Long: `top reads the counters in nftproxy's tables in this node's kernel. It needs
neither the API server nor a running proxy, and it changes nothing. In a terminal
it shows them again after each interval, until Ctrl-C ends it. Elsewhere, and with
-o json, it reads twice, one interval apart, prints once, and ends.

New connections are counted only if nftproxy runs with --nftproxy-counters. Each
first packet counts, so a client that tries again counts again. Those to endpoints
are the ones that the rules sent there. A count begins at 0 when the element in the
table is replaced: that of a Service when the number of its endpoints changes.

Refused and dropped first packets are always counted, by cause:
  no-endpoints           refused: the Service port has no endpoint
  unknown-port           refused: the cluster IP's Service has no such port
  no-local-endpoints     dropped: the traffic policy is Local, and no endpoint is on
                         this node
  outside-source-ranges  dropped: loadBalancerSourceRanges do not have the client
  unallocated-address    dropped: no Service has that address of a ServiceCIDR
The Service is known for all but unknown-port and unallocated-address.

-o json prints an object with intervalSeconds, counters (whether new connections are
counted), connectionsPerSecond (of all Services), causes, services and refused.
causes has cause, verdict (refused or dropped), packets and packetsPerSecond; services
has service (namespace/name), port, protocol, connections, connectionsPerSecond and
endpoints; those have endpoint, connections and connectionsPerSecond (null if
unknown). refused has service, cause, packets and packetsPerSecond. Later versions may
add fields; they do not change these.`,
		Example: `  nftproxy top
  nftproxy top --endpoints --service kube-system/kube-dns
  nftproxy top -n shop --interval 10s -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	f.StringVarP(&o.namespace, "namespace", "n", "", "only Services of this namespace")
	f.StringVar(&o.service, "service", "", "only this Service, NAMESPACE/NAME")
	f.BoolVar(&o.endpoints, "endpoints", false, "show the endpoints of the Services that are shown; -o json always has them")
	f.DurationVar(&o.interval, "interval", 2*time.Second, "time between two reads, at least 100ms")
	f.IntVar(&o.rows, "rows", 20, "greatest number of Service ports, and of Services with refused packets")
	addOutput(cmd, &o.output)
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
	if o.service != "" {
		if namespace, name := service.Name(o.service).Split(); namespace == "" || name == "" {
			errs = append(errs, fmt.Errorf("--service: %q: want NAMESPACE/NAME", o.service))
		}
	}
	if !isTableName(o.table) {
		errs = append(errs, fmt.Errorf("--%stable: %q is not a valid table name", ownPrefix, o.table))
	}
	return errors.Join(append(errs, checkOutput(o.output))...)
}

// selects says whether the flags choose the Service.
func (o *topOptions) selects(name service.Name) bool {
	namespace, _ := name.Split()
	return (o.namespace == "" || o.namespace == namespace) && (o.service == "" || o.service == string(name))
}

func (o *topOptions) run(ctx context.Context, out, notes io.Writer) error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	s := newTopSampler(conn, o)
	if err := s.readTables(); err != nil {
		return err
	}
	if _, err := s.sample(); err != nil {
		return err
	}
	screen, live := terminal(out)
	live = live && o.output == outputText
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.interval):
		}
		view, err := s.sample()
		if err != nil {
			return err
		}
		switch {
		case o.output == outputJSON:
			return writeJSON(out, view)
		case !live:
			return writeTop(out, view, o)
		}
		if err := drawTop(screen, view, o); err != nil {
			return err
		}
		if err := s.follow(); err != nil {
			fmt.Fprintf(notes, "nftproxy: %v\n", err)
		}
	}
}

// terminal returns the output as a file if it is a terminal.
func terminal(out io.Writer) (*os.File, bool) {
	f, ok := out.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// countersOff tells how connections become counted.
const countersOff = "new connections are not counted: start nftproxy run with --" + ownPrefix + "counters"

// writeTop prints one reading for people.
func writeTop(w io.Writer, v *topView, o *topOptions) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s in the tables", plural(v.services, "Service"))
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
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", printable(r.Service), r.Cause, rateText(r.PacketsPerSecond), r.Packets)
		}
		t.Flush() // a Buffer takes everything
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writeTopServices(b *bytes.Buffer, v *topView, o *topOptions) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tPORT\tPROTOCOL\tNEW/S\tNEW")
	for _, s := range v.Services {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", printable(s.Service), printable(s.Port), s.Protocol, rateText(s.ConnectionsPerSecond), s.Connections)
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

// The escape sequences that draw a screen anew without flicker: to the upper left corner, clear
// to the end of the line, clear to the end of the screen.
const (
	escapeHome       = "\x1b[H"
	escapeClearLine  = "\x1b[K"
	escapeClearBelow = "\x1b[J"
)

// drawTop shows one reading on a terminal, cut to its size.
func drawTop(screen *os.File, v *topView, o *topOptions) error {
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

// topView is one reading of all counters. The help promises the names in the JSON.
type topView struct {
	IntervalSeconds      float64      `json:"intervalSeconds"`
	Counters             bool         `json:"counters"`
	ConnectionsPerSecond float64      `json:"connectionsPerSecond"`
	Causes               []topCause   `json:"causes"`
	Services             []topService `json:"services"`
	Refused              []topRefused `json:"refused"`

	services int // in the tables
}

type topCause struct {
	Cause            string  `json:"cause"`
	Verdict          string  `json:"verdict"`
	Packets          uint64  `json:"packets"`
	PacketsPerSecond float64 `json:"packetsPerSecond"`
}

type topService struct {
	Service              string        `json:"service"`
	Port                 string        `json:"port"`
	Protocol             string        `json:"protocol"`
	Connections          uint64        `json:"connections"`
	ConnectionsPerSecond float64       `json:"connectionsPerSecond"`
	Endpoints            []topEndpoint `json:"endpoints"`
}

type topEndpoint struct {
	Endpoint    string `json:"endpoint"`
	Connections uint64 `json:"connections"`
	// ConnectionsPerSecond is nil if the endpoint was not read before.
	ConnectionsPerSecond *float64 `json:"connectionsPerSecond"`
}

type topRefused struct {
	Service          string  `json:"service"`
	Cause            string  `json:"cause"`
	Packets          uint64  `json:"packets"`
	PacketsPerSecond float64 `json:"packetsPerSecond"`
}

// topSampler reads the tables and their counters.
type topSampler struct {
	conn    *kernel.Conn
	options *topOptions
	want    *nft.Program
	reader  *traffic.Reader
	refused *traffic.RefusalCounter
	// counters says that the tables count connections.
	counters bool
	services int
	// generation is that of the ruleset when the tables were read. They are not read
	// again before rested.
	generation uint32
	rested     time.Time
	// last are the refusals of the sample before; nil before the first.
	last *traffic.Refusals
}

func newTopSampler(conn *kernel.Conn, o *topOptions) *topSampler {
	return &topSampler{
		conn: conn, options: o,
		want:    ruleset.Compile(ruleset.Config{Table: o.table}, service.Snapshot{Node: &service.Node{}}),
		reader:  traffic.NewReader(conn, o.table, time.Now),
		refused: traffic.NewRefusalCounter(conn, time.Now),
	}
}

// readTables learns from the tables which elements count for which Services.
func (s *topSampler) readTables() error {
	start := time.Now()
	generation, err := s.conn.Generation()
	if err != nil {
		return err
	}
	tables, err := s.conn.Read(s.want)
	if err != nil {
		return err
	}
	if tables.Table(s.want.IPv4.ID()) == nil && tables.Table(s.want.IPv6.ID()) == nil {
		return fmt.Errorf("no table %s in this network namespace: start nftproxy run, or name its tables with --%stable", s.options.table, ownPrefix)
	}
	snapshot, config := ruleset.ReadBack(tables, s.options.table, &service.Node{Name: "-"}), ruleset.ReadBackConfig(tables, s.options.table)
	s.reader.Follow(snapshot)
	// The same elements come of the snapshot, so this is the program in force.
	s.refused.Follow(ruleset.Compile(config, snapshot))
	s.counters, s.services, s.generation = config.Counters, snapshot.Services.Len(), generation
	const rest = 10
	s.rested = time.Now().Add(rest * time.Since(start))
	return nil
}

// follow reads the tables again if they have changed, but takes no more than a tenth of the time.
func (s *topSampler) follow() error {
	generation, err := s.conn.Generation()
	if err != nil || generation == s.generation || time.Now().Before(s.rested) {
		return err
	}
	return s.readTables()
}

// sample reads all counters. Rates are 0 in the first sample.
func (s *topSampler) sample() (*topView, error) {
	v := &topView{Counters: s.counters, Services: []topService{}, Refused: []topRefused{}, services: s.services}
	look := s.refused.Look()
	if look.Err != nil {
		return nil, look.Err
	}
	if s.last != nil {
		v.IntervalSeconds = look.At.Sub(s.last.At).Seconds()
	}
	s.addRefusals(v, &look)
	s.last = &look
	if !s.counters {
		return v, nil
	}
	return v, s.addConnections(v)
}

// addRefusals adds the refusals since the sample before.
func (s *topSampler) addRefusals(v *topView, now *traffic.Refusals) {
	before, totals := &traffic.Refusals{}, map[traffic.Subject]uint64{}
	if s.last != nil {
		before = s.last
		for _, r := range s.last.Services {
			totals[r.Subject] = r.Total
		}
	}
	rate := func(packets uint64) float64 {
		if v.IntervalSeconds == 0 {
			return 0
		}
		return float64(packets) / v.IntervalSeconds
	}
	for _, cause := range ruleset.Causes() {
		c := topCause{Cause: string(cause), Verdict: "refused"}
		if cause.Drops() {
			c.Verdict = "dropped"
		}
		for i := range now.Causes {
			c.Packets += now.Causes[i][cause]
			c.PacketsPerSecond += rate(now.Causes[i][cause] - before.Causes[i][cause])
		}
		v.Causes = append(v.Causes, c)
	}
	for _, r := range now.Services {
		if len(v.Refused) < s.options.rows && s.options.selects(r.Name) {
			v.Refused = append(v.Refused, topRefused{string(r.Name), string(r.Cause), r.Total, rate(r.Total - totals[r.Subject])})
		}
	}
}

// addConnections adds the new connections of the Service ports with the greatest rates.
func (s *topSampler) addConnections(v *topView) error {
	list, err := s.reader.Read()
	if err != nil {
		return err
	}
	var shown []traffic.Port
	for _, p := range list {
		v.ConnectionsPerSecond += p.Rate
		if len(shown) < s.options.rows && s.options.selects(p.Service) {
			shown = append(shown, p.Port)
			v.Services = append(v.Services, topService{
				Service: string(p.Service), Port: p.Name, Protocol: p.Protocol.String(),
				Connections: p.Total, ConnectionsPerSecond: p.Rate, Endpoints: []topEndpoint{},
			})
		}
	}
	if !s.options.endpoints && s.options.output != outputJSON {
		return nil
	}
	endpoints, err := s.reader.ReadEndpoints(shown)
	if err != nil {
		return err
	}
	for i, p := range shown {
		for _, e := range endpoints[p] {
			row := topEndpoint{Endpoint: e.Endpoint.String(), Connections: e.Total}
			if e.Known {
				row.ConnectionsPerSecond = &e.Rate
			}
			v.Services[i].Endpoints = append(v.Services[i].Endpoints, row)
		}
	}
	return nil
}

package data

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"nftproxy/bench/result"
	model "nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// Choices says how to measure what the options of a Service cost: ways to draw endpoints, and weights.
type Choices struct {
	// Services are the numbers of Services, with othersEndpoints endpoints each.
	Services []int
	// Rounds have a turn of Burst connections by each way to draw.
	Rounds, Burst int
	// Draws is the number of connections that a distribution is counted of.
	Draws int
	// Loads is how often everything is loaded anew; after each load a weight changes Commits times, and back.
	Loads, Commits int
	Log            io.Writer
}

// Figure is a row of the table.
type Figure struct {
	// Question is what was measured, Case of what.
	Question, Case string
	// Services are how many there are on the node.
	Services int
	Value    float64
	Unit     string
	// Ratio is the value divided by that of Against; Against may be empty.
	Ratio   float64
	Against string
}

// WriteFigures writes the table as CSV.
func WriteFigures(w io.Writer, figures []Figure) error {
	table := csv.NewWriter(w)
	rows := [][]string{{"question", "case", "services", "value", "unit", "ratio", "to"}}
	for _, f := range figures {
		ratio := ""
		if f.Against != "" {
			ratio = digits(f.Ratio)
		}
		rows = append(rows, []string{f.Question, f.Case, fmt.Sprint(f.Services), digits(f.Value), f.Unit, ratio, f.Against})
	}
	return table.WriteAll(rows)
}

// digits prints a number with up to five digits that count, and without an exponent.
func digits(v float64) string {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64)
	if err != nil { // there is none for what FormatFloat makes
		return fmt.Sprint(v)
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// othersEndpoints is how many endpoints each Service has that is not measured.
const othersEndpoints = 10

// drawing is a way to draw endpoints.
type drawing struct {
	name    string
	balance string // a value of nftproxy.io/balance; empty for no annotation
	// weights are of the endpoints in turn; none are equal ones.
	weights []uint16
}

// drawings are measured in turn. Ratios are to the first.
func drawings() []drawing {
	return []drawing{
		{name: "random"},
		{name: "random, " + again},
		{name: "random, weights 90 and 10", weights: []uint16{90, 10}},
		{name: "client", balance: "client"},
		{name: "flow", balance: "flow"},
	}
}

// drawn returns a Service that draws its endpoints so. Its number decides name and address.
func drawn(number int, d drawing, endpoints []netip.Addr) (*model.Service, error) {
	s := gen.UniformService(number, 1)
	var list []model.Endpoint
	for i, a := range endpoints {
		e := model.Endpoint{Addr: netip.AddrPortFrom(a, controlplane.TargetPort), Node: gen.PlainNode().Name, Ready: true, Serving: true}
		if len(d.weights) > 0 {
			e.Weight = model.NewWeight(d.weights[i%len(d.weights)])
		}
		list = append(list, e)
	}
	s.Ports[0].NodePort = 0
	s.Ports[0].Endpoints = model.MergeEndpoints(list)
	if d.balance == "" {
		return s, nil
	}
	return s, s.Options.Set("balance", d.balance)
}

// drawnPrograms returns the programs of a node with so many Services. Each has another state of the last Service.
func drawnPrograms(services int, last ...*model.Service) []*nft.Program {
	builder := model.NewBuilder(gen.PlainNode())
	builder.Expect(services)
	for i := range services - 1 {
		builder.Set(gen.UniformService(i, othersEndpoints))
	}
	// The clients of distributions are in it, too.
	settings := model.Settings{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	compiler := ruleset.NewCompiler(ruleset.Config{Table: ruleset.DefaultTable, Settings: settings})
	var programs []*nft.Program
	for _, s := range last {
		builder.Set(s)
		programs = append(programs, compiler.Compile(builder.Snapshot()))
	}
	return programs
}

// drawnSite is a node with the program of a drawing.
type drawnSite struct {
	*site
	program *nft.Program
	to      netip.AddrPort
}

// newDrawnSite makes a node with so many Services. The last draws among the endpoints of the server.
func newDrawnSite(services int, d drawing, endpoints []netip.Addr) (s *drawnSite, err error) {
	measured, err := drawn(services-1, d, endpoints)
	if err != nil {
		return nil, err
	}
	s = &drawnSite{program: drawnPrograms(services, measured)[0], to: netip.AddrPortFrom(measured.ClusterIPs[0], measured.Ports[0].Port)}
	if s.site, err = newBareSite(d.name); err != nil {
		return nil, err
	}
	batch, _ := nft.State{}.Plan(s.program, time.Time{})
	if err := applyIn(s.topology.Node, batch); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// applyIn carries out a batch in a network namespace.
func applyIn(ns *testnet.Namespace, batch nft.Batch) error {
	c, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	if err != nil {
		return err
	}
	return errors.Join(apply(c, batch), c.Close())
}

func apply(c *kernel.Conn, batch nft.Batch) error {
	for _, t := range batch.Transactions() {
		if err := c.Apply(t); err != nil {
			return err
		}
	}
	return nil
}

// Run measures all but the rolling update.
func (c Choices) Run(ctx context.Context) ([]Figure, error) {
	var figures []Figure
	for _, part := range []func(context.Context) ([]Figure, error){c.connect, c.distribution, c.reweigh} {
		list, err := part(ctx)
		if err != nil {
			return nil, err
		}
		figures = append(figures, list...)
	}
	return figures, nil
}

// connect measures connect() by each way to draw, in turns.
func (c Choices) connect(ctx context.Context) ([]Figure, error) {
	var figures []Figure
	for _, services := range c.Services {
		fmt.Fprintf(c.Log, "connect(), %s Services\n", result.Count(services))
		list, err := c.connectAmong(ctx, services)
		if err != nil {
			return nil, fmt.Errorf("connect() with %d Services: %w", services, err)
		}
		figures = append(figures, list...)
	}
	return figures, nil
}

func (c Choices) connectAmong(ctx context.Context, services int) (figures []Figure, err error) {
	var sites []*drawnSite
	defer func() {
		for _, s := range sites {
			err = errors.Join(err, s.close())
		}
	}()
	for _, d := range drawings() {
		s, err := newDrawnSite(services, d, endpointIPs())
		if err != nil {
			return nil, err
		}
		sites = append(sites, s)
	}
	took := newSeries()
	samples := make([]time.Duration, 0, c.Burst)
	for round := range c.Rounds {
		for _, s := range rotated(sites, round) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := s.topology.Node.FlushConntrack(); err != nil {
				return nil, err
			}
			if samples, err = burst(s.pod.NS, s.to, samples, c.Burst, 0); err != nil {
				return nil, err
			}
			took.add(s.site, len(samples), latency(samples))
			if _, err := s.server.drain(); err != nil {
				return nil, err
			}
		}
	}
	first := sites[0].site
	for _, key := range []string{result.P50, result.P99} {
		for _, s := range sites {
			ratio, _ := pairedRatio(took.values[s.site][key], took.values[first][key])
			f := Figure{Question: "connect() of a pod, " + key, Case: s.backend, Services: services, Value: result.Median(took.values[s.site][key]), Unit: "us"}
			if s.site != first {
				f.Ratio, f.Against = ratio, first.backend
			}
			figures = append(figures, f)
		}
	}
	return figures, nil
}

// rowOf returns the endpoints of each slot where a hash draws, and none otherwise.
func rowOf(p *nft.Program) []netip.Addr {
	var list []netip.Addr
	for _, part := range p.IPv4.Parts.All() {
		for _, pool := range part.Pools {
			if pool.Row == nil || !pool.Row.Fixed {
				continue
			}
			for _, v := range pool.Row.Slots {
				a, _ := netip.AddrFromSlice([]byte(v)[:4])
				list = append(list, a)
			}
		}
	}
	return list
}

// shares are the parts of the connections that the endpoints should have.
func (s *drawnSite) shares(d drawing, endpoints []netip.Addr) map[netip.Addr]float64 {
	shares := map[netip.Addr]float64{}
	if row := rowOf(s.program); len(row) > 0 {
		for _, a := range row {
			shares[a] += 1 / float64(len(row))
		}
		return shares
	}
	all := 0.0
	for i, a := range endpoints {
		shares[a] = 1
		if len(d.weights) > 0 {
			shares[a] = float64(d.weights[i%len(d.weights)])
		}
		all += shares[a]
	}
	for a := range shares {
		shares[a] /= all
	}
	return shares
}

// sortedAddrs returns the keys of shares in order.
func sortedAddrs(shares map[netip.Addr]float64) []netip.Addr {
	var list []netip.Addr
	for a := range shares {
		list = append(list, a)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

package main

import (
	"fmt"
	"time"

	"nftproxy/daemon/refusals"
	"nftproxy/daemon/traffic"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

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
	refused *refusals.Counter
	// counters says that the tables count connections.
	counters bool
	services int
	// generation is that of the ruleset when the tables were read. They are not read
	// again before rested.
	generation uint32
	rested     time.Time
	// last are the refusals of the sample before; nil before the first.
	last *refusals.Look
}

func newTopSampler(conn *kernel.Conn, o *topOptions) *topSampler {
	return &topSampler{
		conn: conn, options: o,
		want:    ruleset.Compile(ruleset.Config{Table: o.table}, service.Snapshot{Node: &service.Node{}}),
		reader:  traffic.NewReader(conn, o.table, time.Now),
		refused: refusals.NewCounter(conn, time.Now),
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
func (s *topSampler) addRefusals(v *topView, now *refusals.Look) {
	before, totals := &refusals.Look{}, map[refusals.Subject]uint64{}
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

package traffic

import (
	"fmt"
	"time"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// View is one reading of all counters. The help promises the names in the JSON.
type View struct {
	IntervalSeconds      float64      `json:"intervalSeconds"`
	Counters             bool         `json:"counters"`
	ConnectionsPerSecond float64      `json:"connectionsPerSecond"`
	Causes               []CauseRow   `json:"causes"`
	Services             []ServiceRow `json:"services"`
	Refused              []RefusedRow `json:"refused"`

	// InTables is the number of Services in the tables.
	InTables int `json:"-"`
}

type CauseRow struct {
	Cause            string  `json:"cause"`
	Verdict          string  `json:"verdict"`
	Packets          uint64  `json:"packets"`
	PacketsPerSecond float64 `json:"packetsPerSecond"`
}

type ServiceRow struct {
	Service              string        `json:"service"`
	Port                 string        `json:"port"`
	Protocol             string        `json:"protocol"`
	Connections          uint64        `json:"connections"`
	ConnectionsPerSecond float64       `json:"connectionsPerSecond"`
	Endpoints            []EndpointRow `json:"endpoints"`
}

type EndpointRow struct {
	Endpoint    string `json:"endpoint"`
	Connections uint64 `json:"connections"`
	// ConnectionsPerSecond is nil if the endpoint was not read before.
	ConnectionsPerSecond *float64 `json:"connectionsPerSecond"`
}

type RefusedRow struct {
	Service          string  `json:"service"`
	Cause            string  `json:"cause"`
	Packets          uint64  `json:"packets"`
	PacketsPerSecond float64 `json:"packetsPerSecond"`
}

// Sample says what a Sampler reads.
type Sample struct {
	Table string
	// Rows bounds the Service ports, and the Services with refused packets; Selects chooses the Services.
	Rows    int
	Selects inspect.Selection
	// Endpoints also reads the endpoints of the Service ports.
	Endpoints bool
}

// Sampler reads the tables and their counters.
type Sampler struct {
	conn    *kernel.Conn
	sample  Sample
	want    *nft.Program
	reader  *Reader
	refused *RefusalCounter
	// counters says that the tables count connections.
	counters bool
	snapshot service.Snapshot
	// generation is that of the ruleset when the tables were read. They are not read
	// again before rested.
	generation uint32
	rested     time.Time
	// last are the refusals of the sample before; nil before the first.
	last *Refusals
}

// NewSampler makes a Sampler that has read nothing.
func NewSampler(conn *kernel.Conn, o Sample) *Sampler {
	return &Sampler{
		conn: conn, sample: o,
		want:    ruleset.Compile(ruleset.Config{Table: o.Table}, service.Snapshot{Node: &service.Node{}}),
		reader:  NewReader(conn, o.Table, time.Now),
		refused: NewRefusalCounter(conn, time.Now, conntrack.ThreadTime),
	}
}

// ReadTables learns from the tables which elements count for which Services.
func (s *Sampler) ReadTables() error {
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
		return fmt.Errorf("no table %s in this network namespace: start nftproxy run, or name its tables with "+
			"--nftproxy-table", s.sample.Table)
	}
	snapshot, config := ruleset.ReadBack(tables, s.sample.Table, &service.Node{Name: "-"}), ruleset.ReadBackConfig(tables,
		s.sample.Table)
	s.reader.Follow(snapshot)
	// The same elements come of the snapshot, so this is the program in force.
	s.refused.Follow(ruleset.Compile(config, snapshot))
	s.counters, s.snapshot, s.generation = config.Counters, snapshot, generation
	const rest = 10
	s.rested = time.Now().Add(rest * time.Since(start))
	return nil
}

// Unknown returns an error about the Services of the sample that the tables do not have, or nil.
func (s *Sampler) Unknown() error {
	return s.sample.Selects.Unknown(inspect.NamesOf(&s.snapshot), "the tables")
}

// Follow reads the tables again if they have changed, but takes no more than a tenth of the time.
func (s *Sampler) Follow() error {
	generation, err := s.conn.Generation()
	if err != nil || generation == s.generation || time.Now().Before(s.rested) {
		return err
	}
	return s.ReadTables()
}

// Read reads all counters. Rates are 0 in the first sample.
func (s *Sampler) Read() (*View, error) {
	v := &View{Counters: s.counters, Services: []ServiceRow{}, Refused: []RefusedRow{},
		InTables: s.snapshot.Services.Len()}
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
func (s *Sampler) addRefusals(v *View, now *Refusals) {
	before, totals := &Refusals{}, map[Subject]uint64{}
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
		c := CauseRow{Cause: string(cause), Verdict: "refused"}
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
		if len(v.Refused) < s.sample.Rows && s.sample.Selects.Has(r.Name) {
			v.Refused = append(v.Refused, RefusedRow{string(r.Name), string(r.Cause), r.Total,
				rate(r.Total - totals[r.Subject])})
		}
	}
}

// addConnections adds the new connections of the Service ports with the greatest rates.
func (s *Sampler) addConnections(v *View) error {
	list, err := s.reader.Read()
	if err != nil {
		return err
	}
	var shown []Port
	for _, p := range list {
		v.ConnectionsPerSecond += p.Rate
		if len(shown) < s.sample.Rows && s.sample.Selects.Has(p.Service) {
			shown = append(shown, p.Port)
			v.Services = append(v.Services, ServiceRow{
				Service: string(p.Service), Port: p.Name, Protocol: p.Protocol.String(),
				Connections: p.Total, ConnectionsPerSecond: p.Rate, Endpoints: []EndpointRow{},
			})
		}
	}
	if !s.sample.Endpoints {
		return nil
	}
	endpoints, err := s.reader.ReadEndpoints(shown)
	if err != nil {
		return err
	}
	for i, p := range shown {
		for _, e := range endpoints[p] {
			row := EndpointRow{Endpoint: e.Endpoint.String(), Connections: e.Total}
			if e.Known {
				row.ConnectionsPerSecond = &e.Rate
			}
			v.Services[i].Endpoints = append(v.Services[i].Endpoints, row)
		}
	}
	return nil
}

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/model/flows"
	"nftproxy/model/service"
)

const (
	// namedServices is how many Services have series of their own; the others share one without a name.
	namedServices = 100
	// talliedServices is how many Services are counted apart, named or not.
	talliedServices = 10_000
	// renamed is the least time between two changes of who is named.
	renamed = time.Minute
)

// Flows are the metrics of followed connections (--nftproxy-flows). Its methods are safe for concurrent use.
type Flows struct {
	registry prometheus.Registerer
	now      func() time.Time

	mu    sync.Mutex
	named map[service.Name]*flowTally
	// rest is what was counted while its Service had no series, and waiting the connections of each such Service since
	// the last change.
	rest    *flowTally
	waiting map[service.Name]float64
	// recent has the connections of named Services since the last change.
	recent  map[service.Name]float64
	changed time.Time
}

// flowTally is what one series counts.
type flowTally struct {
	results      map[flows.Result]float64
	bytes        [2]float64 // from and to clients
	buckets      map[float64]uint64
	answers, sum float64
}

func newFlowTally() *flowTally {
	t := &flowTally{results: map[flows.Result]float64{}, buckets: map[float64]uint64{}}
	for _, b := range answerBuckets() {
		t.buckets[b] = 0
	}
	return t
}

// answerBuckets go from 50 microseconds to 13 seconds.
func answerBuckets() []float64 { return prometheus.ExponentialBuckets(50e-6, 4, 10) }

// NewFlows makes the metrics and registers them.
func NewFlows(r prometheus.Registerer) *Flows {
	f := &Flows{registry: r, now: time.Now, named: map[service.Name]*flowTally{}, rest: newFlowTally(),
		waiting: map[service.Name]float64{}, recent: map[service.Name]float64{}}
	r.MustRegister(f.collector())
	return f
}

// Count adds what was left out. The function must be safe for concurrent use.
func (f *Flows) Count(counts func() flows.Counts) {
	own := newFactory(f.registry)
	own.gaugeFunc("nftproxy_flows_open", "Followed connections that have not ended (--nftproxy-flows).",
		func() float64 { return float64(counts().Open) })
	own.counterFunc("nftproxy_flows_thinned_total", "Connections that are not followed since their Service has too many; "+
		"others count for them.", func() float64 { return float64(counts().Thinned) })
	own.counterFunc("nftproxy_flows_lost_total", "Connections and messages that were lost, for which nothing counts.",
		func() float64 { return float64(counts().Lost) })
}

// Observe counts a change of a flow, with its weight.
func (f *Flows) Observe(c flows.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tally(c.Service)
	weight := float64(c.Weight)
	if c.Settled {
		t.results[c.Result] += weight
		f.busy(c.Service, weight)
		if s := c.AnswerSeconds; s != nil && c.Result == flows.Answered {
			t.answers, t.sum = t.answers+weight, t.sum+weight**s
			for b := range t.buckets {
				if *s <= b {
					t.buckets[b] += uint64(c.Weight)
				}
			}
		}
	}
	if c.Finished {
		t.bytes[0] += weight * float64(c.BytesFrom)
		t.bytes[1] += weight * float64(c.BytesTo)
	}
}

// tally is the series of a Service. The first ones get series of their own at once.
func (f *Flows) tally(name service.Name) *flowTally {
	t := f.named[name]
	if t == nil && len(f.named) < namedServices {
		t = newFlowTally()
		f.named[name] = t
	}
	return cmp.Or(t, f.rest)
}

// busy counts a connection, and at times gives a Service that is busier than a named one that one's place.
func (f *Flows) busy(name service.Name, weight float64) {
	if f.named[name] != nil {
		f.recent[name] += weight
	} else if _, known := f.waiting[name]; known || len(f.waiting) < talliedServices {
		f.waiting[name] += weight
	}
	if len(f.waiting) == 0 || f.now().Sub(f.changed) < renamed {
		return
	}
	least := slices.MinFunc(slices.Collect(maps.Keys(f.named)), func(a, b service.Name) int {
		return cmp.Or(cmp.Compare(f.recent[a], f.recent[b]), cmp.Compare(a, b))
	})
	most := slices.MaxFunc(slices.Collect(maps.Keys(f.waiting)), func(a, b service.Name) int {
		return cmp.Or(cmp.Compare(f.waiting[a], f.waiting[b]), cmp.Compare(b, a))
	})
	if f.waiting[most] > 2*f.recent[least] {
		delete(f.named, least)
		f.named[most] = newFlowTally()
	}
	clear(f.waiting)
	clear(f.recent)
	f.changed = f.now()
}

func (f *Flows) collector() *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"service"}, labels...), nil)
	}
	results := desc("nftproxy_flow_connections_total", "Connections to Services by their result, estimated from the "+
		"followed ones (--nftproxy-flows). The busiest Services have series of their own, and all others share one without "+
		"a name.", "result")
	bytes := desc("nftproxy_flow_bytes_total", "Bytes of followed connections that have ended, times what they stand "+
		"for: from clients and to them.", "direction")
	answers := desc("nftproxy_flow_answer_seconds", "Time from the first packet of a followed connection to the first "+
		"answer, times what it stands for. Refusals are no answers.")
	// What reads out may wait for a lock that a caller of Observe holds, so nothing is sent under f.mu.
	list := func() (list []prometheus.Metric) {
		f.mu.Lock()
		defer f.mu.Unlock()
		all := maps.Clone(f.named)
		all[""] = f.rest
		for name, t := range all {
			for result, n := range t.results {
				list = append(list, prometheus.MustNewConstMetric(results, prometheus.CounterValue, n, string(name),
					string(result)))
			}
			for i, direction := range []string{"from", "to"} {
				list = append(list, prometheus.MustNewConstMetric(bytes, prometheus.CounterValue, t.bytes[i], string(name),
					direction))
			}
			list = append(list, prometheus.MustNewConstHistogram(answers, uint64(t.answers), t.sum, maps.Clone(t.buckets),
				string(name)))
		}
		return list
	}
	return &collector{[]*prometheus.Desc{results, bytes, answers}, func(out chan<- prometheus.Metric) {
		for _, m := range list() {
			out <- m
		}
	}}
}

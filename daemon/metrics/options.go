package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// options counts the Services that ask for something by annotations. The cost of a sync grows with what has changed
// since the last one.
type options struct {
	with *prometheus.GaugeVec
	// growing counts endpoints.
	growing prometheus.Gauge

	mu       sync.Mutex
	snapshot service.Snapshot
}

func (o *options) observe(s service.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range treap.Diff(o.snapshot.Services, s.Services) {
		if c.HadOld {
			o.add(c.Old, -1)
		}
		if c.HasNew {
			o.add(c.New, 1)
		}
	}
	for c := range treap.Diff(o.snapshot.Adjustments, s.Adjustments) {
		o.growing.Add(float64(c.New.Growing() - c.Old.Growing()))
	}
	o.snapshot = s
}

// add counts a Service; a sign of -1 takes it off.
func (o *options) add(s *service.Service, sign float64) {
	for key := range s.Options.All() {
		o.with.WithLabelValues(key).Add(sign)
	}
	if slices.ContainsFunc(s.Ports, func(p service.Port) bool { return p.Weighted() }) {
		o.with.WithLabelValues("weight").Add(sign)
	}
}

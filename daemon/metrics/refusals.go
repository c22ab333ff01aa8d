package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/look/traffic"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// maxRefusedServices is how many time series of Services there are at most. Those with the
// most refused packets have one.
const maxRefusedServices = 50

// collectRefusals collects the refused and dropped packets of the latest look. Before the first look all causes have 0.
// Nobody waits for a Service that holds no more by the latest program.
func collectRefusals(latest *atomic.Pointer[traffic.Refusals], program *atomic.Pointer[nft.Program]) *collector {
	byCause := prometheus.NewDesc("nftproxy_refused_packets_total",
		"First packets of connections that the rules refused (causes no-endpoints and unknown-port) or dropped "+
			"(no-local-endpoints, outside-source-ranges, unallocated-address, too-many-pings, held), as of the last ten "+
			"seconds. A client that tries again counts again.",
		[]string{"cause", "ip_family"}, nil)
	byService := prometheus.NewDesc("nftproxy_service_refused_packets_total",
		"First packets that the rules refused or dropped, by Service, for the 50 Services and causes with the most. The "+
			"causes unknown-port, unallocated-address and too-many-pings have no Service.",
		[]string{"namespace", "service", "cause"}, nil)
	waiting := prometheus.NewDesc("nftproxy_waiting_connections",
		"Connections that began to wait for an endpoint within the hold time (nftproxy.io/no-endpoints), as of the last ten "+
			"seconds, by Service, for the 50 Services with the most. The empty name has those of the others together.",
		[]string{"namespace", "service"}, nil)
	return &collector{[]*prometheus.Desc{byCause, byService, waiting}, func(out chan<- prometheus.Metric) {
		look := latest.Load()
		if look == nil {
			look = &traffic.Refusals{}
		}
		for i, f := range nft.Families() {
			for _, cause := range ruleset.Causes() {
				out <- prometheus.MustNewConstMetric(byCause, prometheus.CounterValue, float64(look.Causes[i][cause]),
					string(cause), f.Name())
			}
		}
		for _, s := range look.Services[:min(len(look.Services), maxRefusedServices)] {
			namespace, name := s.Name.Split()
			out <- prometheus.MustNewConstMetric(byService, prometheus.CounterValue, float64(s.Total), namespace, name,
				string(s.Cause))
		}
		shown, others, now := 0, 0, program.Load()
		for _, h := range look.Held {
			switch namespace, name := h.Name.Split(); {
			case now != nil && !traffic.Holds(now, h.Name):
			case shown < maxRefusedServices:
				out <- prometheus.MustNewConstMetric(waiting, prometheus.GaugeValue, float64(h.Connections), namespace, name)
				shown++
			default:
				others += h.Connections
			}
		}
		out <- prometheus.MustNewConstMetric(waiting, prometheus.GaugeValue, float64(others), "", "")
	}}
}

// ObserveRefusals takes the outcome of a look at the counters of refused packets.
func (m *Metrics) ObserveRefusals(l traffic.Refusals) { m.refused.Store(&l) }

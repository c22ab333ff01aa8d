package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/look/traffic"
)

// maxConnectionPorts is how many Service ports have a time series of their own at most.
const maxConnectionPorts = 100

// CountConnections registers the metrics of new connections. read is called when Prometheus asks, and returns the
// Service ports, those with the most connections first, and the total.
func CountConnections(r prometheus.Registerer, read func() (ports []traffic.PortTraffic, total uint64)) {
	all := prometheus.NewDesc("nftproxy_new_connections_total",
		"First packets of connections to Services, refused ones included, with --nftproxy-counters=metrics.", nil, nil)
	byPort := prometheus.NewDesc("nftproxy_service_new_connections_total",
		"First packets of connections to a Service port, for the 100 ports with the most. Read every ten seconds at most.",
		[]string{"namespace", "service", "port", "protocol"}, nil)
	r.MustRegister(&collector{[]*prometheus.Desc{all, byPort}, func(out chan<- prometheus.Metric) {
		ports, total := read()
		for i, p := range ports {
			if i < maxConnectionPorts && p.Total > 0 {
				namespace, name := p.Service.Split()
				out <- prometheus.MustNewConstMetric(byPort, prometheus.CounterValue, float64(p.Total), namespace, name, p.Name,
					p.Protocol.String())
			}
		}
		out <- prometheus.MustNewConstMetric(all, prometheus.CounterValue, float64(total))
	}})
}

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/look/traffic"
)

// maxConnectionPorts is how many Service ports have a time series of their own at most.
const maxConnectionPorts = 100

// connections collects the new connections of Service ports when Prometheus asks.
type connections struct {
	read func() (ports []traffic.PortTraffic, total uint64)
}

// CountConnections registers the metrics of new connections. read returns the Service ports, those
// with the most connections first, and the total.
func CountConnections(r prometheus.Registerer, read func() (ports []traffic.PortTraffic, total uint64)) {
	r.MustRegister(&connections{read})
}

func connectionDescs() (all, byPort *prometheus.Desc) {
	return prometheus.NewDesc("nftproxy_new_connections_total",
			"First packets of connections to Services, refused ones included, with --nftproxy-counters=metrics.", nil, nil),
		prometheus.NewDesc("nftproxy_service_new_connections_total",
			"The same by Service port, for the 100 ports with the most. The numbers are at least ten seconds apart.",
			[]string{"namespace", "service", "port", "protocol"}, nil)
}

// Describe is part of prometheus.Collector.
func (c *connections) Describe(out chan<- *prometheus.Desc) {
	all, byPort := connectionDescs()
	out <- all
	out <- byPort
}

// Collect is part of prometheus.Collector.
func (c *connections) Collect(out chan<- prometheus.Metric) {
	all, byPort := connectionDescs()
	ports, total := c.read()
	for i, p := range ports {
		if i < maxConnectionPorts && p.Total > 0 {
			namespace, name := p.Service.Split()
			out <- prometheus.MustNewConstMetric(byPort, prometheus.CounterValue, float64(p.Total), namespace, name, p.Name, p.Protocol.String())
		}
	}
	out <- prometheus.MustNewConstMetric(all, prometheus.CounterValue, float64(total))
}

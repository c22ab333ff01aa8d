package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/node/otherproxy"
)

// otherProxies are the metrics of kube-proxy on this node.
type otherProxies struct {
	running prometheus.Gauge
	rules   *prometheus.GaugeVec
}

func (o *otherProxies) register(f factory) {
	o.running = f.gauge("nftproxy_kube_proxy_running",
		"1 if kube-proxy is known to run on this node, beside nftproxy, else 0. A container without the node's PID "+
			"namespace knows it only if kube-proxy has the port 10249.")
	o.rules = f.gauges("nftproxy_kube_proxy_rules", []string{"kind"},
		"1 if rules of kube-proxy of this kind are in the kernel, else 0.")
	for _, k := range otherproxy.Kinds() {
		o.rules.WithLabelValues(string(k))
	}
}

// ObserveKubeProxy takes the kinds of which kube-proxy has rules, and whether it certainly runs.
func (m *Metrics) ObserveKubeProxy(kinds []otherproxy.Kind, running bool) {
	m.otherProxies.running.Set(one(running))
	for _, k := range otherproxy.Kinds() {
		m.otherProxies.rules.WithLabelValues(string(k)).Set(one(slices.Contains(kinds, k)))
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

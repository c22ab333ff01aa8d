package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/listen"
	"nftproxy/model/ip"
)

// FollowLocalPorts takes the counts of node ports on localhost from the function from now on. It must be safe for
// concurrent use. The first two metrics are kube-proxy's (KEP-6032).
func FollowLocalPorts(r prometheus.Registerer, counts func() listen.LocalCounts) {
	for _, family := range ip.Families() {
		f := newFactory(prometheus.WrapRegistererWith(prometheus.Labels{"ip_family": family.Name()}, r))
		f.gaugeFunc("kubeproxy_nftables_localhost_nodeport_listeners",
			"[ALPHA] Number of active localhost NodePort userspace proxy listeners.",
			func() float64 { c := counts(); return float64(*c.Listeners.Of(family)) })
		f.counterFunc("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
			"[ALPHA] Number of localhost NodePort userspace proxy listener creation failures.",
			func() float64 { c := counts(); return float64(*c.Failures.Of(family)) })
	}
	for protocol, of := range map[string]struct{ open, excess func(listen.LocalCounts) int }{
		"TCP": {func(c listen.LocalCounts) int { return c.Connections }, func(c listen.LocalCounts) int { return c.Refused }},
		"UDP": {func(c listen.LocalCounts) int { return c.Sessions }, func(c listen.LocalCounts) int { return c.Closed }},
	} {
		f := newFactory(prometheus.WrapRegistererWith(prometheus.Labels{"protocol": protocol}, r))
		f.gaugeFunc("nftproxy_localhost_node_port_connections",
			"Open connections (TCP) and sessions (UDP) of clients on localhost to node ports.",
			func() float64 { return float64(of.open(counts())) })
		f.counterFunc("nftproxy_localhost_node_port_excess_total",
			"Connections (TCP) that were refused and sessions (UDP) that were closed since too many were open to "+
				"node ports on localhost.",
			func() float64 { return float64(of.excess(counts())) })
	}
}

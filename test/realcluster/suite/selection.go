package suite

import (
	"slices"
	"strings"
)

// sig is the label of the tests that run.
const sig = "sig-network"

// omission is a kind of test that does not run here, by its label Feature:NAME.
type omission struct {
	feature string
	// because is the reason, for people.
	because string
}

// omissions are the tests of sig-network that need what no cluster on one computer
// has, or that try another part than the service proxy. All others run, those that
// are slow, serial or disruptive too: a test that still finds something missing skips
// itself, and the report has its words.
func omissions() []omission {
	return []omission{
		{"LoadBalancer", "a cloud has to make the load balancer"},
		{"Networking-IPv4", "the pods reach no internet"},
		{"Networking-IPv6", "the pods reach no internet"},
		{"Networking-DNS", "the pods reach no internet"},
		{"NetworkPolicy", "the pod network (CNI plugins ptp and portmap) enforces no NetworkPolicy"},
		{"SCTPConnectivity", "many kernels have no module sctp, such as those of CI"},
		{"LocalhostNodePorts", "node ports on 127.0.0.1 are of kube-proxy's iptables mode only; its nftables mode has none, either"},
		{"KubeProxyNFAcct", "it reads counters that kube-proxy's iptables mode makes"},
		{"Networking-Performance", "it measures throughput, and no figure of it can fail"},
		{"PerformanceDNS", "it measures the name service with 10,000 Services"},
		{"OffByDefault", "a feature gate of the cluster is off"},
	}
}

// labelFilter selects the tests, in the language of ginkgo --label-filter.
func labelFilter() string {
	var features []string
	for _, o := range omissions() {
		features = append(features, o.feature)
	}
	return sig + " && !(Feature: containsAny {" + strings.Join(features, ", ") + "})"
}

// omitted is the reason why tests with some labels do not run; "" if they do.
func omitted(labels []string) string {
	for _, o := range omissions() {
		if slices.Contains(labels, "Feature:"+o.feature) {
			return "Feature:" + o.feature + ": " + o.because
		}
	}
	return ""
}

package otherproxy

import "slices"

// chainsOf returns the fixed names of kube-proxy's chains in a table of iptables
// (k8s.io/kubernetes/pkg/proxy/iptables and ipvs, CleanupLeftovers). KUBE-MARK-MASQ is not among them,
// although kube-proxy makes it too: kubelets before v1.28 do, and CNI plugins may use it.
func chainsOf(table string) []string {
	switch table {
	case "nat":
		return []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-PROXY-CANARY", "KUBE-NODE-PORT",
			"KUBE-LOAD-BALANCER"}
	case "filter":
		return []string{
			"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL",
			"KUBE-PROXY-CANARY",
			"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
		}
	case "mangle":
		return []string{"KUBE-PROXY-CANARY"}
	}
	return nil
}

// iptablesTables lists the tables of iptables that kube-proxy uses.
func iptablesTables() []string { return []string{"nat", "filter", "mangle"} }

// isChain says whether a chain of a table of iptables is kube-proxy's own. Chains of one Service
// or endpoint have a hash in the name; they are in the table nat only.
func isChain(table, chain string) bool {
	if slices.Contains(chainsOf(table), chain) {
		return true
	}
	return table == "nat" && hasPrefix(chain, "KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-")
}

// OfKubernetes says whether a chain of a table of iptables is kube-proxy's own, or the kubelet's KUBE-FIREWALL. What
// these drop is dropped with or without the chains that accept: packets of no connection, of sources that a Service
// does not admit, and for loopback addresses from elsewhere.
func OfKubernetes(table, chain string) bool {
	return isChain(table, chain) || table == "filter" && chain == "KUBE-FIREWALL"
}

// isJumpComment says whether a rule has a comment of kube-proxy's rules in the chains of iptables
// itself (k8s.io/kubernetes/pkg/proxy/iptables, iptablesJumpChains; ipvs, iptablesJumpChain).
func isJumpComment(comment string) bool {
	return slices.Contains([]string{
		"kubernetes service portals", "kubernetes externally-visible service portals",
		"kubernetes health check service ports",
		"kubernetes forwarding rules", "kubernetes load balancer firewall", "kubernetes postrouting rules",
		"kubernetes health check rules", "kube-proxy firewall rules", "kubernetes ipvs access filter", // of IPVS mode
	}, comment)
}

// builtinChains are iptables' own, in the order of their hooks.
func builtinChains() []string {
	return []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
}

func isBuiltin(chain string) bool { return slices.Contains(builtinChains(), chain) }

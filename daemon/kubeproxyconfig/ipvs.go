package kubeproxyconfig

import "fmt"

// Why settings of IPVS have no effect, and what has.
const (
	NoteStrictARP  = "addresses of Services are on no interface of the node, so nothing answers ARP for them"
	NoteTCPTimeout = "connection tracking times connections: conntrack.tcpEstablishedTimeout " +
		"(--conntrack-tcp-timeout-established) says how long an idle one is kept"
	NoteTCPFinTimeout = "connection tracking times connections: conntrack.tcpCloseWaitTimeout " +
		"(--conntrack-tcp-timeout-close-wait) is the nearest setting"
	NoteUDPTimeout = "connection tracking times flows: conntrack.udpTimeout and conntrack.udpStreamTimeout " +
		"(--conntrack-udp-timeout, --conntrack-udp-timeout-stream) say how long an idle one is kept"
)

// SchedulerBalance returns the value of --nftproxy-balance for a scheduler of IPVS by which a client, or a connection,
// finds the same endpoint each time. It is empty for the others. kube-proxy sets mh with the flag mh-port
// (FlagSourceHash in pkg/proxy/ipvs/util/ipvs.go; MH_PORT in the kernel's ip_vs_mh.c), so there the port counts.
func SchedulerBalance(scheduler string) string {
	switch scheduler {
	case "sh", "dh":
		return "client"
	case "mh":
		return "flow"
	}
	return ""
}

// SchedulerNote says what becomes of a scheduler of IPVS that a field or flag sets. It is empty for rr, wrr and the
// default: kube-proxy gives all endpoints the same weight, and connections are spread evenly here too. The other names
// are those of the kernel's modules ip_vs_NAME.
func SchedulerNote(field, scheduler string) string {
	const random = ": a new connection goes to a random endpoint"
	switch scheduler {
	case "", "rr", "wrr":
		return ""
	case "sh":
		return field + asBalance(scheduler) + "a client stays at one endpoint, whichever node it comes by"
	case "dh":
		return field + asBalance(scheduler) + "a client stays at one endpoint; IPVS would send all clients of an address " +
			"to the same one, and here they are spread"
	case "mh":
		return field + asBalance(scheduler) + "a hash of the client's address and port chooses, as in kube-proxy; client " +
			"keeps each client at one endpoint"
	case "lc", "wlc", "sed", "nq", "lblc", "lblcr":
		return field + noEffect + scheduler + random + ", whatever connections that has; a Service with the annotation " +
			"nftproxy.io/balance: least-connections balances by the connections of the node"
	case "fo", "ovf":
		return field + noEffect + scheduler + random + ", not to one until that fails or is full; a selector for fewer " +
			"pods has a similar effect"
	}
	return fmt.Sprintf("%s%s%q is no scheduler of IPVS (dh, fo, lblc, lblcr, lc, mh, nq, ovf, rr, sed, sh, wlc, wrr)%s",
		field, noEffect, scheduler, random)
}

// asBalance says what a scheduler is taken for.
func asBalance(scheduler string) string {
	return ": " + scheduler + " stands for --nftproxy-balance=" + SchedulerBalance(scheduler) + " unless that flag is " +
		"given, in Services with neither the annotation nftproxy.io/balance nor session affinity: "
}

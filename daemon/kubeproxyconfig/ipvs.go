package kubeproxyconfig

import (
	"fmt"
	"strconv"
)

// Why settings of IPVS have no effect, and what has.
const (
	NoteStrictARP     = "addresses of Services are on no interface of the node, so nothing answers ARP for them"
	NoteTCPTimeout    = "connection tracking times connections: conntrack.tcpEstablishedTimeout (--conntrack-tcp-timeout-established) says how long an idle one is kept"
	NoteTCPFinTimeout = "connection tracking times connections: conntrack.tcpCloseWaitTimeout (--conntrack-tcp-timeout-close-wait) is the nearest setting"
	NoteUDPTimeout    = "connection tracking times flows: conntrack.udpTimeout and conntrack.udpStreamTimeout (--conntrack-udp-timeout, --conntrack-udp-timeout-stream) say how long an idle one is kept"
)

// SchedulerNote says why a scheduler of IPVS has no effect, and what to do. It is empty for rr, wrr and the default, which
// have one: kube-proxy gives all endpoints the same weight, and connections are spread evenly here too. The other names
// are those of the kernel's modules ip_vs_NAME.
func SchedulerNote(scheduler string) string {
	const random = ": a new connection goes to a random endpoint"
	const affinity = "the annotation nftproxy.io/balance: client sends a client to the same endpoint, in each Service that needs it"
	switch scheduler {
	case "", "rr", "wrr":
		return ""
	case "sh", "mh":
		return scheduler + random + "; " + affinity
	case "dh":
		return scheduler + random + "; one endpoint for all clients cannot be had, but " + affinity
	case "lc", "wlc", "sed", "nq", "lblc", "lblcr":
		return scheduler + random + ", whatever connections that has: nftables does not count them; long connections spread better if clients open new ones from time to time"
	case "fo", "ovf":
		return scheduler + random + ", not to one until that fails or is full; a selector for fewer pods has a similar effect"
	}
	return fmt.Sprintf("%s is no scheduler of IPVS (dh, fo, lblc, lblcr, lc, mh, nq, ovf, rr, sed, sh, wlc, wrr)%s", strconv.Quote(scheduler), random)
}

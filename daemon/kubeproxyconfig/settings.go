package kubeproxyconfig

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// Setting is one field of a file as the flag of nftproxy that means the same.
type Setting struct {
	// Field is the path in the file, such as "conntrack.min". Flag is the flag's name
	// without dashes, and Value is its value.
	Field, Flag, Value string
}

// Settings lists what nftproxy takes from the file. A field that the file leaves
// empty is not in the list, unless its default depends on another field. A mode
// other than nftables chooses the section that kube-proxy would use in that mode.
func (f *File) Settings() []Setting {
	c := &f.Config
	var list []Setting
	text := func(field, flag, value string) {
		if value != "" {
			list = append(list, Setting{field, flag, value})
		}
	}
	number := func(field, flag string, value *int32) {
		if value != nil {
			text(field, flag, strconv.Itoa(int(*value)))
		}
	}
	yes := func(field, flag string, value bool) {
		if value {
			text(field, flag, "true")
		}
	}
	duration := func(field, flag string, value *metav1.Duration) {
		if value != nil {
			text(field, flag, value.Duration.String())
		}
	}
	text("clientConnection.kubeconfig", "kubeconfig", c.ClientConnection.Kubeconfig)
	text("hostnameOverride", "hostname-override", c.HostnameOverride)
	text("healthzBindAddress", "healthz-bind-address", c.HealthzBindAddress)
	text("metricsBindAddress", "metrics-bind-address", c.MetricsBindAddress)
	text("clusterCIDR", "cluster-cidr", c.ClusterCIDR)
	text("detectLocalMode", "detect-local-mode", string(c.DetectLocalMode))
	text("detectLocal.bridgeInterface", "pod-bridge-interface", c.DetectLocal.BridgeInterface)
	text("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", c.DetectLocal.InterfaceNamePrefix)
	localhost := c.IPTables.LocalhostNodePorts
	nodePorts := PrimaryAt(c.BindAddress,
		NodePortAddresses(section(c), c.NodePortAddresses, localhost == nil || *localhost))
	text("nodePortAddresses", "nodeport-addresses", strings.Join(nodePorts, ","))
	text("noMasqueradeCIDRs", "nftproxy-no-masquerade-cidrs", strings.Join(f.NoMasqueradeCIDRs, ","))
	for _, t := range f.tls() {
		if t.Enable {
			text(t.field+".certFile", t.flag+"-cert-file", t.CertFile)
			text(t.field+".keyFile", t.flag+"-private-key-file", t.KeyFile)
		}
	}
	yes("enableProfiling", "profiling", c.EnableProfiling)
	yes("bindAddressHardFail", "bind-address-hard-fail", c.BindAddressHardFail)
	text("logging.format", "logging-format", c.Logging.Format)
	if verbosity := c.Logging.Verbosity; verbosity != 0 {
		text("logging.verbosity", "v", strconv.FormatUint(uint64(verbosity), 10))
	}
	if allow, set := c.FeatureGates[GateExternalIPs]; set {
		text("featureGates."+GateExternalIPs, "feature-gates", GateExternalIPs+"="+strconv.FormatBool(allow))
	}
	number("oomScoreAdj", "oom-score-adj", c.OOMScoreAdj)
	number("conntrack.maxPerCore", "conntrack-max-per-core", c.Conntrack.MaxPerCore)
	number("conntrack.min", "conntrack-min", c.Conntrack.Min)
	duration("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established", c.Conntrack.TCPEstablishedTimeout)
	duration("conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait", c.Conntrack.TCPCloseWaitTimeout)
	yes("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", c.Conntrack.TCPBeLiberal)
	duration("conntrack.udpTimeout", "conntrack-udp-timeout", &c.Conntrack.UDPTimeout)
	duration("conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", &c.Conntrack.UDPStreamTimeout)
	// What ipvs mode left is there in whichever mode the file is now.
	text("ipvs.excludeCIDRs", "ipvs-exclude-cidrs", strings.Join(c.IPVS.ExcludeCIDRs, ","))
	if section(c) == modeNFTables {
		yes("nftables.masqueradeAll", "masquerade-all", c.NFTables.MasqueradeAll)
		number("nftables.masqueradeBit", "iptables-masquerade-bit", c.NFTables.MasqueradeBit)
		if !forSlowWrites(c.NFTables.MinSyncPeriod.Duration) {
			duration("nftables.minSyncPeriod", "iptables-min-sync-period", &c.NFTables.MinSyncPeriod)
		}
		return list
	}
	if section(c) == modeIPVS {
		text("ipvs.scheduler", "nftproxy-balance", SchedulerBalance(c.IPVS.Scheduler))
	}
	// kube-proxy's rule in KUBE-FORWARD; the other modes have none.
	yes("mode", "nftproxy-drop-invalid", section(c) == modeIPTables)
	// ipvs mode takes these from iptables as well.
	yes("iptables.masqueradeAll", "masquerade-all", c.IPTables.MasqueradeAll)
	number("iptables.masqueradeBit", "iptables-masquerade-bit", c.IPTables.MasqueradeBit)
	return list
}

// NodePortAddresses returns the list of addresses that serve node ports and health check node ports in a mode of
// kube-proxy (1.37: NewNodePortAddresses in pkg/proxy/util, platformApplyDefaults in
// cmd/kube-proxy/app/server_linux.go). An empty list means the node's primary addresses in mode nftables, and all
// addresses in the others. With localhost, which is the default there, mode iptables also serves node ports on
// 127.0.0.1 where the list has that address, or no address of IPv4 at all.
func NodePortAddresses(mode string, list []string, localhost bool) []string {
	if len(list) == 0 && mode != modeNFTables {
		list = []string{"all"}
	}
	if mode != modeIPTables && mode != "" || !localhost {
		return list
	}
	served, v4 := false, false
	for _, text := range list {
		p, err := service.ParseRange(text)
		switch {
		case isLoopback(text):
			return list
		case text == "all":
			served = true
		case text == "primary":
			v4 = true
		case err != nil:
			return list // It is judged elsewhere.
		case p.Addr().Is4():
			v4, served = true, served || p.Contains(ip.V4.Loopback())
		}
	}
	const loopback = "127.0.0.0/8"
	switch {
	case served:
		return append(slices.Clip(list), loopback)
	case !v4:
		return append(slices.Clip(list), "0.0.0.0/0", loopback)
	}
	return list
}

// PrimaryAt adds a bind address to a list that has the node's primary addresses. To kube-proxy it is one of them
// (detectNodeIPs in cmd/kube-proxy/app/server.go), in place of the Node's first address of its family.
func PrimaryAt(bindAddress string, list []string) []string {
	const primary = "primary"
	a, err := netip.ParseAddr(bindAddress)
	if err != nil || a.IsUnspecified() || a.IsLoopback() || len(list) > 0 && !slices.Contains(list, primary) {
		return list
	}
	if len(list) == 0 {
		list = []string{primary}
	}
	a = a.Unmap()
	return append(slices.Clip(list), netip.PrefixFrom(a, a.BitLen()).String())
}

// isLoopback says whether an entry of the list stands for 127.0.0.1 by itself.
func isLoopback(text string) bool {
	p, err := service.ParseRange(text)
	return text == "localhost" || err == nil && p.Masked().Addr().IsLoopback() && p.Contains(ip.V4.Loopback())
}

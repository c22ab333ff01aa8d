package kubeproxyconfig

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
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
	text("nodePortAddresses", "nodeport-addresses", strings.Join(nodePortAddresses(c), ","))
	text("noMasqueradeCIDRs", "nftproxy-no-masquerade-cidrs", strings.Join(f.NoMasqueradeCIDRs, ","))
	for _, t := range f.tls() {
		if t.Enable {
			text(t.field+".certFile", t.flag+"-cert-file", t.CertFile)
			text(t.field+".keyFile", t.flag+"-private-key-file", t.KeyFile)
		}
	}
	yes("enableProfiling", "profiling", c.EnableProfiling)
	yes("bindAddressHardFail", "bind-address-hard-fail", c.BindAddressHardFail)
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
	// ipvs mode takes these from iptables as well.
	yes("iptables.masqueradeAll", "masquerade-all", c.IPTables.MasqueradeAll)
	number("iptables.masqueradeBit", "iptables-masquerade-bit", c.IPTables.MasqueradeBit)
	return list
}

// nodePortAddresses are those of the file. kube-proxy's mode iptables, its default up to 1.39, also serves node ports on
// 127.0.0.1 where the file has no addresses or all those of IPv4, unless localhostNodePorts is false. Registries in
// clusters rely on that.
func nodePortAddresses(c *v1alpha1.KubeProxyConfiguration) []string {
	const loopback = "127.0.0.0/8"
	list, local := c.NodePortAddresses, c.IPTables.LocalhostNodePorts
	if section(c) != modeIPTables || local != nil && !*local || namesLoopback(list) {
		return list
	}
	switch {
	case len(list) == 0:
		return []string{"primary", loopback}
	case slices.Contains(list, "all"), slices.ContainsFunc(list, func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err == nil && p.Addr().Is4() && p.Bits() == 0
	}):
		return append(slices.Clip(list), loopback)
	}
	return list
}

// namesLoopback says whether the list names loopback addresses of IPv4.
func namesLoopback(list []string) bool {
	return slices.ContainsFunc(list, func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return s == "localhost" || err == nil && p.Addr().Is4() && p.Addr().IsLoopback()
	})
}

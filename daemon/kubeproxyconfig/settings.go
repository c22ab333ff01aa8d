package kubeproxyconfig

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// field is one of a file, and the flag of nftproxy that means the same.
type field struct {
	path, flag string
	value      any // a pointer to it
}

func clientFields(c *v1alpha1.KubeProxyConfiguration) []field {
	return []field{
		{"clientConnection.kubeconfig", "kubeconfig", &c.ClientConnection.Kubeconfig},
		{"hostnameOverride", "hostname-override", &c.HostnameOverride},
		{"healthzBindAddress", "healthz-bind-address", &c.HealthzBindAddress},
		{"metricsBindAddress", "metrics-bind-address", &c.MetricsBindAddress},
		{"clusterCIDR", "cluster-cidr", &c.ClusterCIDR},
		{"detectLocalMode", "detect-local-mode", (*string)(&c.DetectLocalMode)},
		{"detectLocal.bridgeInterface", "pod-bridge-interface", &c.DetectLocal.BridgeInterface},
		{"detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", &c.DetectLocal.InterfaceNamePrefix},
		{"nodePortAddresses", "nodeport-addresses", &c.NodePortAddresses},
	}
}

func serverFields(c *v1alpha1.KubeProxyConfiguration) []field {
	return []field{
		{"enableProfiling", "profiling", &c.EnableProfiling},
		{"bindAddressHardFail", "bind-address-hard-fail", &c.BindAddressHardFail},
		{"logging.format", "logging-format", &c.Logging.Format},
		{"logging.verbosity", "v", &c.Logging.Verbosity},
	}
}

func kernelFields(c *v1alpha1.KubeProxyConfiguration) []field {
	t := &c.Conntrack
	return []field{
		{"oomScoreAdj", "oom-score-adj", &c.OOMScoreAdj},
		{"conntrack.maxPerCore", "conntrack-max-per-core", &t.MaxPerCore},
		{"conntrack.min", "conntrack-min", &t.Min},
		{"conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established", t.TCPEstablishedTimeout},
		{"conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait", t.TCPCloseWaitTimeout},
		{"conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", &t.TCPBeLiberal},
		{"conntrack.udpTimeout", "conntrack-udp-timeout", &t.UDPTimeout},
		{"conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", &t.UDPStreamTimeout},
		// What ipvs mode left is there in whichever mode the file is now.
		{"ipvs.excludeCIDRs", "ipvs-exclude-cidrs", &c.IPVS.ExcludeCIDRs},
	}
}

// nftablesFields are those of the mode nftables.
func nftablesFields(c *v1alpha1.KubeProxyConfiguration) []field {
	return []field{
		{"nftables.masqueradeAll", "masquerade-all", &c.NFTables.MasqueradeAll},
		{"nftables.masqueradeBit", "iptables-masquerade-bit", &c.NFTables.MasqueradeBit},
		{"nftables.minSyncPeriod", "iptables-min-sync-period", &c.NFTables.MinSyncPeriod},
	}
}

// text is the value as the flag takes it; empty if the file leaves the field empty.
func (f field) text() string {
	switch v := f.value.(type) {
	case *string:
		return *v
	case *[]string:
		return strings.Join(*v, ",")
	case *bool:
		if *v {
			return "true"
		}
	case *v1.VerbosityLevel:
		if *v != 0 {
			return strconv.FormatUint(uint64(*v), 10)
		}
	case **int32:
		if *v != nil {
			return strconv.Itoa(int(**v))
		}
	case *metav1.Duration:
		if v != nil {
			return v.Duration.String()
		}
	}
	return ""
}

// read takes the value of the flag. An empty number leaves the default.
func (f field) read(text string) (err error) {
	switch v := f.value.(type) {
	case *string:
		*v = text
	case *[]string: // as the flag's type prints it: [a,b]
		*v = nil
		if text = strings.Trim(text, "[]"); text != "" {
			*v = strings.Split(text, ",")
		}
	case *bool:
		*v, err = strconv.ParseBool(text)
	case *v1.VerbosityLevel:
		var n int64
		n, err = strconv.ParseInt(text, 10, 32)
		*v = v1.VerbosityLevel(max(0, n))
	case **int32:
		if text != "" {
			var n int64
			n, err = strconv.ParseInt(text, 10, 32)
			*v = new(int32(n))
		}
	case *metav1.Duration:
		v.Duration, err = time.ParseDuration(text)
	}
	return err
}

// Setting is one field of a file as the flag of nftproxy that means the same.
type Setting struct {
	// Field is the path in the file, such as "conntrack.min". Flag is the flag's name
	// without dashes, and Value is its value.
	Field, Flag, Value string
}

// Settings lists what nftproxy takes from the file. A field that the file leaves
// empty is not in the list, unless its default depends on another field. A mode
// other than nftables chooses the section that kube-proxy would use in that mode.
func (f *File) Settings() (list []Setting) {
	c := f.KubeProxyConfiguration
	localhost := c.IPTables.LocalhostNodePorts
	c.NodePortAddresses = PrimaryAt(c.BindAddress,
		NodePortAddresses(section(&c), c.NodePortAddresses, localhost == nil || *localhost))
	all := append(clientFields(&c), field{"noMasqueradeCIDRs", "nftproxy-no-masquerade-cidrs", &f.NoMasqueradeCIDRs})
	for _, t := range f.tls() {
		if t.Enable {
			all = append(all, field{t.field + ".certFile", t.flag + "-cert-file", &t.CertFile},
				field{t.field + ".keyFile", t.flag + "-private-key-file", &t.KeyFile})
		}
	}
	all = append(all, serverFields(&c)...)
	if allow, set := c.FeatureGates[GateExternalIPs]; set {
		gate := GateExternalIPs + "=" + strconv.FormatBool(allow)
		all = append(all, field{"featureGates." + GateExternalIPs, "feature-gates", &gate})
	}
	all = append(all, kernelFields(&c)...)
	for _, f := range append(all, modeFields(&c)...) {
		if value := f.text(); value != "" {
			list = append(list, Setting{f.path, f.flag, value})
		}
	}
	return list
}

// modeFields are those of the section that the file's mode chooses.
func modeFields(c *v1alpha1.KubeProxyConfiguration) []field {
	mode := section(c)
	if mode == modeNFTables {
		list := nftablesFields(c)
		if forSlowWrites(c.NFTables.MinSyncPeriod.Duration) {
			list = list[:len(list)-1]
		}
		return list
	}
	var list []field
	if mode == modeIPVS {
		list = append(list, field{"ipvs.scheduler", "nftproxy-balance", new(SchedulerBalance(c.IPVS.Scheduler))})
	}
	return append(list,
		// kube-proxy's rule in KUBE-FORWARD; the other modes have none.
		field{"mode", "nftproxy-drop-invalid", new(mode == modeIPTables)},
		// ipvs mode takes these from iptables as well.
		field{"iptables.masqueradeAll", "masquerade-all", &c.IPTables.MasqueradeAll},
		field{"iptables.masqueradeBit", "iptables-masquerade-bit", &c.IPTables.MasqueradeBit})
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

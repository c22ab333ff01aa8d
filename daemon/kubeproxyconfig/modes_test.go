package kubeproxyconfig_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/daemon/kubeproxyconfig"
)

// modes are those of kube-proxy on Linux.
func modes() []string { return []string{"iptables", "ipvs", "nftables"} }

// TestEmpty: what a file means that has a mode and nothing else, and one without a mode, which kube-proxy up to 1.39
// takes for iptables. test/e2e has the real kube-proxy beside it.
func TestEmpty(t *testing.T) {
	const servers = "healthz-bind-address=0.0.0.0:10256 metrics-bind-address=127.0.0.1:10249"
	const conntrack = "conntrack-udp-timeout=0s conntrack-udp-timeout-stream=0s"
	for mode, nodePorts := range map[string]string{
		"": "nodeport-addresses=all,127.0.0.0/8 ", "iptables": "nodeport-addresses=all,127.0.0.0/8 ",
		"ipvs": "nodeport-addresses=all ", "nftables": "",
	} {
		want := servers + " " + nodePorts + conntrack
		switch mode {
		case "nftables":
			want += " iptables-min-sync-period=0s" // nftproxy's own default
		case "", "iptables":
			want += " nftproxy-drop-invalid=true"
		}
		if settings, _ := read(t, mode, "", ""); strings.Join(settings, " ") != want {
			t.Errorf("mode %q: %q, want %q", mode, settings, want)
		}
	}
}

// read returns the settings of a file as FLAG=VALUE, and its notes. The file has a mode and a field, whose path has
// dots.
func read(t *testing.T, mode, field, value string) (settings, notes []string) {
	t.Helper()
	text, steps := value, strings.Split(field, ".")
	for i, step := range slices.Backward(steps) {
		if text = step + ": " + text; i > 0 {
			text = "{" + text + "}"
		}
	}
	if field == "" {
		text = ""
	}
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	file, err := kubeproxyconfig.Parse(fmt.Appendf(nil, "%smode: %q\n%s\n", head, mode, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for _, s := range file.Settings() {
		settings = append(settings, s.Flag+"="+s.Value)
	}
	return settings, file.Notes
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// TestFields: what each field changes in each mode, beside a file without it. A field sets a flag, or a note says that
// it has no effect. It does neither where kube-proxy ignores it as well, in a section of another mode, and where the
// file means the same without it.
func TestFields(t *testing.T) {
	all := func(what string) [3]string { return [3]string{what, what, what} }
	const noted, none = "noted", ""
	known := []string{"mode"} // TestEmpty has it
	for _, row := range []struct {
		field, value string
		want         [3]string // in each mode
	}{
		{"featureGates", "{AllowServiceExternalIPs: false}", all("feature-gates=AllowServiceExternalIPs=false")},
		{"featureGates", "{Other: true}", all(noted)},
		{"clientConnection.kubeconfig", "/kubeconfig", all("kubeconfig=/kubeconfig")},
		{"clientConnection.acceptContentTypes", "application/json", all(noted)},
		{"clientConnection.contentType", "application/json", all(noted)},
		{"clientConnection.contentType", "application/vnd.kubernetes.protobuf", all(none)},
		{"clientConnection.qps", "10", all(noted)},
		{"clientConnection.burst", "10", all(noted)},
		{"logging.format", "text", all("logging-format=text")},
		{"logging.flushFrequency", "1s", all(noted)},
		{"logging.flushFrequency", "5s", all(none)},
		{"logging.verbosity", "2", all("v=2")},
		{"logging.vmodule", "[{filePattern: a, verbosity: 1}]", all(noted)},
		{"logging.options.text.splitStream", "true", all(noted)},
		{"logging.options.text.infoBufferSize", "1k", all(noted)},
		{"logging.options.json.splitStream", "true", all(noted)},
		{"logging.options.json.infoBufferSize", "1k", all(noted)},
		{"hostnameOverride", "node-1", all("hostname-override=node-1")},
		{"bindAddress", "192.0.2.1", [3]string{none, none, "nodeport-addresses=primary,192.0.2.1/32"}},
		{"bindAddress", "0.0.0.0", all(none)},
		{"bindAddress", "127.0.0.1", all(none)},
		{"bindAddress", `"::"`, all("healthz-bind-address=[::]:10256 metrics-bind-address=[::1]:10249")},
		{"healthzBindAddress", "127.0.0.1", all("healthz-bind-address=127.0.0.1:10256")},
		{"metricsBindAddress", "0.0.0.0:9000", all("metrics-bind-address=0.0.0.0:9000")},
		{"bindAddressHardFail", "true", all("bind-address-hard-fail=true")},
		{"enableProfiling", "true", all("profiling=true")},
		{"showHiddenMetricsForVersion", `"1.36"`, all(noted)},
		{"iptables.masqueradeBit", "14", [3]string{"iptables-masquerade-bit=14", "iptables-masquerade-bit=14", none}},
		{"iptables.masqueradeBit", "0", [3]string{"iptables-masquerade-bit=0", "iptables-masquerade-bit=0", none}},
		{"iptables.masqueradeAll", "true", [3]string{"masquerade-all=true", "masquerade-all=true", none}},
		{"iptables.localhostNodePorts", "true", all(none)},
		{"iptables.localhostNodePorts", "false", [3]string{"nodeport-addresses=all", none, none}},
		{"iptables.syncPeriod", "1m", [3]string{noted, none, none}},
		{"iptables.minSyncPeriod", "10s", [3]string{noted, none, none}},
		{"ipvs.syncPeriod", "1m", [3]string{none, noted, none}},
		{"ipvs.minSyncPeriod", "10s", [3]string{none, noted, none}},
		{"ipvs.scheduler", "rr", all(none)},
		{"ipvs.scheduler", "sh", [3]string{none, "nftproxy-balance=client noted", none}},
		{"ipvs.scheduler", "lc", [3]string{none, noted, none}},
		{"ipvs.excludeCIDRs", "[192.0.2.0/24]", all("ipvs-exclude-cidrs=192.0.2.0/24")},
		{"ipvs.strictARP", "true", [3]string{none, noted, none}},
		{"ipvs.tcpTimeout", "1m", [3]string{none, noted, none}},
		{"ipvs.tcpFinTimeout", "1m", [3]string{none, noted, none}},
		{"ipvs.udpTimeout", "1m", [3]string{none, noted, none}},
		{"nftables.masqueradeBit", "14", [3]string{none, none, "iptables-masquerade-bit=14"}},
		{"nftables.masqueradeAll", "true", [3]string{none, none, "masquerade-all=true"}},
		{"nftables.syncPeriod", "1m", [3]string{none, none, noted}},
		{"nftables.minSyncPeriod", "100ms", [3]string{none, none, "iptables-min-sync-period=100ms"}},
		{"nftables.minSyncPeriod", "1s", [3]string{none, none, "without iptables-min-sync-period noted"}},
		{"nftables.minSyncPeriod", "15s", [3]string{none, none, "iptables-min-sync-period=15s"}},
		{"winkernel.networkName", "a", all(noted)},
		{"winkernel.sourceVip", "192.0.2.1", all(noted)},
		{"winkernel.enableDSR", "true", all(noted)},
		{"winkernel.rootHnsEndpointName", "a", all(noted)},
		{"winkernel.forwardHealthCheckVip", "true", all(noted)},
		{"detectLocalMode", "NodeCIDR", all("detect-local-mode=NodeCIDR")},
		{"detectLocal.bridgeInterface", "cni0", all("pod-bridge-interface=cni0")},
		{"detectLocal.interfaceNamePrefix", "veth", all("pod-interface-name-prefix=veth")},
		{"clusterCIDR", "10.0.0.0/8,fd00::/8", all("cluster-cidr=10.0.0.0/8,fd00::/8")},
		{"nodePortAddresses", "[]", all(none)},
		{"nodePortAddresses", "[primary]", all("nodeport-addresses=primary")},
		{"nodePortAddresses", "[192.0.2.0/24]", all("nodeport-addresses=192.0.2.0/24")},
		{"nodePortAddresses", "[192.0.2.0/24, 127.0.0.1/32]", all("nodeport-addresses=192.0.2.0/24,127.0.0.1/32")},
		{"nodePortAddresses", "[localhost]", all("nodeport-addresses=localhost")},
		{"nodePortAddresses", "[all]", [3]string{none, none, "nodeport-addresses=all"}},
		{"nodePortAddresses", "[0.0.0.0/0]", [3]string{"nodeport-addresses=0.0.0.0/0,127.0.0.0/8",
			"nodeport-addresses=0.0.0.0/0", "nodeport-addresses=0.0.0.0/0"}},
		{"nodePortAddresses", `["::/0"]`, [3]string{"nodeport-addresses=::/0,0.0.0.0/0,127.0.0.0/8",
			"nodeport-addresses=::/0", "nodeport-addresses=::/0"}},
		{"oomScoreAdj", "0", all("oom-score-adj=0")},
		{"conntrack.maxPerCore", "0", all("conntrack-max-per-core=0")},
		{"conntrack.min", "0", all("conntrack-min=0")},
		{"conntrack.tcpEstablishedTimeout", "0s", all("conntrack-tcp-timeout-established=0s")},
		{"conntrack.tcpCloseWaitTimeout", "0s", all("conntrack-tcp-timeout-close-wait=0s")},
		{"conntrack.tcpBeLiberal", "true", all("conntrack-tcp-be-liberal=true")},
		{"conntrack.udpTimeout", "1m", all("conntrack-udp-timeout=1m0s")},
		{"conntrack.udpStreamTimeout", "1m", all("conntrack-udp-timeout-stream=1m0s")},
		{"configSyncPeriod", "1m", all(noted)},
		{"configSyncPeriod", "15m", all(none)},
		{"portRange", "1-2", all(noted)},
		{"windowsRunAsService", "true", all(noted)},
	} {
		for i, mode := range modes() {
			before, notesBefore := read(t, mode, "", "")
			after, notes := read(t, mode, row.field, row.value)
			got := without(after, before)
			for _, gone := range without(before, after) {
				flag, _, _ := strings.Cut(gone, "=")
				if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, flag+"=") }) {
					got = append(got, "without "+flag)
				}
			}
			if len(without(notes, notesBefore)) > 0 {
				got = append(got, noted)
			}
			if text := strings.Join(got, " "); text != row.want[i] {
				t.Errorf("mode %s, %s: %s: %q, want %q", mode, row.field, row.value, text, row.want[i])
			}
		}
		known = append(known, row.field)
	}
	for _, field := range leaves(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "") {
		if !slices.Contains(known, field) {
			t.Errorf("no row has %s", field)
		}
	}
}

// leaves are the paths of a type's fields that are no structs of fields.
func leaves(of reflect.Type, path string) []string {
	if of.Kind() != reflect.Struct || of.Name() == "Duration" || of.Name() == "QuantityValue" ||
		of.Name() == "TimeOrMetaDuration" {
		return []string{strings.TrimPrefix(path, ".")}
	}
	var list []string
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Name == "TypeMeta" {
			continue
		}
		if name != "" {
			name = "." + name
		}
		list = append(list, leaves(field.Type, path+name)...)
	}
	return list
}

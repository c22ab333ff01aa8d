package kubeproxyconfig_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/test/check"
)

var update = flag.Bool("update", false, "write what the files give into testdata")

// TestFiles reads files as installers write them. The same archive has the settings that
// they give, and the notes.
func TestFiles(t *testing.T) {
	check.Archives(t, "testdata/*.txtar", *update, func(t *testing.T, archive *txtar.Archive) {
		file, err := kubeproxyconfig.Parse(archive.Files[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		var settings strings.Builder
		for _, s := range file.Settings() {
			fmt.Fprintf(&settings, "--%s=%s (%s)\n", s.Flag, s.Value, s.Field)
		}
		want := string(txtar.Format(archive))
		archive.Files = []txtar.File{archive.Files[0], {Name: "flags", Data: []byte(settings.String())},
			{Name: "notes", Data: []byte(strings.Join(append(slices.Concat(file.Mistakes, file.Notes), ""), "\n"))}}
		if text := string(txtar.Format(archive)); text != want && !*update {
			t.Errorf("the file is not what it gives (-update writes it):\n%s", text)
		}
	})
}

// TestErrors: all bad fields are reported at once, each by its name.
func TestErrors(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"no YAML": {"a: [", []string{"not YAML"}},
		"another kind": {"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
			[]string{`kind: "KubeletConfiguration": want KubeProxyConfiguration`}},
		"no version": {"kind: KubeProxyConfiguration\n", []string{`apiVersion: "": want kubeproxy.config.k8s.io/v1alpha1`}},
		"wrong type": {head + "oomScoreAdj: low\n", []string{"oomScoreAdj"}},
		"a mistyped mode": {head + "mode: nftable\n",
			[]string{`mode: "nftable": did you mean nftables? want iptables, ipvs`}},
		"several fields": {
			head + "mode: userspace\nbindAddress: node1\nconfigSyncPeriod: -1s\nclientConnection: {burst: -1}\nnftables: " +
				"{syncPeriod: -1s}\nnodePortAddresses: [primary, \"\"]\nipvs: {minSyncPeriod: -1s}\n",
			[]string{`mode: "userspace": want`, `bindAddress: "node1": want an IP address`, "configSyncPeriod: -1s: want",
				"clientConnection.burst: -1: want", "nftables.syncPeriod: -1s: want", `nodePortAddresses[1]: "": want`,
				"ipvs.minSyncPeriod: -1s: want"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := kubeproxyconfig.Parse([]byte(c.text))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not have %q", err, want)
				}
			}
		})
	}
}

// TestRepeatedField: a field that stands twice is a mistake, and the last one counts.
func TestRepeatedField(t *testing.T) {
	file, err := kubeproxyconfig.Parse([]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: " +
		"KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.0.0.0/8\nclusterCIDR: 11.0.0.0/8\n"))
	if err != nil {
		t.Fatal(err)
	}
	if file.ClusterCIDR != "11.0.0.0/8" || len(file.Mistakes) != 1 || !strings.Contains(file.Mistakes[0],
		"clusterCIDR") {
		t.Errorf("clusterCIDR %s, mistakes %q", file.ClusterCIDR, file.Mistakes)
	}
}

// TestWrongTypes: an error names each field whose value has a wrong type.
func TestWrongTypes(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for text, want := range map[string][]string{
		"conntrack: {tcpEstablishedTimeout: 1d}":          {"conntrack.tcpEstablishedTimeout: \"1d\": "},
		"configSyncPeriod: 900":                           {"configSyncPeriod: 900: "},
		"iptables: {syncPeriod: 3 s, minSyncPeriod: x}":   {"iptables.minSyncPeriod: ", "iptables.syncPeriod: \"3 s\": "},
		"oomScoreAdj: low\nnodePortAddresses: 10.0.0.0/8": {"oomScoreAdj: \"low\": ", "nodePortAddresses: "},
		"conntrack: 5": {"conntrack: 5: "},
		"detectLocal: {bridgeInterface: [a]}\nmode: [ipvs]\n": {"detectLocal.bridgeInterface: ", "mode: "},
		"logging: {flushFrequency: 5 s}":                      {"logging.flushFrequency: "},
		"featureGates: {A: maybe}":                            {"featureGates.A: \"maybe\": "},
	} {
		_, err := kubeproxyconfig.Parse([]byte(head + text))
		for _, want := range want {
			if err == nil || !strings.Contains("\n"+err.Error(), "\n"+want) {
				t.Errorf("%s: error %v, want %q", text, err, want)
			}
		}
	}
}

// TestDocuments: of several documents the first one counts, as in kube-proxy, and the others are a mistake. Separators
// and comments are none.
func TestDocuments(t *testing.T) {
	const first = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"
	for text, mistakes := range map[string]int{
		first: 0, "---\n" + first: 0, "# a\n---\n" + first + "---\n# b\n": 0, first + "---\nmode: ipvs\n": 1,
		first + "---\nkind: [\n": 1,
	} {
		file, err := kubeproxyconfig.Parse([]byte(text))
		if err != nil || len(file.Mistakes) != mistakes {
			t.Errorf("%q: error %v, mistakes %q, want %d", text, err, file.Mistakes, mistakes)
		}
	}
}

// TestServers: the addresses of the servers follow bindAddress, and lack of a
// port, as in kube-proxy.
func TestServers(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for text, want := range map[string][2]string{
		"":                                        {"0.0.0.0:10256", "127.0.0.1:10249"},
		"bindAddress: 192.0.2.1\n":                {"0.0.0.0:10256", "127.0.0.1:10249"},
		"bindAddress: '::ffff:192.0.2.1'\n":       {"0.0.0.0:10256", "127.0.0.1:10249"},
		"bindAddress: '::'\n":                     {"[::]:10256", "[::1]:10249"},
		"healthzBindAddress: 192.0.2.1\n":         {"192.0.2.1:10256", "127.0.0.1:10249"},
		"metricsBindAddress: '[::]'\n":            {"0.0.0.0:10256", "[::]:10249"},
		"metricsBindAddress: 0.0.0.0:9000\n":      {"0.0.0.0:10256", "0.0.0.0:9000"},
		"healthzBindAddress: '[2001:db8::1]:1'\n": {"[2001:db8::1]:1", "127.0.0.1:10249"},
	} {
		file, err := kubeproxyconfig.Parse([]byte(head + text))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{file.HealthzBindAddress, file.MetricsBindAddress}; got != want {
			t.Errorf("%q: servers at %v, want %v", text, got, want)
		}
	}
}

// TestUnknownFields: a field that does not exist is a mistake, with the field that it may stand for.
func TestUnknownFields(t *testing.T) {
	for text, want := range map[string]string{
		"nodePortAdresses: [primary]": `unknown field "nodePortAdresses"; it is ignored: did you mean ` +
			`nodePortAddresses?`,
		"nodeportaddresses: [primary]": `unknown field "nodeportaddresses"; it is ignored: did you mean ` +
			`nodePortAddresses?`,
		"nftables: {masqueradeall: true}": `unknown field "nftables.masqueradeall"; it is ignored: did you mean ` +
			`nftables.masqueradeAll?`,
		"localhostNodePorts: false": `unknown field "localhostNodePorts"; it is ignored: did you mean ` +
			`iptables.localhostNodePorts?`,
		"conntrack: {tcpBeLiberall: true}": `unknown field "conntrack.tcpBeLiberall"; it is ignored: did you mean ` +
			`conntrack.tcpBeLiberal?`,
		"metricServerTLS: {enable: true}": `unknown field "metricServerTLS"; it is ignored: did you mean ` +
			`metricsServerTLS?`,
		"udpIdleTimeout: 250ms": `unknown field "udpIdleTimeout"; it is ignored`,
		"kubeconfig: /kubeconfig": `unknown field "kubeconfig"; it is ignored: did you mean ` +
			`clientConnection.kubeconfig?`,
		`{"clusterCIDR": "10.0.0.0/8", "a": 1}`: `unknown field "a"; it is ignored`,
	} {
		const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
		if body, json := strings.CutPrefix(text, "{"); json {
			text = `{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", ` + body
		} else {
			text = head + text
		}
		file, err := kubeproxyconfig.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(file.Mistakes, "\n"); got != want {
			t.Errorf("%s:\n%s, want\n%s", text, got, want)
		}
	}
}

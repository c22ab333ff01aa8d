package kubeproxyconfig_test

import (
	"slices"
	"strings"
	"testing"

	"nftproxy/daemon/kubeproxyconfig"
)

// TestLocalhost: node ports are served on localhost where kube-proxy serves them by the same file, in iptables mode by
// default, and in no file of another mode that does not ask.
func TestLocalhost(t *testing.T) {
	for text, want := range map[string]string{
		"mode: ipvs\niptables: {localhostNodePorts: true}": "all",
		"mode: iptables\nnodePortAddresses: [0.0.0.0/1, " +
			"128.0.0.0/1]": "0.0.0.0/1,128.0.0.0/1,127.0.0.0/8",
		"mode: iptables\nnodePortAddresses: [0.0.0.0/0, " +
			"127.0.0.5/32]": "0.0.0.0/0,127.0.0.5/32,127.0.0.0/8",
		"mode: iptables\nnodePortAddresses: [127.0.0.1/0]":                "127.0.0.1/0,127.0.0.0/8",
		"mode: iptables\nnodePortAddresses: [127.0.0.5/32]":               "127.0.0.5/32",
		"mode: iptables\nnodePortAddresses: [primary]":                    "primary",
		"mode: iptables\nnodePortAddresses: [\"2001:db8::/64\", primary]": "2001:db8::/64,primary",
		"mode: iptables\nnodePortAddresses: [\"2001:db8::/64\"]":          "2001:db8::/64,0.0.0.0/0,127.0.0.0/8",
		"mode: iptables\nnodePortAddresses: [192.0.2.0/24]":               "192.0.2.0/24",
		"mode: iptables\nnodePortAddresses: [192.0.2.0/24, " +
			"127.0.0.1/32]": "192.0.2.0/24,127.0.0.1/32",
		"mode: iptables\nnodePortAddresses: [0.0.0.0/0]":      "0.0.0.0/0,127.0.0.0/8",
		"mode: iptables\nnodePortAddresses: [all]":            "all,127.0.0.0/8",
		"mode: iptables\nnodePortAddresses: [all, localhost]": "all,localhost",
		`mode: iptables` + "\n" +
			`nodePortAddresses: ["::/0"]`: "::/0,0.0.0.0/0,127.0.0.0/8",
		"mode: iptables\nnodePortAddresses: [0.0.0.0/0]\niptables: {localhostNodePorts: false}":    "0.0.0.0/0",
		"mode: nftables\nnodePortAddresses: [primary, localhost]":                                  "primary,localhost",
		"mode: iptables\nnodePortAddresses: [127.0.0.0/8]\niptables: {localhostNodePorts: false}":  "127.0.0.0/8 noted",
		"mode: iptables\nnodePortAddresses: [something bad]\niptables: {localhostNodePorts: true}": "something bad",
	} {
		file, err := kubeproxyconfig.Parse([]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: " +
			"KubeProxyConfiguration\n" + text + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range file.Settings() {
			if s.Flag == "nodeport-addresses" {
				got = s.Value
			}
		}
		if slices.ContainsFunc(file.Notes, func(n string) bool {
			return strings.HasPrefix(n, "iptables.localhostNodePorts")
		}) {
			got += " noted"
		}
		if got != want {
			t.Errorf("%s:\n%q, want %q", text, got, want)
		}
	}
}

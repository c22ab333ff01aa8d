package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// kubeProxyFlag is one of kube-proxy's flags.
type kubeProxyFlag struct{ name, kind, value string }

// recordedFlags are the flags of kube-proxy v1.37.2 on Linux. test/e2e compares the file
// with what the real one prints.
func recordedFlags(t *testing.T) []kubeProxyFlag {
	t.Helper()
	text, err := os.ReadFile("testdata/kube-proxy-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []kubeProxyFlag
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); !strings.HasPrefix(line, "#") {
			list = append(list, kubeProxyFlag{words[0], words[1], strings.Join(words[2:], " ")})
		}
	}
	// kube-proxy does not list its deprecated flags.
	return append(list, kubeProxyFlag{"healthz-port", "int32", "10256"}, kubeProxyFlag{"metrics-port", "int32", "10249"})
}

// ownDefaults has the defaults that are not kube-proxy's, with the reason.
func ownDefaults() map[string][2]string {
	return map[string][2]string{
		"iptables-masquerade-bit":  {"-1", "marks are left to other programs"},
		"iptables-min-sync-period": {"10ms", "a sync takes milliseconds"},
		"oom-score-adj":            {"", "the pod's priority says it, and a lower score needs CAP_SYS_RESOURCE"},
		"detect-local-mode":        {"ClusterCIDR", "kube-proxy fills it in later"},
	}
}

// TestKubeProxyFlags: run takes every flag of kube-proxy with a value of its type, and
// has its default.
func TestKubeProxyFlags(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	byName := map[string]string{
		"cluster-cidr": "10.0.0.0/8,fd00::/8", "config": "config.conf", "kubeconfig": kubeconfig, "master": "https://192.0.2.1:6443",
		"hostname-override": "node-1", "pod-bridge-interface": "cni0", "pod-interface-name-prefix": "veth", "nodeport-addresses": "primary,10.0.0.0/8",
		"logging-format": "json", "kube-api-content-type": "application/json", "show-hidden-metrics-for-version": "1.36", "ipvs-scheduler": "rr",
		"ipvs-exclude-cidrs": "10.0.0.0/8,11.0.0.0/8", "write-config-to": "file",
	}
	byType := map[string]string{
		"bool": "true", "int32": "7", "float32": "2.5", "duration": "1m", "ip": "192.0.2.1", "ipport": "192.0.2.1:8080", "LocalMode": "NodeCIDR",
		"ProxyMode": "nftables", "mapStringBool": "A=true,B=false", "quantity": "64Ki", "Level": "4", "pattern=N,...": "server=4,other*=5", "version": "raw",
	}
	var run runOptions
	cmd := &cobra.Command{}
	run.addFlags(cmd)
	for _, f := range recordedFlags(t) {
		value, found := byName[f.name]
		if !found {
			value, found = byType[f.kind]
		}
		if !found {
			t.Errorf("--%s: what is a value of it?", f.name)
		}
		line := commandLine{"--" + f.name + "=" + value}
		if f.name != "hostname-override" {
			line = append(line, "--hostname-override=node-1")
		}
		if _, err := line.config([]byte(configHead)); err != nil {
			t.Errorf("--%s=%s: %v", f.name, value, err)
		}
		g := cmd.Flags().Lookup(f.name)
		if g == nil {
			continue // which is the error from above
		}
		want := f.value
		if own, differs := ownDefaults()[f.name]; differs {
			want = own[0]
		}
		if have := strings.Trim(g.DefValue, "[]"); have != want && !isZero(have, want) {
			t.Errorf("--%s has the default %q, kube-proxy's is %q", f.name, have, want)
		}
	}
}

// isZero says whether a help text leaves the default out because it is the type's zero.
func isZero(have, want string) bool {
	return want == "" && strings.Contains(" false 0 0s ", fmt.Sprintf(" %s ", have))
}

// TestInstallersArguments: the command lines with which distributions start kube-proxy.
func TestInstallersArguments(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"kubeconfig", "config.conf"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(configHead), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		flags commandLine
		notes []string
	}{
		// RKE2 starts kube-proxy as k3s does (k3s-io/k3s: kubeProxyArgs in
		// pkg/daemons/agent/agent_linux.go): the address has no port.
		"RKE2": {commandLine{
			"--cluster-cidr=10.42.0.0/16", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-close-wait=0s",
			"--conntrack-tcp-timeout-established=0s", "--healthz-bind-address=127.0.0.1", "--hostname-override=server-1",
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"), "--proxy-mode=iptables",
		}, []string{"--proxy-mode has no effect: nftproxy always programs nftables"}},
		"RKE2 by IPv6, with arguments of the operator": {commandLine{
			"--bind-address=::", "--cluster-cidr=10.42.0.0/16,2001:cafe:42::/56", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-close-wait=0s",
			"--conntrack-tcp-timeout-established=0s", "--healthz-bind-address=::1", "--hostname-override=server-1",
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"), "--proxy-mode=ipvs", "--ipvs-scheduler=rr", "--nodeport-addresses=primary",
			"--metrics-bind-address=0.0.0.0:10249",
		}, []string{"--proxy-mode has no effect", "--bind-address has no effect", "--ipvs-scheduler has no effect"}},
		"kubeadm":   {commandLine{"--config=" + filepath.Join(dir, "config.conf"), "--hostname-override=node-1"}, nil},
		"kubespray": {commandLine{"--config=" + filepath.Join(dir, "config.conf"), "--hostname-override=node-1"}, nil},
		"k0s":       {commandLine{"--config=" + filepath.Join(dir, "config.conf"), "--hostname-override=node-1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := c.flags.config([]byte(configHead))
			if err != nil {
				t.Fatal(err)
			}
			notes := config.Notes
			if len(notes) != len(c.notes) {
				t.Errorf("notes: %q, want %q", notes, c.notes)
			}
			for _, want := range c.notes {
				if !strings.Contains(strings.Join(notes, "\n"), want) {
					t.Errorf("notes: %q, want %q", notes, want)
				}
			}
		})
	}
}

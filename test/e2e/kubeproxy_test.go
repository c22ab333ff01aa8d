package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"nftproxy/test/scenario"
)

// kubeProxyCommand runs kube-proxy as kubeadm does, by a configuration file: it
// has no flag for its mark bit.
func kubeProxyCommand(t *testing.T, binary string, plane *controlPlane, s *scenario.Scenario) *exec.Cmd {
	t.Helper()
	config, err := yaml.Marshal(kubeProxyConfig(t, plane.cluster.AdminKubeconfig(), s))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(binary, "--config="+path, "--hostname-override="+scenario.NodeName, "-v=2")
}

// kubeProxyConfig says what nftproxy's flags say.
func kubeProxyConfig(t *testing.T, kubeconfig string, s *scenario.Scenario) map[string]any {
	t.Helper()
	nftables, detect := map[string]any{"minSyncPeriod": "1ms"}, map[string]any{}
	config := map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
		"clientConnection": map[string]any{"kubeconfig": kubeconfig},
		// Not these tests' affair.
		"conntrack": map[string]any{"maxPerCore": 0},
		"nftables":  nftables, "detectLocal": detect,
	}
	var nodePorts []string
	for _, flag := range s.CommandLine() {
		name, value, _ := strings.Cut(flag, "=")
		switch name {
		case "--cluster-cidr":
			config["clusterCIDR"] = firstOfFamilies(value) // the last one counts
		case "--detect-local-mode":
			config["detectLocalMode"] = value
		case "--pod-bridge-interface":
			detect["bridgeInterface"] = value
		case "--pod-interface-name-prefix":
			detect["interfaceNamePrefix"] = value
		case "--nodeport-addresses":
			nodePorts = append(nodePorts, strings.Split(value, ",")...)
			config["nodePortAddresses"] = nodePorts
		case "--masquerade-all":
			nftables["masqueradeAll"] = value != "false"
		case "--iptables-masquerade-bit":
			nftables["masqueradeBit"] = yamlNumber(t, value)
		// kube-proxy has nothing for it
		case "--nftproxy-answer-ping", "--nftproxy-no-masquerade-cidrs", "--nftproxy-masquerade-to-node",
			"--nftproxy-balance":
		default:
			t.Fatalf("kube-proxy has nothing for %s", flag)
		}
	}
	return config
}

// firstOfFamilies returns the first CIDR of each family: kube-proxy takes no more.
func firstOfFamilies(cidrs string) string {
	var first []string
	seen := map[bool]bool{}
	for cidr := range strings.SplitSeq(cidrs, ",") {
		if family := strings.Contains(cidr, ":"); !seen[family] {
			seen[family], first = true, append(first, cidr)
		}
	}
	return strings.Join(first, ",")
}

func yamlNumber(t *testing.T, text string) (n int) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

package kubeproxyconfig_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"nftproxy/daemon/kubeproxyconfig"
)

// TestEffective: what a file sets comes back where a flag has it.
func TestEffective(t *testing.T) {
	const text = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: /etc/kubeconfig}
hostnameOverride: node-1
healthzBindAddress: 0.0.0.0:1
metricsBindAddress: 127.0.0.1:2
clusterCIDR: 10.0.0.0/8
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: br0, interfaceNamePrefix: veth}
nodePortAddresses: [10.0.0.0/8, 11.0.0.0/8]
enableProfiling: true
ipvs: {excludeCIDRs: [192.0.2.0/24, 198.51.100.0/24]}
bindAddressHardFail: true
logging: {format: json, verbosity: 3}
oomScoreAdj: -5
conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, tcpBeLiberal: true, udpTimeout: 5s, udpStreamTimeout: 6s}
nftables: {masqueradeAll: true, masqueradeBit: 7, minSyncPeriod: 18s}
`
	file, err := kubeproxyconfig.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{}
	for _, s := range file.Settings() {
		flags[s.Flag] = s.Value
	}
	c, err := kubeproxyconfig.Effective(func(flag string) (string, bool) { v, ok := flags[flag]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	written, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := kubeproxyconfig.Parse(written)
	if err != nil {
		t.Fatalf("%v\n%s", err, written)
	}
	for _, s := range again.Settings() {
		if flags[s.Flag] != s.Value {
			t.Errorf("%s (--%s) is %q, was %q", s.Field, s.Flag, s.Value, flags[s.Flag])
		}
		delete(flags, s.Flag)
	}
	if len(flags) > 0 {
		t.Errorf("lost: %v", flags)
	}
	if got := strings.Join(c.NodePortAddresses, " "); got != "10.0.0.0/8 11.0.0.0/8" {
		t.Errorf("nodePortAddresses %q", got)
	}
	if _, err := kubeproxyconfig.Effective(func(string) (string, bool) { return "x", false }); err == nil ||
		strings.Count(err.Error(), "there is no such flag") < 10 {
		t.Errorf("without flags: %v", err)
	}
}

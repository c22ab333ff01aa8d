package main

import (
	"strings"
	"testing"

	"nftproxy/test/lib/nftcmd"
	"nftproxy/test/lib/testnet"
)

const podCIDRManifest = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.244.7.0/24, "fd00:7::/64"]}
---`

// TestMasqueradeFlags: the flags reach the rules.
func TestMasqueradeFlags(t *testing.T) {
	nft := nftcmd.ForTest(t)
	for name, c := range map[string]struct {
		flags []string
		// want has texts that the listing must have, not has texts that it must not have.
		want, not []string
	}{
		"by the Node's podCIDRs, another bit": {
			[]string{"--detect-local-mode", "NodeCIDR", "--cluster-cidr", "10.0.0.0/8", "--iptables-masquerade-bit", "3"},
			[]string{"ip saddr != 10.244.7.0/24", "ip6 saddr != fd00:7::/64", "0x00000008"},
			[]string{"10.0.0.0/8", "0x00004000"},
		},
		"by the cluster's CIDR, the usual bit": {
			[]string{"--cluster-cidr", "10.0.0.0/8", "--iptables-masquerade-bit=14"},
			[]string{"ip saddr != 10.0.0.0/8", "0x00004000"},
			[]string{"10.244.7.0/24", "fd00:7::/64", "0x00000008", "ct label"},
		},
		"by the cluster's CIDR, no bit": {
			[]string{"--cluster-cidr", "10.0.0.0/8"},
			[]string{"ip saddr != 10.0.0.0/8", "ct label set 110", "ct label 110 masquerade"},
			[]string{"10.244.7.0/24", "fd00:7::/64", "meta mark"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testnet.NamespaceForTest(t, "masquerade")
			firstSync(t, ns, append(c.flags, "--nftproxy-manifests", manifest(t, podCIDRManifest+webManifest("", "10.244.7.1", "fd00:7::1")))...)
			listing, err := nft.Ruleset(ns)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.want {
				if !strings.Contains(listing, text) {
					t.Errorf("lacks %q:\n%s", text, listing)
				}
			}
			for _, text := range c.not {
				if strings.Contains(listing, text) {
					t.Errorf("has %q:\n%s", text, listing)
				}
			}
		})
	}
}

package main

import (
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestStartsWhileInterfacesChange: that interfaces come and go ends no start.
func TestStartsWhileInterfacesChange(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	testnet.ChurnForTest(t, ns)
	path := manifest(t, webManifest(", type: NodePort", "10.244.0.5"))
	for range 25 {
		firstSync(t, ns, "--nftproxy-manifests", path, "--nodeport-addresses", "10.0.0.0/8,fd00::/8")
	}
}

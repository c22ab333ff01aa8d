package main

import (
	"net/netip"
	"testing"

	"nftproxy/test/testnet"
)

const nodePortManifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]}
`

// TestRestartWritesNothing: the first program of a start has the node's own addresses.
// Without them node ports would be gone for a moment.
func TestRestartWritesNothing(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "restart")
	if err := ns.AddAddr("lo", netip.MustParsePrefix("192.0.2.7/32")); err != nil {
		t.Fatal(err)
	}
	manifests := manifest(t, nodePortManifest)
	flags := []string{"--nftproxy-manifests", manifests, "--nodeport-addresses", "192.0.2.0/24"}
	if n := firstSync(t, ns, flags...); n == 0 {
		t.Error("the first start wrote nothing")
	}
	for range 5 { // Addresses that come too late may sometimes come in time.
		if n := firstSync(t, ns, flags...); n != 0 {
			t.Errorf("a restart wrote %d objects", n)
		}
	}
}

package main

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"nftproxy/test/lib/testnet"
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

// TestCollectorWorksAgain: after the first sync of a start and of a restart, the
// operator's settings are in force.
func TestCollectorWorksAgain(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "collector")
	t.Setenv("GOGC", "77")
	t.Setenv("GOMEMLIMIT", "3GiB")
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	manifests := manifest(t, nodePortManifest)
	for _, what := range []string{"start", "restart"} {
		r := start(t, ns, "--nftproxy-manifests", manifests, "--metrics-bind-address", "127.0.0.1:10249")
		r.awaitSyncAndServer("127.0.0.1:10249")
		answer, err := client.Get("http://127.0.0.1:10249/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"\ngo_gc_gogc_percent 77\n", "\ngo_gc_gomemlimit_bytes 3.221225472e+09\n"} {
			if !strings.Contains(string(body), want) {
				t.Errorf("after a %s the metrics lack %q", what, want)
			}
		}
		r.end()
	}
}

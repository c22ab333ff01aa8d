package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// TestHeldConnections: while a client waits for the first endpoint, explain and get services say so, and since when.
func TestHeldConnections(t *testing.T) {
	w := newTroubles(t)
	objects := filepath.Join(w.dir, manifestsDir)
	w.must(os.WriteFile(filepath.Join(objects, "objects.yaml"), []byte(`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: cart, annotations: {nftproxy.io/no-endpoints: hold}}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
`), 0o644))
	firstSync(t, w.Node, "--nftproxy-manifests", objects, "--cluster-cidr", "10.244.0.0/16")
	pod := w.client.Addrs.V4().String()
	says := func(out string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("no %q in:\n%s", text, out)
			}
		}
	}
	explained, _, status := w.explain("--from " + pod + " 10.96.0.10:80")
	says(explained, "it is dropped", "now no connection waits", "asks that connections wait for an endpoint "+
		"(nftproxy.io/no-endpoints): for 1m0s the client's kernel sends again what is dropped",
		"Service shop/cart:http: no endpoint serves")
	if status != 1 {
		t.Errorf("exit status %d", status)
	}
	for range 2 {
		a, err := w.client.NS.Ask(t.Context(), testnet.TCP, netip.MustParseAddrPort("10.96.0.10:80"), 300*time.Millisecond)
		if w.must(err); a.Outcome != testnet.TimedOut {
			t.Errorf("%+v", a)
		}
	}
	explained, _, _ = w.explain("--from " + pod + " 10.96.0.10:80")
	says(explained, "now 2 connections wait, the first for ")
	says(transcript(t, w.Node, "get", "services", "-o", "wide"), "no-endpoints=hold", " held ",
		"10.96.0.10:80/tcp: no endpoint serves, and no-endpoints is hold, so connections are held; 2 connections wait, the "+
			"first for ")
	says(transcript(t, w.Node, "get", "services", "-o", "yaml"), "heldConnections: 2\n", "fate: held\n", "kind: held\n",
		"effect: held\n")
}

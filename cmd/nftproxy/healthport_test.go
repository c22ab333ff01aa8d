package main

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestHealthCheckNodePort: health check node ports work on the node's addresses as they
// come and go. They do not need the health server, as they do in kube-proxy.
func TestHealthCheckNodePort(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	change := func(change func(string, netip.Prefix) error, prefix string) {
		t.Helper()
		if err := change("lo", netip.MustParsePrefix(prefix)); err != nil {
			t.Fatal(err)
		}
	}
	change(ns.AddAddr, "192.0.2.1/32")
	text := webManifest(", type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32100",
		"10.244.7.1@node-1", "10.244.7.2@node-1", "10.244.8.1@node-2", "fd00:7::1@node-1")
	r := start(t, ns, "--nftproxy-manifests", manifest(t, text), "--nodeport-addresses", "192.0.2.0/24,2001:db8::/32")
	await := func(msg, address string) {
		t.Helper()
		r.await(msg+" "+address, func(l logged) bool { return l.Msg == msg && l.Address == address })
	}
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	ask := func(address string, local int) {
		t.Helper()
		r, err := client.Get("http://" + address)
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		want := fmt.Sprintf(`{"service":{"namespace":"default","name":"web"},"localEndpoints":%d,"serviceProxyHealthy":true}`, local)
		if err != nil || r.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != want {
			t.Errorf("%s: %d %s (%v), want %s", address, r.StatusCode, body, err, want)
		}
	}

	const opened, closed = "listening on a health check node port", "no longer listening on a health check node port"
	await(opened, "192.0.2.1:32100")
	ask("192.0.2.1:32100", 2)
	change(ns.AddAddr, "2001:db8::1/128")
	await(opened, "[2001:db8::1]:32100")
	ask("[2001:db8::1]:32100", 1)
	change(ns.AddAddr, "192.0.2.2/32")
	await(opened, "192.0.2.2:32100")
	ask("192.0.2.2:32100", 2)
	change(ns.DelAddr, "192.0.2.1/32")
	await(closed, "192.0.2.1:32100")
	ask("192.0.2.2:32100", 2)
}

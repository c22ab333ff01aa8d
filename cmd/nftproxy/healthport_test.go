package main

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"nftproxy/internal/testnet"
)

const healthPortManifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 32100
  clusterIPs: [10.96.0.10, "fd00:96::a"]
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.7.1], nodeName: node-1}, {addresses: [10.244.7.2], nodeName: node-1}, {addresses: [10.244.8.1], nodeName: node-2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: ["fd00:7::1"], nodeName: node-1}]
`

// TestHealthCheckNodePort: without the health server, which kube-proxy needs
// for it, and on the node's addresses as they come and go.
func TestHealthCheckNodePort(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	change := func(change func(string, netip.Prefix) error, prefix string) {
		t.Helper()
		if err := change("lo", netip.MustParsePrefix(prefix)); err != nil {
			t.Fatal(err)
		}
	}
	change(ns.AddAddr, "192.0.2.1/32")
	r := start(t, ns, "--manifests", manifest(t, healthPortManifest), "--nodeport-addresses", "192.0.2.0/24,2001:db8::/32")
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

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"nftproxy/look/traffic"
	"nftproxy/test/lib/testnet"
)

const refusingManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, protocol: TCP, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.0.2]}, {addresses: [10.244.0.3]}]
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec:
  clusterIP: 10.96.0.11
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
`

// TestTop: real connections show up in top, in the JSON and in the metrics: those that are served by Service
// and endpoint, and those that are refused by cause and Service.
func TestTop(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "top")
	lo, err := ns.Handle().LinkByName("lo")
	if err == nil {
		err = ns.Handle().LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"10.244.0.2/32", "10.244.0.3/32"} {
		addr, err := netlink.ParseAddr(a)
		if err == nil {
			err = ns.Handle().AddrAdd(lo, addr)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	clusterIPs := &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)}
	if err := ns.Handle().RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: clusterIPs,
		Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	r := start(t, ns, "--nftproxy-manifests", manifest(t, refusingManifest), "--hostname-override", "node-1",
		"--nftproxy-counters=metrics",
		"--metrics-bind-address", "127.0.0.1:10249")
	r.awaitSyncAndServer("127.0.0.1:10249")
	// Nothing listens at the endpoints, so all connections are refused; those to web are counted as served.
	dial := func(n int, address string) {
		t.Helper()
		for range n {
			if c, err := ns.Dial(t.Context(), "tcp", address); err == nil {
				t.Errorf("%s answers: %v", address, c.Close())
			} else if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %v", address, err)
			}
		}
	}
	dial(5, "10.96.0.10:80")
	dial(3, "10.96.0.11:80")
	dial(2, "10.96.0.11:81")
	top := func(args ...string) string {
		t.Helper()
		out, notes, code := runIn(t, ns, append([]string{"top", "--interval", "100ms"}, args...)...)
		if code != 0 {
			t.Fatal(notes)
		}
		return out
	}
	var view traffic.View
	if err := json.Unmarshal([]byte(top("-o", "json")), &view); err != nil {
		t.Fatal(err)
	}
	causes := map[string]uint64{}
	for _, c := range view.Causes {
		causes[c.Cause] = c.Packets
	}
	if causes["no-endpoints"] != 3 || causes["unknown-port"] != 2 || len(causes) != 7 {
		t.Errorf("causes: %v", causes)
	}
	if len(view.Refused) != 1 || view.Refused[0].Service != "shop/empty" || view.Refused[0].Packets != 3 {
		t.Errorf("refused: %+v", view.Refused)
	}
	if !view.Counters || len(view.Services) != 2 || view.Services[0].Service != "shop/web" ||
		view.Services[0].Connections != 5 {
		t.Fatalf("services: %+v", view.Services)
	}
	sum := uint64(0)
	for _, e := range view.Services[0].Endpoints {
		sum += e.Connections
	}
	if sum != 5 || len(view.Services[0].Endpoints) != 2 {
		t.Errorf("endpoints of shop/web: %+v", view.Services[0].Endpoints)
	}
	text := top("--endpoints", "--service", "shop/web")
	if !strings.Contains(text, "shop/web  ") || !strings.Contains(text, "10.244.0.2:8080") ||
		strings.Contains(text, "shop/empty") {
		t.Errorf("top --endpoints --service shop/web:\n%s", text)
	}
	if text := top("-n", "elsewhere"); strings.Contains(text, "shop/") {
		t.Errorf("top -n elsewhere:\n%s", text)
	}
	want := []string{
		"\nnftproxy_new_connections_total 8\n",
		`nftproxy_service_new_connections_total{namespace="shop",port="http",protocol="tcp",service="web"} 5`,
		`nftproxy_refused_packets_total{cause="no-endpoints",ip_family="IPv4"} 3`,
		`nftproxy_service_refused_packets_total{cause="no-endpoints",namespace="shop",service="empty"} 3`,
	}
	missing, deadline := want, time.Now().Add(time.Minute) // the daemon looks at refusals every ten seconds
	for len(missing) > 0 && time.Now().Before(deadline) {
		missing = nil
		page := get(t, ns, "127.0.0.1:10249", "/metrics")
		for _, line := range want {
			if !strings.Contains(page, line) {
				missing = append(missing, line)
			}
		}
		time.Sleep(time.Second)
	}
	if len(missing) > 0 {
		t.Errorf("the metrics lack %q", missing)
	}
	r.end()
}

// TestTopOff: without counters top says how to have them.
func TestTopOff(t *testing.T) {
	var b bytes.Buffer
	if err := writeTop(&b, &traffic.View{InTables: 3}, &topOptions{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "start nftproxy run with --nftproxy-counters") {
		t.Errorf("top says\n%s", &b)
	}
}

// TestFrame: a picture has the size of the terminal.
func TestFrame(t *testing.T) {
	got := frame("one\ntwo is long\nthree\nfour\n", 5, 4)
	want := "\x1b[Hone\x1b[K\r\ntwo i\x1b[K\r\nthree\x1b[K\r\n\x1b[J"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nftproxy/test/lib/testnet"
)

// variedManifest has n Services with endpoints. Some have node ports, session affinity,
// external addresses or source ranges, and some of these claim the same.
func variedManifest(n int) string {
	var b strings.Builder
	for i := range n {
		more := []string{
			"", "type: NodePort, ", "sessionAffinity: ClientIP, ", `externalIPs: [198.51.100.1], `,
			`type: LoadBalancer, loadBalancerSourceRanges: ["192.0.2.0/24", "2001:db8::/32"], `,
		}[i%5]
		nodePort := ""
		if strings.Contains(more, "type") {
			nodePort = fmt.Sprintf(", nodePort: %d", 30000+i)
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: svc-%[1]d, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {%[2]sclusterIPs: [10.96.0.%[3]d, "fd00:96::%[3]d"], ports: [{name: http, port: 80%[4]s}, {name: dns, port: 53, protocol: UDP}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.%[3]d}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: svc-%[1]d-v4, labels: {kubernetes.io/service-name: svc-%[1]d}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 5300, protocol: UDP}]
endpoints: [{addresses: [10.244.1.%[3]d], nodeName: node-1}, {addresses: [10.244.2.%[3]d], nodeName: node-2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: svc-%[1]d-v6, labels: {kubernetes.io/service-name: svc-%[1]d}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: dns, port: 5300, protocol: UDP}]
endpoints: [{addresses: ["fd00:244:1::%[3]d"], nodeName: node-1}]
`, i, more, i+10, nodePort)
	}
	return b.String()
}

// TestRetainFormerServices: the source is empty at a restart. What the rules serve stays,
// to the last element, and the log, /readyz and the metrics say so.
func TestRetainFormerServices(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "retain")
	if err := ns.AddAddr("lo", netip.MustParsePrefix("192.0.2.7/32")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "all.yaml")
	if err := os.WriteFile(file, []byte(variedManifest(15)), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--nftproxy-manifests", dir, "--nodeport-addresses", "192.0.2.0/24"}
	if n := firstSync(t, ns, flags...); n == 0 {
		t.Error("the first start wrote nothing")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	const address = "127.0.0.1:10256"
	r := start(t, ns, append(flags, "--healthz-bind-address", address)...)
	written, warned, serving := -1, false, false
	r.await("a sync, the warning and the server", func(l logged) bool {
		switch {
		case l.Msg == "synced":
			written = l.Written
		case strings.HasPrefix(l.Msg, "a list lacks most Services"):
			if warned = true; l.Missing != 15 || l.Serving != 15 {
				t.Errorf("%d of %d Services are missing, want all 15", l.Missing, l.Serving)
			}
		case l.Msg == "serving" && l.Address == address:
			serving = true
		}
		return written >= 0 && warned && serving
	})
	if written != 0 {
		t.Errorf("the start with an empty source wrote %d objects", written)
	}
	want := "ok\nserving 15 Services on that the source's lists lack, until "
	if got := get(t, ns, address, "/readyz"); !strings.HasPrefix(got, want) {
		t.Errorf("/readyz: %q, want %q", got, want)
	}
	r.end()

	if n := firstSync(t, ns, append(flags, "--nftproxy-retain-missing=0")...); n == 0 {
		t.Error("with --nftproxy-retain-missing=0 nothing was removed")
	}
}

// get returns the body of an answer with status 200.
func get(t *testing.T, ns *testnet.Namespace, address, path string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	r, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", path, r.Status, err)
	}
	return string(body)
}

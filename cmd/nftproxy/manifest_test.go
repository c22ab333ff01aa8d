package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// manifest writes a manifest to a file of its own and returns its path.
func manifest(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// webManifest returns a Service "web" with port 80 and more fields of its spec, and its
// endpoints at port 8080, given as ADDRESS or ADDRESS@NODE.
func webManifest(spec string, endpoints ...string) string {
	text := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIPs: [10.96.0.10, "fd00:96::a"], ports: [{port: 80}]%s}
`, spec)
	for i, e := range endpoints {
		address, node, _ := strings.Cut(e, "@")
		family := "IPv4"
		if strings.Contains(address, ":") {
			family = "IPv6"
		}
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%d, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: ["%s"], nodeName: "%s"}]
`, i, family, address, node)
	}
	return text
}

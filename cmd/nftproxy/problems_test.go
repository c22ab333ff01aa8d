package main

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"nftproxy/look/explain"
	"nftproxy/test/lib/testnet"
)

// mistakenManifest has a Service with mistakes of several kinds, in annotations, fields and slices, and one without.
const mistakenManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {nftproxy.io/balence: client, nftproxy.com/eject: "on", nftproxy.io/eject: on}}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}], externalIPs: [1.2.3]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}, annotations: {nftproxy.io/weight: heavy}}
addressType: IPv4
ports: [{port: 8080, protocol: tcp}]
endpoints: [{addresses: [10.244.7.1]}]
---
apiVersion: v1
kind: Service
metadata: {name: good}
spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}
`

// mistakes are words of each problem of the Service web, as its row has them.
func mistakes() []string {
	return []string{
		"metadata.annotations[nftproxy.io/balence]", "did you mean nftproxy.io/balance?", "nftproxy.com/eject",
		"bool instead of string",
		"spec.externalIPs[0]", "EndpointSlice default/web-1: metadata.annotations[nftproxy.io/weight]",
		"EndpointSlice default/web-1: ports[0].protocol",
	}
}

func lacking(text string, words []string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// TestProblems: what cannot be used of a Service is where people look for the Service: get services, explain and the
// status page.
func TestProblems(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "problems")
	objects := manifest(t, mistakenManifest)
	r := start(t, ns, "--nftproxy-manifests", objects, "--metrics-bind-address", "127.0.0.1:10249")
	r.awaitSyncAndServer("127.0.0.1:10249")
	source := []string{"--nftproxy-manifests", objects, "--hostname-override", "node-1"}

	rows := func(args ...string) map[string][]string {
		t.Helper()
		stdout, stderr, code := runIn(t, ns, append([]string{"get", "services", "-o", "json"}, args...)...)
		var list serviceList
		if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != 0 || len(list.Services) != 2 {
			t.Fatalf("%v, exit code %d: %s%s", err, code, stdout, stderr)
		}
		return map[string][]string{list.Services[0].Name: list.Services[0].Problems,
			list.Services[1].Name: list.Services[1].Problems}
	}
	known := rows(source...)
	if lacks := lacking(strings.Join(known["web"], "\n"), mistakes()); len(lacks) > 0 || known["good"] == nil ||
		len(known["good"]) > 0 {
		t.Errorf("get services -o json lacks %q: %q", lacks, known)
	}
	if unknown := rows(); unknown["web"] != nil || unknown["good"] != nil {
		t.Errorf("without objects: %q", unknown)
	}
	stdout, _, _ := runIn(t, ns, append([]string{"get", "services", "web", "-o", "wide"}, source...)...)
	if lacks := lacking(stdout, []string{"PROBLEMS", "problems ", mistakes()[0]}); len(lacks) > 0 {
		t.Errorf("get services -o wide lacks %q:\n%s", lacks, stdout)
	}
	if stdout, _, _ = runIn(t, ns, "get", "services", "-o", "wide"); strings.Count(stdout, "not known") != 2 {
		t.Errorf("without objects:\n%s", stdout)
	}

	for _, address := range []string{"10.96.0.10:80", "10.96.0.11:80"} {
		text, _, _ := runIn(t, ns, append([]string{"explain", address}, source...)...)
		stdout, _, _ := runIn(t, ns, append([]string{"explain", address, "-o", "json"}, source...)...)
		var e explain.Explanation
		if err := json.Unmarshal([]byte(stdout), &e); err != nil || e.Problems == nil {
			t.Errorf("explain %s: %v:\n%s", address, err, stdout)
		}
		says, wants := strings.Contains(text, "What cannot be used"), address == "10.96.0.10:80"
		lacks := lacking(strings.Join(e.Problems, "\n"), mistakes())
		if says != wants || wants && len(lacks)+len(lacking(text, mistakes())) > 0 || !wants && len(e.Problems) > 0 {
			t.Errorf("explain %s lacks %q:\n%s", address, lacks, text)
		}
	}

	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	page := func(query string) string {
		t.Helper()
		answer, err := client.Get("http://127.0.0.1:10249/status?" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	for _, query := range []string{"service=default/web", "explain=10.96.0.10:80/tcp"} {
		if lacks := lacking(page(query), mistakes()); len(lacks) > 0 {
			t.Errorf("/status?%s lacks %q:\n%s", query, lacks, page(query))
		}
	}
	if found := page("state=problems"); !strings.Contains(found, "default/web") ||
		strings.Contains(found, "default/good") {
		t.Errorf("/status?state=problems:\n%s", found)
	}
}

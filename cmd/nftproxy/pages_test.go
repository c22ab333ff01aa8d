package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestStatusPage: the daemon serves the status page beside its metrics, with what its
// syncs told, what connection tracking has, and explanations by the kernel's rules.
func TestStatusPage(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "page")
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	r := start(t, ns, "--nftproxy-manifests", manifest(t, webManifest("", "10.244.7.1@node-1", "10.244.8.1@node-2")), "--metrics-bind-address", "127.0.0.1:10249")
	r.awaitSyncAndServer("127.0.0.1:10249")
	for _, c := range []struct {
		target string
		code   int
		want   []string
	}{
		{"/status", http.StatusOK, []string{"Ready: the rules are in force", "default/web", "No endpoints", "80/tcp: 2 ready"}},
		{"/status?service=default/web", http.StatusOK, []string{"one of 2 endpoints", "10.244.7.1:8080", "node-1 (this node)", "node-2", "refused: there is no endpoint"}},
		{"/status?view=draining", http.StatusOK, []string{"No such endpoint has connections."}},
		{"/status?explain=10.96.0.10:80/tcp", http.StatusOK, []string{"<strong>endpoint: </strong>", "10.244.7.1:8080", "10.244.8.1:8080", "default/web", "50 %"}},
		{"/status?explain=10.96.0.10:81/tcp&from=node", http.StatusOK, []string{"<strong>refused: </strong>"}},
		{"/status?explain=10.96.0.10", http.StatusBadRequest, []string{"Cannot show that"}},
		{"/statusz", http.StatusOK, []string{" /status "}},
		{"/", http.StatusNotFound, nil}, // as kube-proxy
	} {
		answer, err := client.Get("http://127.0.0.1:10249" + c.target)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close() // It has been read.
		if answer.StatusCode != c.code {
			t.Errorf("%s: %s", c.target, answer.Status)
		}
		for _, want := range c.want {
			if !strings.Contains(string(body), want) {
				t.Errorf("%s lacks %q:\n%s", c.target, want, body)
			}
		}
	}
}

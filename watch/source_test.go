package watch

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// TestDialerTellsTheAddress: the API server is known by the address that it was
// reached by, where the configuration has a name.
func TestDialerTellsTheAddress(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	want := server.Listener.Addr().(*net.TCPAddr).AddrPort()
	o := Source{Master: strings.Replace(server.URL, "127.0.0.1", "localhost", 1)}
	c, err := o.Connect()
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan netip.AddrPort, 10)
	c.reportTo(func(a netip.AddrPort) { told <- a })
	if _, err := ServerVersion(t.Context(), c.Client); err == nil {
		t.Fatal("a server that has nothing told its version")
	}
	if got := <-told; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}

// TestDialerDoesNotTellAProxy: behind a proxy no address is the API server's.
func TestDialerDoesNotTellAProxy(t *testing.T) {
	asked := false
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = true
		http.NotFound(w, r)
	}))
	defer proxy.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\n" +
		"clusters: [{name: c, cluster: {server: 'http://api.example:6443', proxy-url: '" + proxy.URL + "'}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Source{Kubeconfig: kubeconfig}
	c, err := o.Connect()
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan netip.AddrPort, 10)
	c.reportTo(func(a netip.AddrPort) { told <- a })
	if _, err := ServerVersion(t.Context(), c.Client); err == nil || !asked {
		t.Fatalf("the proxy was asked: %t, error %v", asked, err)
	}
	if len(told) > 0 {
		t.Errorf("told %s", <-told)
	}
}

// TestServerOf: the host and port by which a client dials.
func TestServerOf(t *testing.T) {
	for _, test := range [][2]string{
		{"https://192.0.2.1:6443", "192.0.2.1:6443"}, {"https://api.example", "api.example:443"},
		{"http://api.example/path", "api.example:80"},
		{"https://[2001:db8::1]:6443", "[2001:db8::1]:6443"}, {"https://[2001:db8::1]", "[2001:db8::1]:443"},
		{"api.example:6443", "api.example:6443"},
	} {
		if got, err := serverOf(&rest.Config{Host: test[0]}); err != nil || got != test[1] {
			t.Errorf("%s: %s, %v; want %s", test[0], got, err, test[1])
		}
	}
}

// TestConnectionsClosedAfterSleep: a watch on a server that does not answer any more ends when the
// connections are closed, and the next request goes over a new connection.
func TestConnectionsClosedAfterSleep(t *testing.T) {
	const object = `{"type":"ADDED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"web",` +
		`"namespace":"default"}}}`
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(object + "\n"))
		w.(http.Flusher).Flush()
		<-ended // no end of the stream reaches a machine that sleeps
	}))
	defer server.Close()
	defer close(ended)
	o := Source{Master: server.URL}
	c, err := o.Connect()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		stream, err := c.Client.core.Get().Resource("services").VersionedParams(&metav1.ListOptions{Watch: true},
			metav1.ParameterCodec).Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if event := <-stream.ResultChan(); event.Type != apiwatch.Added {
			t.Fatalf("the first event is %v", event)
		}
		c.Renew()
		for event := range stream.ResultChan() {
			if event.Type != apiwatch.Error {
				t.Errorf("after the end of the connection: event %v", event)
			}
		}
	}
}

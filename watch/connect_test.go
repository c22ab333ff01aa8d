package watch

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestOneConnection: requests that come at the same time share one connection, which costs the API server one
// handshake.
func TestOneConnection(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	// Time for all requests to begin before there is a connection.
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		time.Sleep(200 * time.Millisecond)
		return nil, nil
	}}
	server.StartTLS()
	defer server.Close()
	config, err := ClientConfig("", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.Insecure = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var requests sync.WaitGroup
	for range 4 {
		requests.Go(func() {
			answer, err := client.Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			if answer.ProtoMajor != 2 {
				t.Errorf("the protocol is %s", answer.Proto)
			}
			answer.Body.Close()
		})
	}
	requests.Wait()
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for 4 requests, want 1", n)
	}
}

// roundTripper is a function as a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestConnectFails: a request that finds no connection gives its turn on, and one that looks for too long holds up no
// other.
func TestConnectFails(t *testing.T) {
	refused := errors.New("refused")
	hang, hanging := make(chan struct{}), make(chan struct{})
	transport := newConnectTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/hang" {
			close(hanging)
			<-hang
		}
		return nil, refused
	}))
	transport.patience = 50 * time.Millisecond
	send := func(path string) error {
		_, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, path, nil))
		return err
	}
	for range 3 {
		if err := send("/"); !errors.Is(err, refused) {
			t.Fatal(err)
		}
	}
	ended := make(chan error)
	go func() { ended <- send("/hang") }()
	<-hanging
	for range 2 {
		if err := send("/"); !errors.Is(err, refused) {
			t.Fatal(err)
		}
	}
	close(hang)
	if err := <-ended; !errors.Is(err, refused) {
		t.Fatal(err)
	}
	transport.patience = time.Hour
	if err := send("/"); !errors.Is(err, refused) {
		t.Fatal(err)
	}
}

// TestUserAgent: the API server's log tells who asks, of each request.
func TestUserAgent(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	observe(t, s, Options{}).await(textNode)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if got, want := r.UserAgent(), rest.DefaultKubernetesUserAgent(); got != want {
			t.Errorf("%s by %q, want %q", r.URL, got, want)
		}
	}
}

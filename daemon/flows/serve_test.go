package flows

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/model/flows"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// TestHandlerClients: only a client on the node that asks for itself is answered.
func TestHandlerClients(t *testing.T) {
	f := &Follower{tracker: flows.New(1, rand.Uint64(), nil, nil)}
	for _, c := range []struct {
		name, from, to, host string
		headers              []string
		want                 int
	}{
		{"loopback", "127.0.0.1:1", "127.0.0.1:10249", "127.0.0.1:10249", nil, http.StatusOK},
		{"loopback, IPv6", "[::1]:1", "[::1]:10249", "[::1]:10249", nil, http.StatusOK},
		{"without a port", "[::1]:1", "[::1]:80", "[::1]", nil, http.StatusOK},
		{"localhost", "127.0.0.1:1", "127.0.0.1:10249", "localhost:10249", nil, http.StatusOK},
		{"the node's address", "192.0.2.1:1", "192.0.2.1:10249", "192.0.2.1:10249", nil, http.StatusOK},
		{"another host", "192.0.2.2:1", "192.0.2.1:10249", "192.0.2.1:10249", nil, http.StatusForbidden},
		{"a name that somebody points to loopback", "127.0.0.1:1", "127.0.0.1:10249", "evil.example:10249", nil,
			http.StatusForbidden},
		{"no host", "127.0.0.1:1", "127.0.0.1:10249", "", nil, http.StatusForbidden},
		{"kube-rbac-proxy", "127.0.0.1:1", "127.0.0.1:10249", "127.0.0.1:10249", []string{"X-Forwarded-For"},
			http.StatusForbidden},
		{"Forwarded", "127.0.0.1:1", "127.0.0.1:10249", "127.0.0.1:10249", []string{"Forwarded"}, http.StatusForbidden},
		{"kubectl proxy", "127.0.0.1:1", "127.0.0.1:10249", "127.0.0.1:10249", []string{"X-Forwarded-Uri"},
			http.StatusForbidden},
		{"Via", "127.0.0.1:1", "127.0.0.1:10249", "127.0.0.1:10249", []string{"Via"}, http.StatusForbidden},
	} {
		at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.to))
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(at)),
			http.MethodGet, Path, nil)
		r.RemoteAddr, r.Host = c.from, c.host
		for _, name := range c.headers {
			r.Header.Set(name, "192.0.2.9")
		}
		w := httptest.NewRecorder()
		f.Handler("node-1").ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", c.name, w.Code, c.want)
		}
	}
}

// TestHandlerServices: a request that names Services gets their flows, and is bad if the node knows none of that name.
func TestHandlerServices(t *testing.T) {
	f := New(Config{Observe: func(flows.Change) {}})
	begin(f, 1, "shop/cart", time.Now())
	ask := func(query string) (code int, body string) {
		at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:10249"))
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(at)),
			http.MethodGet, Path+query, nil)
		r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
		w := httptest.NewRecorder()
		f.Handler("node-1").ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	if code, body := ask("?service=shop/web"); code != http.StatusOK {
		t.Errorf("before the first Services are known: %d: %s", code, body)
	}
	b := snapshots.NewBuilder(service.Node{Name: "node-1"})
	b.Set(&service.Service{Name: "shop/web"})
	f.Notify(b.Snapshot())
	for query, want := range map[string]string{
		"":                             `"service":"shop/cart"`,
		"?service=cart":                `"service":"shop/cart"`, // It is gone, and there is a flow of it.
		"?service=web&namespace=shop":  `"flows":[]`,
		"?service=shop/web&since=9":    `"flows":[]`,
		"?namespace=other":             `"flows":[]`,
		"?service=shop/wbe":            `service "shop/wbe" (did you mean shop/web?)`,
		"?service=a/b/c":               "is no name of a Service",
		"?service=shop/web&namespace=": `"flows":[]`,
		"?since=x":                     "since: want a number",
	} {
		code, body := ask(query)
		wantCode := http.StatusBadRequest
		if strings.HasPrefix(want, `"`) {
			wantCode = http.StatusOK
		}
		if code != wantCode || !strings.Contains(body, want) {
			t.Errorf("%q: %d: %s", query, code, body)
		}
	}
}

package flows

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
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

// request is one of a client on the node.
func request(t *testing.T, query string) *http.Request {
	at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:10249"))
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(at)),
		http.MethodGet, Path+query, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
	return r
}

// unreadable is the connection of a client that does not read.
type unreadable struct {
	*httptest.ResponseRecorder
	deadline time.Time
	while    func(deadline time.Time)
}

func (u *unreadable) SetWriteDeadline(at time.Time) error {
	u.deadline = at
	return nil
}

func (u *unreadable) Write(b []byte) (int, error) {
	u.while(u.deadline)
	return u.ResponseRecorder.Write(b)
}

// TestHandlerUnread: while clients do not read their answers, others get theirs, and each of those has a bound of time.
func TestHandlerUnread(t *testing.T) {
	f := New(Config{Observe: func(flows.Change) {}})
	begin(f, 1, "shop/cart", time.Now())
	h := f.Handler("node-1")
	asked := 0
	var ask func(time.Time)
	ask = func(deadline time.Time) {
		if asked > 0 && deadline.IsZero() {
			t.Error("an answer is written without a deadline")
		}
		if asked++; asked == unread {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, request(t, ""))
			if !strings.Contains(w.Body.String(), `"service":"shop/cart"`) {
				t.Errorf("beside clients that do not read: %d: %s", w.Code, w.Body)
			}
			return
		}
		h.ServeHTTP(&unreadable{httptest.NewRecorder(), time.Time{}, ask}, request(t, ""))
	}
	ask(time.Time{})
	if asked != unread {
		t.Errorf("%d clients are answered at once, want %d", asked, unread)
	}
}

// TestHandlerSilent: the answer says why nothing is followed, as long as nothing is.
func TestHandlerSilent(t *testing.T) {
	f := New(Config{Observe: func(flows.Change) {}})
	const field = `"error":"the group is taken"`
	for _, c := range []struct {
		err  error
		want bool
	}{{nil, false}, {errors.New("the group is taken"), true}, {nil, false}} {
		f.Silence(c.err)
		w := httptest.NewRecorder()
		f.Handler("node-1").ServeHTTP(w, request(t, ""))
		if strings.Contains(w.Body.String(), field) != c.want {
			t.Errorf("%v: %s", c.err, w.Body)
		}
	}
}

// TestHandlerServices: a request that names Services gets their flows, and is bad if the node knows none of that name.
func TestHandlerServices(t *testing.T) {
	f := New(Config{Observe: func(flows.Change) {}})
	begin(f, 1, "shop/cart", time.Now())
	ask := func(query string) (code int, body string) {
		w := httptest.NewRecorder()
		f.Handler("node-1").ServeHTTP(w, request(t, query))
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

// TestHandlerSince: the answer is in the order of the changes, and has a time since when it is whole for each namespace
// that it names. A busy one shortens no other's.
func TestHandlerSince(t *testing.T) {
	f := New(Config{Observe: func(flows.Change) {}})
	f.began = time.Now().Add(-time.Hour)
	begin(f, 1, "calm/s", f.began.Add(time.Minute))
	ended := time.Now().Add(-time.Minute)
	for i := range 2 * Most { // Each one ends that before.
		f.locked(func() {
			f.tracker.Begin(flows.Start{Key: flows.Key{Protocol: service.TCP, Src: netip.MustParseAddrPort("10.0.0.2:1")},
				At: ended, Seen: ended, Rate: 1, Cause: fmt.Sprint(i)}, flows.Owner{Service: "busy/s"})
		})
	}
	w := httptest.NewRecorder()
	f.Handler("node-1").ServeHTTP(w, request(t, ""))
	var a Answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	want := map[string]time.Time{"": f.began.UTC(), "calm": f.began.UTC(), "busy": ended.UTC()}
	for name, at := range want {
		if !a.SinceIn[name].Equal(at) || len(a.SinceIn) != len(want) {
			t.Errorf("%q: %v, want %v; of all %v", name, a.SinceIn[name], at, a.SinceIn)
		}
	}
	if !a.Since.Equal(ended) {
		t.Errorf("since %v, want %v", a.Since, ended)
	}
	bySeq := func(a, b flows.Flow) int { return cmp.Compare(a.Seq, b.Seq) }
	if len(a.Flows) < Most || !slices.IsSortedFunc(a.Flows, bySeq) {
		t.Errorf("%d flows in another order", len(a.Flows))
	}
}

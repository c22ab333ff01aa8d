package watch

import (
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
)

// TestWatchGoesOn: after the end of its connection a watch goes on from the last change that it brought, also if the
// first connections after that end or are reset before an answer. There is no second list.
func TestWatchGoesOn(t *testing.T) {
	for _, how := range []string{"at once", "after connections that end", "after connections that are reset"} {
		t.Run(how, func(t *testing.T) {
			s := newAPIServer(t)
			var failing atomic.Int32
			s.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("watch") == "" || failing.Add(-1) < 0 {
					s.ServeHTTP(w, r)
					return
				}
				connection, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				if how == "after connections that are reset" {
					_ = connection.(*net.TCPConn).SetLinger(0)
				}
				_ = connection.Close()
			})
			s.set("nodes", node("192.168.0.2"))
			s.set("services", uniformService(0))
			o := observe(t, s, Options{})
			o.await(textNode + textSvc0)
			s.set("endpointslices", uniformSlice(0, 2))
			o.await(textNode + textSvc0Two)
			s.mu.Lock()
			reached := strconv.Itoa(s.version)
			s.mu.Unlock()
			before := len(s.seen("endpointslices"))

			if how != "at once" {
				failing.Store(6) // some of each resource
			}
			s.server.CloseClientConnections()
			s.remove("endpointslices", "slice-0")
			o.await(textNode + textSvc0)
			requests := s.seen("endpointslices")[before:]
			if len(requests) == 0 {
				t.Fatal("there was no further request")
			}
			for _, r := range requests {
				if r.Get("watch") != "true" || r.Get("resourceVersion") != reached {
					t.Errorf("asked for %v, want a watch from version %s", r, reached)
				}
			}
		})
	}
}

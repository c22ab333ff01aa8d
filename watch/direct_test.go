package watch

import (
	"strconv"
	"testing"
)

// TestWatchGoesOn: after the end of its connection a watch goes on from the last change that it brought. There is no
// second list.
func TestWatchGoesOn(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	s.set("services", kindService(uniformService(0)))
	o := observe(t, s, Options{})
	o.await(textNode + textSvc0)
	s.set("endpointslices", kindSlice(uniformSlice(0, 2)))
	o.await(textNode + textSvc0Two)
	s.mu.Lock()
	reached := strconv.Itoa(s.version)
	s.mu.Unlock()
	before := len(s.seen("endpointslices"))

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
}

package watch

import (
	"strings"
	"testing"
)

// TestAPIServerRestored: the API server comes back with an older state of etcd, and with
// versions that it has given out before. The watcher has what the server has, and follows
// its changes, although their versions are lower than those that it knew.
func TestAPIServerRestored(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	s.set("services", uniformService(0))
	o := observe(t, s, Options{})
	o.await(textNode + textSvc0)
	for range 20 {
		s.set("nodes", node("192.168.0.2"))
	}
	s.set("endpointslices", uniformSlice(0, 2))
	o.await(textNode + textSvc0Two)

	s.stop()
	o.awaitProblem(func(p Problem) bool {
		return strings.Contains(p.Error(), "watch endpointslices") && strings.Contains(p.Error(), "connection refused")
	})
	s.remove("endpointslices", "slice-0")
	s.goBack(20)
	s.start()
	o.await(textNode + textSvc0)
	s.set("endpointslices", uniformSlice(0, 2))
	o.await(textNode + textSvc0Two)
}

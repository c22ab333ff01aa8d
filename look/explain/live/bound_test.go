package live_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/test/gen"
)

// TestManyEndpoints: the number of lookups does not grow with the endpoints, and an explanation ends with its
// context.
func TestManyEndpoints(t *testing.T) {
	const endpoints = 60_000
	var objects strings.Builder
	objects.WriteString("node node-1\nservice ns/many created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.2\n  port http " +
		"tcp 80\n")
	addr := netip.MustParseAddr("10.0.0.1")
	for range endpoints {
		fmt.Fprintf(&objects, "    endpoint %s:8080 node-2 ready serving\n", addr)
		addr = addr.Next()
	}
	snapshot, err := gen.ReadSnapshot(strings.NewReader(objects.String()))
	if err != nil {
		t.Fatal(err)
	}
	lookups := 0
	node := live.NewNode(ruleset.Compile(ruleset.Config{Table: "nftproxy"}, snapshot).Model(), "nftproxy",
		func(netip.Addr) (hostaddr.Route, error) {
			lookups++
			return hostaddr.Route{Device: "eth0"}, nil
		})
	to, err := explain.ParseDestination("10.96.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	q, err := node.Ask(explain.Origin{}, to)
	if err != nil {
		t.Fatal(err)
	}
	e, err := node.Explain(t.Context(), q, &snapshot, nil, "the objects")
	if err != nil {
		t.Fatal(err)
	}
	ways, about := 0, 0
	for i := range e.Endpoints {
		if e.Endpoints[i].Way != "" {
			ways++
		}
		if strings.HasPrefix(e.Endpoints[i].About, "ready") {
			about++
		}
	}
	if len(e.Endpoints) != endpoints || ways != explain.MostWays || about != endpoints || e.Outcome != explain.Endpoint {
		t.Errorf("%s: %d endpoints, %d ways, %d described", e.Outcome, len(e.Endpoints), ways, about)
	}
	if lookups > 400 {
		t.Errorf("%d lookups of routes for %d endpoints", lookups, endpoints)
	}
	if notes := strings.Join(e.Notes, "\n"); !strings.Contains(notes, "there are many endpoints") {
		t.Errorf("notes %q", notes)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := node.Explain(ctx, q, &snapshot, nil, "the objects"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
}

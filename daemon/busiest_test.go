package daemon

import (
	"fmt"
	"testing"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// TestBusiest: while syncs rest, the Service that changes most is reported, once in ten
// minutes. Otherwise nobody is.
func TestBusiest(t *testing.T) {
	var reports []string
	b := &busiest{report: func(name service.Name, changes, syncs int, rest time.Duration) {
		reports = append(reports, fmt.Sprintf("%s in %d of %d, %s", name, changes, syncs, rest))
	}}
	builder, now := snapshots.NewBuilder(gen.PlainNode()), time.Unix(1_800_000_000, 0)
	run := func(syncs int, rest time.Duration) {
		for n := range syncs {
			builder.Set(gen.UniformService(1, 1+n%2))
			if n%10 == 0 {
				builder.Set(gen.UniformService(2, 1+n/10%2))
			}
			now = now.Add(100 * time.Millisecond)
			b.observe(proxy.Sync{Snapshot: builder.Snapshot(), Start: now, Rest: rest})
		}
	}
	run(1000, 0)
	if len(reports) > 0 {
		t.Fatalf("without a rest: %q", reports)
	}
	run(5000, 90*time.Millisecond)
	want := fmt.Sprintf("%s in 101 of 101, 90ms", gen.UniformService(1, 1).Name)
	if len(reports) != 1 || reports[0] != want {
		t.Errorf("in 8 minutes: %q, want %q", reports, want)
	}
	run(2000, 90*time.Millisecond)
	if len(reports) != 2 {
		t.Errorf("after 11 minutes: %q, want two", reports)
	}
}

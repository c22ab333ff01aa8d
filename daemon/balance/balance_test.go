package balance

import (
	"context"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/service"
)

// flows are a table of connections.
type flows []conntrack.Flow

func (f flows) Flows(_ context.Context, _ conntrack.Filter, yield func(conntrack.Flow) error) error {
	for _, flow := range f {
		if err := yield(flow); err != nil {
			return err
		}
	}
	return nil
}

// TestBudget: the call that hands on the slots counts as part of the work: if it takes long, the next count waits.
func TestBudget(t *testing.T) {
	const took = burst + 200*time.Millisecond
	reports := make(chan Report, 1)
	b := New(Config{
		Table: flows(busy(1, 200)),
		Set: func(map[service.Name]service.Slotted) {
			for start := conntrack.ThreadTime(); conntrack.ThreadTime()-start < took; {
			}
		},
		Observe: func(r Report) { reports <- r },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	b.Notify(newServed(web("a", 1, 4)).builder.Snapshot())
	r := <-reports
	cancel()
	if err := <-ended; err != nil || r.Err != nil {
		t.Fatal(err, r.Err)
	}
	if r.Connections != 200 || r.CPU < took || r.Next < rest*(took-burst) {
		t.Errorf("%+v, want %v of CPU time at least, and %v to the next count", r, took, rest*(took-burst))
	}
}

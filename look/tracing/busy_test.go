package tracing_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/look/tracing"
	"nftproxy/nft/livetrace"
)

// flood is a source whose queue is never empty, as where another program traces busy traffic.
// The events of the packet are the first ones; more is each one after them.
type flood struct {
	packet []livetrace.Event
	more   func(number uint32) (livetrace.Event, error)
	read   uint32
}

// eventTime is how long each event takes.
const eventTime = 50 * time.Microsecond

func (f *flood) Receive(context.Context, time.Time) (livetrace.Event, error) {
	time.Sleep(eventTime)
	if f.read++; int(f.read) <= len(f.packet) {
		return f.packet[f.read-1], nil
	}
	return f.more(f.read)
}

func (f *flood) StopMarking() error { return nil }

// TestFlood: where the queue is never empty, packets are shown once their way has ended, and the
// trace ends by its time, by its context and when it is full.
func TestFlood(t *testing.T) {
	others := func(number uint32) (livetrace.Event, error) {
		if number%2 == 0 { // such a packet passes the marking chain, too
			return step(1000+number, mark, "prerouting", livetrace.ByRule, 0, "continue", headers("10.244.0.9:9", "10.244.1.9:9",
				1, 0)), nil
		}
		return step(1000+number, "filter", "FORWARD", livetrace.ByPolicy, 0, "accept", nil), nil
	}
	again := func(uint32) (livetrace.Event, error) { // the packet's way never ends
		return step(1, "filter", "FORWARD", livetrace.ByRule, 1, "continue", nil), nil
	}
	lost := func(uint32) (livetrace.Event, error) { return livetrace.Event{}, livetrace.ErrLost }
	const period = 5 * time.Second
	for what, c := range map[string]struct {
		limit  int
		cancel time.Duration
		packet []livetrace.Event
		more   func(uint32) (livetrace.Event, error)
		want   string
	}{
		"full":                       {1, 0, way(1), others, "6 steps after 0.1s; 0.1s, lost 0"},
		"time is over":               {5, 0, way(1), others, "6 steps after 0.1s; 5s, lost 0"},
		"interrupted":                {5, 2 * time.Second, way(1), others, "6 steps after 0.1s; 2s, lost 0"},
		"interrupted on its way":     {5, 10 * time.Millisecond, way(1), others, "6 steps after 0.1s; 0.1s, lost 0"},
		"no packet":                  {5, 0, nil, others, "5s, lost 0"},
		"no packet, interrupted":     {5, 2 * time.Second, nil, others, "2s, lost 0"},
		"no end of a packet":         {5, 0, way(1), again, "256 steps after 6s, incomplete; 6s, lost 0"},
		"no end of a packet, full":   {1, 0, way(1), again, "256 steps after 6s, incomplete; 6s, lost 0"},
		"no end, interrupted":        {1, 2 * time.Second, way(1), again, "256 steps after 3s, incomplete; 3s, lost 0"},
		"events are lost":            {1, 0, way(1), lost, "6 steps after 6s, incomplete; 6s, lost 6"},
		"events are lost, no packet": {1, 0, nil, lost, "5s, lost 5"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				got, lost, start := "", 0, time.Now()
				since := func() float64 { return time.Since(start).Round(100 * time.Millisecond).Seconds() }
				err := tracing.Run(ctx, &flood{packet: c.packet, more: c.more}, tracing.NewAssembler(mark, tcp, c.limit, names()),
					period, tracing.Output{
						Packet: func(p *tracing.Packet) error {
							got += fmt.Sprintf("%d steps after %vs", len(p.Steps), since())
							if p.Incomplete {
								got += ", incomplete"
							}
							got += "; "
							return nil
						},
						Lost: func() { lost++ },
					})
				got += fmt.Sprintf("%vs, lost %d", since(), lost)
				if err != nil || got != c.want {
					t.Errorf("%s, %v, want %s", got, err, c.want)
				}
			})
		})
	}
}

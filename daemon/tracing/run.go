package tracing

import (
	"context"
	"errors"
	"time"

	"nftproxy/nft/livetrace"
)

// Source is where events come from: a livetrace.Tracer.
type Source interface {
	// Receive returns the next event. After livetrace.ErrDeadline it has returned all events of
	// the time before the deadline.
	Receive(ctx context.Context, deadline time.Time) (livetrace.Event, error)
	// StopMarking lets no further packet be traced.
	StopMarking() error
}

// Output is what a trace calls, from the goroutine of Run.
type Output struct {
	// Packet gets each packet, once its way has ended. Its error ends the trace.
	Packet func(*Packet) error
	// Lost is called each time that events were lost.
	Lost func()
}

// Run traces until the assembler is full, the time is over or the context ends, and the
// packets that are on their way then have come to their end.
func Run(ctx context.Context, from Source, a *Assembler, period time.Duration, out Output) error {
	end := time.Now().Add(period)
	for {
		over := ctx.Err() != nil || !time.Now().Before(end)
		if a.Full() || over {
			if err := from.StopMarking(); err != nil {
				return err
			}
			if a.Due().IsZero() {
				return nil
			}
		}
		waiting, deadline := ctx, end
		if due := a.Due(); over || !due.IsZero() && due.Before(end) {
			deadline = due
		}
		if over {
			waiting = context.WithoutCancel(ctx) // for the packets on their way
		}
		e, err := from.Receive(waiting, deadline)
		switch {
		case errors.Is(err, livetrace.ErrDeadline):
			// Nothing is queued of packets that had ended by the deadline.
			by := time.Now()
			if deadline.Before(by) {
				by = deadline
			}
			for _, p := range a.Ended(by) {
				if err := out.Packet(p); err != nil {
					return err
				}
			}
		case errors.Is(err, livetrace.ErrLost):
			a.Lost()
			out.Lost()
		case err != nil:
			return err
		default:
			a.Add(e, time.Now())
		}
	}
}

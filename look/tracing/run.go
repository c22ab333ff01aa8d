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
	// Lost is called when events were lost, once a second at most.
	Lost func()
}

const (
	// lastWait bounds how long a trace goes on after its end for the packets on their way. The
	// queue may never be empty: the kernel reports also what other programs trace.
	lastWait = time.Second
	// lostPeriod is the least time between two calls of Lost.
	lostPeriod = time.Second
)

// Run traces until the assembler is full, the time is over or the context ends, and the
// packets that are on their way then have come to their end. A second after the end of the time
// or of the context, packets that are still on their way count as incomplete.
func Run(ctx context.Context, from Source, a *Assembler, period time.Duration, out Output) error {
	end := time.Now().Add(period)
	var told time.Time
	for {
		now := time.Now()
		if ctx.Err() != nil && now.Before(end) {
			end = now
		}
		// The queue may hold events at each turn, so packets end here too.
		ended, over := a.Overtaken(now), !now.Before(end)
		if now.Sub(end) >= lastWait {
			ended = append(ended, a.Rest()...)
		}
		if err := out.packets(ended); err != nil {
			return err
		}
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
		switch now = time.Now(); {
		case errors.Is(err, livetrace.ErrDeadline):
			// Nothing is queued of packets that had ended by the deadline.
			if deadline.Before(now) {
				now = deadline
			}
			if err := out.packets(a.Ended(now)); err != nil {
				return err
			}
		case errors.Is(err, livetrace.ErrLost):
			a.Lost()
			if now.Sub(told) >= lostPeriod {
				told = now
				out.Lost()
			}
		case err != nil:
			return err
		default:
			a.Add(e, now)
		}
	}
}

func (o Output) packets(list []*Packet) error {
	for _, p := range list {
		if err := o.Packet(p); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
)

// step is one action of the demo, with its result.
type step struct {
	title string
	// run performs the step and returns its result. It reports its progress. If a claim
	// does not hold, the error is a *mismatch.
	run func(ctx context.Context, w *world, tell func(format string, args ...any)) ([]block, error)
}

// mismatch is a claim that did not hold.
type mismatch struct{ what, want, got string }

func (m *mismatch) Error() string {
	return fmt.Sprintf("%s: expected %s, but got %s", m.what, m.want, m.got)
}

// checks counts the claims that held.
type checks struct{ held int }

// expect returns a *mismatch unless ok.
func (c *checks) expect(ok bool, what, want, got string) error {
	if !ok {
		return &mismatch{what, want, got}
	}
	c.held++
	return nil
}

// expectEqual returns a *mismatch unless got equals want.
func expectEqual[T comparable](c *checks, what string, want, got T) error {
	return c.expect(got == want, what, fmt.Sprint(want), fmt.Sprint(got))
}

// play runs the steps in order until one fails, and shows each.
func play(ctx context.Context, s *screen, w *world, steps []step) error {
	for i, step := range steps {
		p := s.begin(i+1, len(steps), step.title)
		blocks, err := step.run(ctx, w, p.setText)
		if err == nil {
			err = w.alive()
		}
		how := succeeded()
		switch {
		case ctx.Err() != nil:
			// The context has ended, so the error only says that the step was told to
			// stop.
			err, how = context.Cause(ctx), cutShort()
		case err != nil:
			how = failed()
		}
		p.end(how)
		s.show(blocks...)
		if err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	return nil
}

// explain turns a step's error into text for people.
func explain(err error) []block {
	if err == nil {
		return nil
	}
	var m *mismatch
	if !errors.As(err, &m) {
		return []block{text(err.Error())}
	}
	return []block{
		textf("%s:", m.what),
		textf("expected  %s", m.want),
		textf("got       %s", m.got),
	}
}

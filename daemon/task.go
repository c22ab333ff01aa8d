package daemon

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Task is one thing that the process does beside the others. Which of them wait for which is here alone: run makes them
// wait, and a test reads it.
type Task struct {
	Name string
	// After lists what has to be before the task begins.
	After []*Event
	// Touches lists what it reads and writes outside of the process.
	Touches []string
	// Run works until the context ends, or for as long as there is something to do. An error ends all tasks.
	Run func(context.Context) error
	// Ends is the event that the task has ended, without an error; nil for a task that nothing waits for.
	Ends *Event
}

// Event is something that comes true once.
type Event struct {
	Name string
	true chan struct{}
}

func newEvent(name string) *Event { return &Event{name, make(chan struct{})} }

// run runs the tasks until the context ends, or one of them has an error.
func run(ctx context.Context, tasks []Task) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		group.Go(func() error {
			for _, e := range t.After {
				select {
				case <-ctx.Done():
					return nil
				case <-e.true:
				}
			}
			if err := t.Run(ctx); err != nil {
				return err
			}
			if t.Ends != nil {
				close(t.Ends.true)
			}
			return nil
		})
	}
	return group.Wait()
}

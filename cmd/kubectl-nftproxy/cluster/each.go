package cluster

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"
)

// Round says how nodes are asked.
type Round struct {
	// AtOnce is how many are asked at the same time, and Patience how long each may take.
	AtOnce   int
	Patience time.Duration
	// Progress is a terminal for a bar, or nil.
	Progress io.Writer
}

// DefaultRound is for questions that a node answers from what it has at hand.
func DefaultRound(progress io.Writer) Round {
	return Round{AtOnce: 32, Patience: 15 * time.Second, Progress: progress}
}

// NewBar shows how many of some things are done, on a terminal or with nil nowhere.
func NewBar(terminal io.Writer, things int, what string) *progressbar.ProgressBar {
	if terminal == nil {
		return progressbar.DefaultSilent(int64(things))
	}
	return progressbar.NewOptions(things, progressbar.OptionSetWriter(terminal), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(time.Second/10))
}

// Each calls a function for each node and returns the results in the order of the nodes. A node's context ends after
// the patience. If ctx ends before, the error is its cause.
func Each[R any](ctx context.Context, nodes []Node, r Round, ask func(context.Context, *Node) R) ([]R, error) {
	bar := progressbar.DefaultSilent(int64(len(nodes)))
	if len(nodes) > 1 {
		bar = NewBar(r.Progress, len(nodes), "asking the nodes")
	}
	results := make([]R, len(nodes))
	var group errgroup.Group
	group.SetLimit(r.AtOnce)
	for i := range nodes {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			ctx, cancel := context.WithTimeoutCause(ctx, r.Patience, fmt.Errorf("no answer within %s", r.Patience))
			defer cancel()
			results[i] = ask(ctx, &nodes[i])
			_ = bar.Add(1)
			return nil
		})
	}
	_ = group.Wait() // There are no errors.
	_ = bar.Finish()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return results, nil
}

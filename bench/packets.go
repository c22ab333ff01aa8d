package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"nftproxy/bench/control"
	"nftproxy/bench/data"
)

// morePatience is how much longer than a cell a proxy may take for its first
// program, on which all cells of the data plane at that size depend.
const morePatience = 2 * time.Minute

// dataPlane is the part about packets.
func (o *options) dataPlane(log io.Writer) (part, error) {
	setup := o.setup(log)
	setup.Limit += morePatience
	c := data.Config{Setup: setup, Sizes: data.Sizes(), Effort: data.Full()}
	p := part{name: "data"}
	if o.quick {
		c.Sizes, c.Effort, p.leftOut = data.QuickSizes(), data.Quick(), data.LeftOut()
	}
	if len(o.services) > 0 {
		c.Sizes = slices.Sorted(slices.Values(o.services))
	}
	if err := c.Validate(); err != nil {
		return p, fmt.Errorf("--services: %w", err)
	}
	p.cells = c.Cells()
	p.run = func(ctx context.Context, r *recorder) error { return data.Run(ctx, c, r) }
	return p, nil
}

// flows is the part about UDP flows in a rolling update.
func (o *options) flows(log io.Writer) (part, error) {
	c := control.FullFlows(o.setup(log))
	p := part{name: "flows"}
	if o.quick {
		c.Sizes, p.leftOut = c.Sizes[:1], []string{"flows: more than 10,000"}
	}
	p.cells = c.Cells()
	p.run = func(ctx context.Context, r *recorder) error { return c.Run(ctx, r) }
	return p, nil
}

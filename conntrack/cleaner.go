package conntrack

import (
	"context"
	"errors"
	"time"

	"nftproxy/internal/service"
)

// Run is what one pass over the table did.
type Run struct {
	// Scanned is how many entries were looked at: those never DNATed.
	Scanned int
	// Removed counts the entries that were removed, by reason.
	Removed map[Reason]int
	// Duration is the wall time that it took.
	Duration time.Duration
	// Err is why the pass was incomplete, or nil. It is tried again later.
	Err error
	// Repeated says that Err is the same as the last pass's: count it, but
	// there is no need to log it again.
	Repeated bool
}

// Cleaner removes stale flows after syncs, in a goroutine of its own.
type Cleaner struct{}

// flowTable is the part of a Table that a Cleaner uses.
type flowTable interface {
	Flows(ctx context.Context, filter Filter, yield func(Flow) error) error
	Delete(ctx context.Context, flows []Flow) (n int, err error)
}

// NewCleaner makes a Cleaner that judges by the index, which is its own from
// then on. observe is called after each pass, by Run.
func NewCleaner(table flowTable, index *Index, observe func(Run)) *Cleaner { return nil }

// Notify says that a sync has brought the kernel to the snapshot. It never
// blocks; of several the latest counts.
func (c *Cleaner) Notify(s service.Snapshot) {}

// Run works until the context is done and then returns nil.
func (c *Cleaner) Run(ctx context.Context) error { return errors.ErrUnsupported }

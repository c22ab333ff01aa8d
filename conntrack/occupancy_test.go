package conntrack_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/conntrack"
)

// counter returns the counts in its list, and then the last one again and again.
type counter struct {
	counts [][2]int
	// invalid is one more with each call.
	invalid uint64
	err     error // instead of a count of -1 entries
}

func (c *counter) Count(context.Context) (entries, limit int, err error) {
	next := c.counts[0]
	if len(c.counts) > 1 {
		c.counts = c.counts[1:]
	}
	if next[0] < 0 {
		return 0, 0, c.err
	}
	return next[0], next[1], nil
}

func (c *counter) Invalid(context.Context) (uint64, error) {
	c.invalid++
	return c.invalid, nil
}

func TestFollowOccupancy(t *testing.T) {
	missing := errors.New("missing")
	table := &counter{err: missing, counts: [][2]int{
		{0, 1000}, {989, 1000}, {990, 1000}, {1000, 1000}, {-1, 0}, {950, 1000}, {900, 1000}, {899, 1000}, {950, 1000},
		{1003, 1000}, {1003, 2000}, {5, 0}, {1 << 40, 1 << 40},
	}}
	want := []conntrack.Occupancy{
		{Limit: 1000}, {Entries: 989, Limit: 1000}, {Entries: 990, Limit: 1000, Full: true},
		{Entries: 1000, Limit: 1000, Full: true},
		{Full: true, Err: missing}, {Entries: 950, Limit: 1000, Full: true}, {Entries: 900, Limit: 1000, Full: true},
		{Entries: 899, Limit: 1000}, {Entries: 950, Limit: 1000}, {Entries: 1003, Limit: 1000, Full: true},
		{Entries: 1003, Limit: 2000}, {Entries: 5}, {Entries: 1 << 40, Limit: 1 << 40, Full: true},
	}
	invalid := uint64(0)
	for i := range want {
		if want[i].Err == nil {
			invalid++
			want[i].Invalid = invalid
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var got []conntrack.Occupancy
	err := conntrack.FollowOccupancy(ctx, table, time.Microsecond, func(o conntrack.Occupancy) {
		if got = append(got, o); len(got) == len(want) {
			cancel()
		}
	})
	if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

package conntrack

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/service"
)

// crowdTable has connections of one client that are silent, and takes a millisecond for each.
type crowdTable struct {
	*agingTable
	crowd int
}

func (c *crowdTable) Flows(ctx context.Context, filter Filter, yield func(Flow) error) error {
	for i := range c.crowd {
		time.Sleep(time.Millisecond)
		err := c.agingTable.Flows(ctx, filter, func(f Flow) error {
			f.Original.Src = netip.AddrPortFrom(f.Original.Src.Addr(), uint16(10_000+i))
			f.ID = uint32(i)
			return yield(f)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// silent is a connection in which nothing comes any more when its endpoint leaves.
func silent() *agingTable {
	f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.2:80", SeenReply|Assured)
	f.TCPState, f.Unacknowledged, f.ID = TCPEstablished, true, 7
	return untilDeparture(f, time.Hour, func(start, _ time.Time) time.Time { return start })
}

// TestAskedTogether: thousands of silent connections to a departed endpoint, each sighted at a time of its own, cost a
// few connects, and no passes but those that there are anyway.
func TestAskedTogether(t *testing.T) {
	passes := func(dead func(context.Context, netip.AddrPort) bool) (n int) {
		synctest.Test(t, func(t *testing.T) {
			table := &crowdTable{silent(), 3000}
			departing(t, table, "", CleanerConfig{Observe: func(Run) { n++ }, Dead: dead})
			time.Sleep(2 * time.Minute)
		})
		return n
	}
	var asked atomic.Int64
	with, without := passes(func(context.Context, netip.AddrPort) bool { asked.Add(1); return false }), passes(nil)
	if n := asked.Load(); n == 0 || n > 10 || with > without {
		t.Errorf("%d times asked, %d passes, and %d without asking", n, with, without)
	}
}

// TestAskedAtOnce: an endpoint is asked as soon as it is due, also if syncs are reported meanwhile.
func TestAskedAtOnce(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Pointer[time.Time]
			table := &crowdTable{silent(), 3000}
			cleaner := departing(t, table, "", CleanerConfig{
				Dead: func(context.Context, netip.AddrPort) bool {
					now := time.Now()
					asked.Store(&now)
					return false
				}})
			start, same := time.Now(), shop(t, false, "")
			for asked.Load() == nil && time.Since(start) < time.Minute {
				time.Sleep(50 * time.Millisecond)
				cleaner.SyncDone(same, false)
			}
			if after := asked.Load().Sub(start); after < silentFor || after > silentFor+10*time.Second {
				t.Errorf("asked after %v", after)
			}
		})
	}
}

// TestAskedBefore: an endpoint does not answer, comes back, and leaves again. Its silence before says nothing.
func TestAskedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := silent()
		asked := make(chan struct{}, 100)
		dead := true
		cleaner := departing(t, table, "", CleanerConfig{Dead: func(context.Context, netip.AddrPort) bool {
			asked <- struct{}{}
			time.Sleep(2 * time.Second)
			first := dead
			dead = false
			return first
		}})
		start := time.Now()
		<-asked
		cleaner.SyncDone(shop(t, true, ""), false)
		time.Sleep(10 * time.Second)
		cleaner.SyncDone(shop(t, false, ""), false)
		for ; !table.isGone(); time.Sleep(time.Second) {
			if time.Since(start) > 3*time.Minute {
				t.Fatal("still there")
			}
		}
		if after := time.Since(start); after < 2*time.Minute {
			t.Errorf("gone after %v", after)
		}
	})
}

// TestSightedByNamespace: a tenant's crowd of silent connections leaves places for others, and in the end its own.
func TestSightedByNamespace(t *testing.T) {
	s := silence{after: silentFor, longest: longestPause}
	f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.2:80", SeenReply|Assured)
	f.Unacknowledged, f.Timeout = true, time.Minute
	now, id := time.Now(), uint32(0)
	sees := func(namespace string) bool {
		before := len(s.sighted)
		id++
		f.ID = id
		s.see(&f, namespace, now)
		return len(s.sighted) > before
	}
	for range 2 * maxSighted {
		sees("evil")
	}
	if n := len(s.sighted); n != maxSighted/4 || !sees("shop") || sees("evil") {
		t.Errorf("%d of one namespace, %v", n, s.of)
	}
	now = now.Add(2 * time.Minute)
	s.due(now, &Scope{})
	if len(s.sighted)+len(s.of) > 0 || !sees("evil") {
		t.Errorf("%d are remembered, %v", len(s.sighted), s.of)
	}
}

package pace_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/pace"
)

// run requests passes at the given times, each urgent or not, and lets each pass take a
// second. It returns the times within an hour when passes began.
func run(s *pace.Schedule, requests map[time.Duration]bool, failures int) []time.Duration {
	t0 := time.Unix(1_800_000_000, 0)
	const step = 100 * time.Millisecond
	var starts []time.Duration
	for at := time.Duration(0); at < time.Hour; at += step {
		if urgent, ok := requests[at]; ok {
			s.Request(urgent)
		}
		if due, ok := s.Next(); ok && !t0.Add(at).Before(due) {
			starts = append(starts, at)
			s.Begin(t0.Add(at))
			for end := at + time.Second; at < end; { // the requests during the pass
				if at += step; at < end {
					if urgent, ok := requests[at]; ok {
						s.Request(urgent)
					}
				}
			}
			s.End(t0.Add(at), time.Second, failures > 0)
			failures--
			at -= step
		}
	}
	return starts
}

func seconds(list ...float64) []time.Duration {
	var all []time.Duration
	for _, s := range list {
		all = append(all, time.Duration(s*float64(time.Second)))
	}
	return all
}

func TestSchedule(t *testing.T) {
	for name, c := range map[string]struct {
		requests map[time.Duration]bool
		failures int
		want     []time.Duration
	}{
		"nothing":       {},
		"one, and late": {map[time.Duration]bool{0: true}, 0, seconds(0, 6)},
		"the first is urgent": {
			map[time.Duration]bool{0: false}, 0, seconds(0, 6),
		},
		"during a pass and soon after, in one": {
			map[time.Duration]bool{0: true, 500 * time.Millisecond: true, 2 * time.Second: true}, 0, seconds(0, 6, 12),
		},
		"idle ones wait longer, and have no late one": {
			map[time.Duration]bool{0: true, 10 * time.Second: false, 11 * time.Second: false}, 0, seconds(0, 6, 27),
		},
		"after a rest at once": {map[time.Duration]bool{0: true, time.Minute: true}, 0, seconds(0, 6, 60, 66)},
		"failures":             {map[time.Duration]bool{0: true}, 4, seconds(0, 6, 12, 18, 27, 33)},
	} {
		t.Run(name, func(t *testing.T) {
			s := &pace.Schedule{Pause: 5, IdlePause: 20, Late: seconds(1)}
			if diff := cmp.Diff(c.want, run(s, c.requests, c.failures)); diff != "" {
				t.Errorf("passes began (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLatePasses: several late passes follow an urgent one.
func TestLatePasses(t *testing.T) {
	for name, c := range map[string]struct {
		requests map[time.Duration]bool
		failures int
		want     []time.Duration
	}{
		"unequal waits": {map[time.Duration]bool{0: true}, 0, seconds(0, 3, 13, 33)}, // the first after a rest
		"anew with an urgent one": {
			map[time.Duration]bool{0: true, 20 * time.Second: true, 25 * time.Second: true}, 0,
			seconds(0, 3, 13, 20, 23, 26, 29, 39, 59),
		},
		"an idle one is none of them": {
			map[time.Duration]bool{0: true, 14 * time.Second: false}, 0, seconds(0, 3, 13, 24, 33),
		},
		"anew after a failure": {map[time.Duration]bool{0: true}, 1, seconds(0, 3, 6, 16, 36)},
	} {
		t.Run(name, func(t *testing.T) {
			s := &pace.Schedule{Pause: 2, IdlePause: 10, Late: seconds(1, 9, 19)}
			if diff := cmp.Diff(c.want, run(s, c.requests, c.failures)); diff != "" {
				t.Errorf("passes began (-want +got):\n%s", diff)
			}
		})
	}
	if got := run(&pace.Schedule{}, map[time.Duration]bool{0: true}, 0); len(got) != 1 {
		t.Errorf("without late passes there are %d", len(got))
	}
}

// TestRetriesSlowDown: the waits after failures grow, also for passes that take no time.
func TestRetriesSlowDown(t *testing.T) {
	s := pace.Schedule{Pause: 5, IdlePause: 20, Late: seconds(1)}
	now := time.Unix(1_800_000_000, 0)
	s.Request(true)
	var waits []time.Duration
	for range 9 {
		due, ok := s.Next()
		if !ok {
			t.Fatal("no pass is due")
		}
		if !due.IsZero() && due.After(now) {
			waits = append(waits, due.Sub(now))
			now = due
		}
		s.Begin(now)
		s.End(now, 0, true)
	}
	if diff := cmp.Diff(seconds(1, 2, 4, 8, 16, 32, 60, 60), waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
}

// TestEvery: cheap passes do not begin more often than Every. A pass may follow at once
// after one that took longer than Every.
func TestEvery(t *testing.T) {
	start := time.Unix(0, 0)
	for took, want := range map[time.Duration]time.Duration{10 * time.Millisecond: 80 * time.Millisecond,
		90 * time.Millisecond: 90 * time.Millisecond} {
		s := pace.Schedule{Every: 80 * time.Millisecond}
		s.Request(true)
		s.Begin(start)
		s.End(start.Add(took), took, false)
		s.Request(true)
		if due, ok := s.Next(); !ok || !due.Equal(start.Add(want)) {
			t.Errorf("after a pass of %v the next is due at %v (%v), want %v", took, due.Sub(start), ok, want)
		}
	}
}

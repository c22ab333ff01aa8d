package pace_test

import (
	"testing"
	"time"

	"nftproxy/model/pace"
)

// worker makes passes after changes, with a clock of its own.
type worker struct {
	schedule pace.Schedule
	budget   pace.Budget
	// cpu is the CPU time of a pass, wall its wall time.
	cpu, wall time.Duration
	// cost chooses the duration from which the schedule computes the rest.
	cost func(cpu, wall time.Duration) time.Duration
}

func byCPU(cpu, _ time.Duration) time.Duration   { return cpu }
func byWall(_, wall time.Duration) time.Duration { return wall }

// work makes so many changes, one in every period, and runs the passes. It returns the
// longest time from a change to the end of a pass that began after it, and the CPU time.
func (w *worker) work(changes int, every time.Duration) (lag, cpu time.Duration) {
	const step = time.Millisecond
	begin := time.Unix(1_800_000_000, 0)
	var waiting []time.Time
	for now, left := begin, changes; left > 0 || len(waiting) > 0; now = now.Add(step) {
		arrive := func(until time.Time) {
			for ; left > 0; left-- {
				at := begin.Add(time.Duration(changes-left) * every)
				if at.After(until) {
					return
				}
				waiting = append(waiting, at)
				w.schedule.Request(true)
			}
		}
		arrive(now)
		due, ok := w.schedule.Next()
		if due = pace.Later(due, w.budget.Ready()); !ok || now.Before(due) {
			continue
		}
		w.schedule.Begin(now)
		covered := len(waiting)
		now = now.Add(w.wall)
		cpu += w.cpu
		lag = max(lag, now.Sub(waiting[0]))
		arrive(now)
		waiting = waiting[covered:]
		w.budget.Spend(now, w.cpu)
		w.schedule.End(now, w.cost(w.cpu, w.wall), false)
	}
	return lag, cpu
}

// A hundred changes come, one every 100 ms. On a busy machine, a pass over a small or a
// large table takes three times its CPU time. No change waits longer than two passes and
// the rest between them. With a rest of twenty wall durations and no budget, they would
// wait for seconds.
func TestBurstForRollingUpdate(t *testing.T) {
	for _, cpu := range []time.Duration{15 * time.Millisecond, 80 * time.Millisecond} {
		w := worker{pace.Schedule{Pause: 1}, pace.Budget{Rest: 20, Burst: 5 * time.Second}, cpu, 3 * cpu, byCPU}
		if lag, _ := w.work(100, 100*time.Millisecond); lag > 2*w.wall+cpu+2*time.Millisecond {
			t.Errorf("passes of %v: a change waited for %v", cpu, lag)
		}
		w = worker{pace.Schedule{Pause: 20}, pace.Budget{Rest: 1, Burst: time.Hour}, cpu, 3 * cpu, byWall}
		if lag, _ := w.work(100, 100*time.Millisecond); lag < 20*w.wall {
			t.Errorf("passes of %v, with a rest of twenty wall durations: a change waited for %v only", cpu, lag)
		}
	}
}

// Changes that never end get the share, and the burst only once.
func TestBudgetInTheLongRun(t *testing.T) {
	const rest, burst, every = 20, 5 * time.Second, 100 * time.Millisecond
	changes := 100_000
	if testing.Short() {
		changes = 10_000
	}
	for _, cpu := range []time.Duration{time.Millisecond, 15 * time.Millisecond, 250 * time.Millisecond, 2 * time.Second} {
		w := worker{pace.Schedule{Pause: 1}, pace.Budget{Rest: rest, Burst: burst}, cpu, cpu, byCPU}
		lag, spent := w.work(changes, every)
		if most := time.Duration(changes)*every/rest + burst + 2*cpu; spent > most {
			t.Errorf("passes of %v took %v of CPU time, want at most %v", cpu, spent, most)
		}
		if most := (rest + 2) * cpu; lag > max(most, every) {
			t.Errorf("passes of %v: a change waited for %v, want at most %v", cpu, lag, most)
		}
	}
}

// Spent CPU time comes back at the share's pace. The budget never grows beyond the burst.
func TestBudgetRecovers(t *testing.T) {
	t0 := time.Unix(1_800_000_000, 0)
	b := pace.Budget{Rest: 20, Burst: time.Second}
	if at := b.Ready(); at.After(t0) {
		t.Errorf("at first ready at %v", at)
	}
	for i, step := range []struct {
		at, spend, ready time.Duration
	}{
		{0, time.Second, 0}, // It spends the burst.
		{time.Second, 100 * time.Millisecond, 2 * time.Second},      // 50 ms have come back
		{2 * time.Second, time.Second, 22 * time.Second},            // in debt
		{time.Hour, 2 * time.Second, time.Hour + 20*time.Second},    // no more than the burst was there
		{time.Hour + 40*time.Second, 0, time.Hour + 20*time.Second}, // ready, and nothing spent
	} {
		now := t0.Add(step.at)
		b.Spend(now, step.spend)
		if got, want := pace.Later(now, b.Ready()), pace.Later(now, t0.Add(step.ready)); got != want {
			t.Errorf("step %d: ready %v after the start, want %v", i, got.Sub(t0), want.Sub(t0))
		}
	}
}

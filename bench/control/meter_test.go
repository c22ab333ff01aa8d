package control

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"nftproxy/test/lib/child"
)

// here is the namespace that the test is in.
type here struct{}

func (here) Do(fn func() error) error { return fn() }

// runScript runs a shell script until it says that it is ready.
func runScript(t *testing.T, script string) *child.Process {
	t.Helper()
	p, err := child.Start(here{}, exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := p.Await(ctx, 0, func(l child.Line) bool { return l.Text == "ready" }); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestChildTicks(t *testing.T) {
	const line = "42 (a (b) c) S 1 42 42 0 -1 4194560 10 20 0 0 3 4 500 60 20 0 1 0 100 200 300"
	if got, err := childTicks(line); err != nil || got != 560 {
		t.Errorf("%d, error %v; want 500+60", got, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", "42 (a) S 1 42 42 0 -1 4194560 10 20 0 0 3 4 x 60"} {
		if got, err := childTicks(bad); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
}

// TestCPUTime: the time of a process itself counts, and so does that of a child that has
// ended.
func TestCPUTime(t *testing.T) {
	const work = `i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done`
	for name, script := range map[string]string{
		"own":      work + "; echo ready; exec sleep 1000",
		"children": "sh -c '" + work + "'; echo ready; sleep 1000",
	} {
		p := runScript(t, script)
		idle := runScript(t, "echo ready; sleep 1000")
		worked, err := CPUTime(p.PID())
		if err != nil {
			t.Fatal(err)
		}
		rested, err := CPUTime(idle.PID())
		if err != nil {
			t.Fatal(err)
		}
		if worked < rested+20*time.Millisecond {
			t.Errorf("%s: %v for 200,000 turns of a loop, %v for none", name, worked, rested)
		}
	}
	if _, err := CPUTime(1 << 30); err == nil {
		t.Error("the time of a process that there is not")
	}
}

// TestPeak: the sum has the memory of a grandchild, also after its end.
func TestPeak(t *testing.T) {
	const held = 64_000_000
	// tail holds all of it until the next command reads.
	p := runScript(t, `head -c 64000000 /dev/zero | tail -c 64000000 | { head -c 1 >/dev/null; echo ready; sleep 1000; }`)
	m := newMeter(p.PID())
	m.sample()
	m.stopNow()
	if got := m.peakMB(); got < held/1e6 || got > 3*held/1e6 {
		t.Errorf("%v MB, want some more than %v", got, held/1e6)
	}
	if n := len(descendants(p.PID())); n < 2 {
		t.Errorf("%d descendants", n)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	m.sample()
	if got := m.peakMB(); got < held/1e6 {
		t.Errorf("%v MB after the end", got)
	}
}

// TestSettledCPU: it waits for a child, but no longer than the context.
func TestSettledCPU(t *testing.T) {
	p := runScript(t, "sleep 1000 & echo ready; wait")
	m := &meter{pid: p.PID()}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.settledCPU(ctx); err != nil {
		t.Error(err)
	}
}

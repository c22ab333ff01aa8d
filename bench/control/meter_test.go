package control

import (
	"context"
	"testing"

	"nftproxy/test/lib/child"
)

// TestPeak: the sum has the memory of a grandchild, also after its end.
func TestPeak(t *testing.T) {
	const held = 64_000_000
	// tail holds all of it until the next command reads.
	p := child.ReadyForTest(t, `head -c 64000000 /dev/zero | tail -c 64000000 | `+
		`{ head -c 1 >/dev/null; echo ready; sleep 1000; }`)
	m := newMeter(p.PID())
	m.sample()
	m.stopNow()
	if got := m.peakMB(); got < held/1e6 || got > 3*held/1e6 {
		t.Errorf("%v MB, want some more than %v", got, held/1e6)
	}
	if n := len(child.Descendants(p.PID())); n < 2 {
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
	p := child.ReadyForTest(t, "sleep 1000 & echo ready; wait")
	m := &meter{pid: p.PID()}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.settledCPU(ctx); err != nil {
		t.Error(err)
	}
}

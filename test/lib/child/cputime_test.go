package child

import (
	"testing"
	"time"
)

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
		p := ReadyForTest(t, script)
		idle := ReadyForTest(t, "echo ready; sleep 1000")
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

package child_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/lib/child"
)

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestLog: lines arrive as they are written, JSON taken apart, and a wait
// starts at its mark.
func TestLog(t *testing.T) {
	p := child.ForTest(t, `echo one; printf '{"msg":"synced","written":3,"encode":"1.5µs","err":"a \\"b\\""}\n' >&2; `+
		`printf 'half'; exec sleep 1000`)
	ctx := patience(t)
	first, mark, err := p.Await(ctx, 0, func(l child.Line) bool { return l.Has("one") })
	if err != nil || mark != 1 || first.At.IsZero() {
		t.Fatalf("line %+v, mark %d, error %v", first, mark, err)
	}
	synced, mark, err := p.Await(ctx, mark, child.Line.Synced)
	if err != nil || mark != 2 {
		t.Fatalf("mark %d, error %v", mark, err)
	}
	if synced.Written == nil || *synced.Written != 3 || synced.Encode != 1500 || synced.Services != nil ||
		!synced.Has(`a "b"`, "synced") {
		t.Errorf("synced %+v", synced)
	}
	if diff := cmp.Diff(2, p.Mark()); diff != "" {
		t.Errorf("mark after half a line (-want +got):\n%s", diff)
	}
	if got := p.Tail(1); !strings.HasPrefix(got, `{"msg"`) || p.Tail(9) != "one\n"+got {
		t.Errorf("tail %q, %q", got, p.Tail(9))
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := p.Await(short, mark, child.Line.Synced); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestEnd: a child that ends while it is waited for, one that is asked to, and
// one that does not listen.
func TestEnd(t *testing.T) {
	p := child.ForTest(t, "echo last words; exit 3")
	_, _, err := p.Await(patience(t), 0, child.Line.Synced)
	if !errors.Is(err, child.ErrEnded) || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
	if p.Err() == nil || p.State().ExitCode() != 3 || p.Tail(1) != "last words\n" {
		t.Errorf("error %v, state %v, log %q", p.Err(), p.State(), p.Tail(1))
	}

	p = child.ReadyForTest(t, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done")
	if p.Ended() || p.State() != nil {
		t.Error("ended already")
	}
	if err := p.Stop(patience(t)); err != nil || !p.Ended() {
		t.Errorf("stop: %v", err)
	}

	p = child.ReadyForTest(t, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Stop(short); !errors.Is(err, context.Canceled) || !p.Ended() {
		t.Errorf("stop of one that does not listen: %v", err)
	}
}

func TestNoSuchProgram(t *testing.T) {
	if _, err := child.Start(child.Here{}, exec.Command("/nonexistent/program")); err == nil {
		t.Error("no error")
	}
}

package child

import (
	"context"
	"os/exec"
	"time"
)

// TB is the part of testing.TB that the functions for tests need; the package
// is also part of a program, which is not to import testing.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Here is the namespace that the caller is in.
type Here struct{}

// Do is part of Namespace.
func (Here) Do(fn func() error) error { return fn() }

// ForTest starts a shell script in the namespace of the test, and kills it at the test's end.
func ForTest(t TB, script string) *Process {
	t.Helper()
	p, err := Start(Here{}, exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Errorf("kill %s: %v", p, err)
		}
	})
	return p
}

// ReadyForTest is ForTest for a script that says "ready": it waits for that.
func ReadyForTest(t TB, script string) *Process {
	t.Helper()
	p := ForTest(t, script)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := p.Await(ctx, 0, func(l Line) bool { return l.Text == "ready" }); err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

package testnet

import (
	"errors"
	"io/fs"
	"os"
)

// TB is the part of testing.TB that the functions for tests need; the package
// is also part of a program, which is not to import testing.
type TB interface {
	Helper()
	Cleanup(func())
	Skipf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// NewForTest is NewTopology for a test, closed at its end. Where SKIP_PRIVILEGED is
// set in the environment, the test is skipped. Without the permission to make
// namespaces it is skipped too, or fails if CI or REQUIRE_PRIVILEGED is set.
func NewForTest(t TB, config Config) *Topology {
	t.Helper()
	SkipUnwanted(t)
	topology, err := NewTopology(config)
	Require(t, err)
	t.Cleanup(func() {
		if err := topology.Close(); err != nil {
			t.Errorf("close topology: %v", err)
		}
	})
	return topology
}

// NamespaceForTest is New for a test, by the same rules as NewForTest.
func NamespaceForTest(t TB, name string) *Namespace {
	t.Helper()
	SkipUnwanted(t)
	ns, err := New(name)
	Require(t, err)
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Errorf("close network namespace %s: %v", name, err)
		}
	})
	return ns
}

// SkipUnwanted skips a test that needs namespaces where SKIP_PRIVILEGED is set in the
// environment, as it is by make test-short: root then runs the same tests as any user.
func SkipUnwanted(t TB) {
	t.Helper()
	if os.Getenv("SKIP_PRIVILEGED") != "" {
		t.Skipf("SKIP_PRIVILEGED is set: needs network namespaces")
	}
}

// Require ends a test whose namespaces could not be made: it is skipped where
// they are not permitted, unless CI or REQUIRE_PRIVILEGED is set in the
// environment, and fails for any other error.
func Require(t TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrPermission) && os.Getenv("CI") == "" && os.Getenv("REQUIRE_PRIVILEGED") == "":
		t.Skipf("network namespaces are not permitted: %v", err)
	default:
		t.Fatalf("%v", err)
	}
}

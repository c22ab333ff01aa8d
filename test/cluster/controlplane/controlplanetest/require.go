// Package controlplanetest promises that a test which needs a control plane runs wherever
// it can, and fails rather than skips where it must run. It starts no control plane.
package controlplanetest

import (
	"os"
	"testing"
)

// Require skips a test that needs a control plane where it cannot run. If CI or
// REQUIRE_PRIVILEGED is set in the environment, a test that only lacks root fails.
func Require(t testing.TB) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("-short: needs a control plane")
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "" || os.Getenv("REQUIRE_PRIVILEGED") != "":
		t.Fatal("needs root")
	default:
		t.Skip("needs root")
	}
}

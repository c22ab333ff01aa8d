package scenario_test

import (
	"fmt"
	"os"
	"testing"

	"nftproxy/internal/testnet/userns"
)

// TestMain runs the tests of an ordinary user in a user namespace.
func TestMain(m *testing.M) {
	code, done, err := userns.Reexec()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests that need namespaces will be skipped:", err)
	}
	if done {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

package controlplane

import (
	"flag"
	"os"

	"nftproxy/test/lib/testnet"
)

// Require skips a test that needs a control plane where it cannot run. If CI or
// REQUIRE_PRIVILEGED is set in the environment, a test that only lacks root fails.
func Require(t testnet.TB) {
	t.Helper()
	switch short := flag.Lookup("test.short"); {
	case short != nil && short.Value.String() == "true": // testing.Short: programs use this package, too
		t.Skipf("-short: needs a control plane")
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "" || os.Getenv("REQUIRE_PRIVILEGED") != "":
		t.Fatalf("needs root")
	default:
		t.Skipf("needs root")
	}
}

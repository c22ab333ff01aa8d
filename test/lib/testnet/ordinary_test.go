package testnet_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestOrdinaryUser runs the other tests as the user nobody.
func TestOrdinaryUser(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs all tests of the package again")
	}
	testnet.NamespaceForTest(t, "probe") // skips or fails as the other tests would
	if ordinaryAlready(t) {
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.skip=^TestOrdinaryUser$")
	cmd.Env = append(os.Environ(), "REQUIRE_PRIVILEGED=1", "GOCOVERDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\n--- PASS: TestEverybodyReachesEverybody") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// ordinaryAlready says whether this run is an ordinary user's, in a user namespace that Main made.
func ordinaryAlready(t *testing.T) bool {
	t.Helper()
	uids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	already := len(strings.Split(strings.TrimSpace(string(uids)), "\n")) == 1 && strings.Fields(string(uids))[2] == "1"
	if already {
		t.Log("this run is an ordinary user's already")
	}
	return already
}

package netfilter

import (
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/aptget"
)

// NeedIPTables skips the test if the kernel lacks the modules of iptables and ipset, as on RHEL 10. A test calls it
// before it asks for one of them: make test-no-iptables fails where anything of ours asks.
func NeedIPTables(t TB) {
	t.Helper()
	path, err := aptget.Command("iptables-legacy", "iptables")
	if err != nil {
		t.Fatalf("%v", err)
	}
	cmd := exec.Command(path, "-S")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET} // it makes the table that it lists
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
	case strings.Contains(string(out), "Table does not exist"):
		t.Skipf("this kernel has no iptables")
	default:
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}

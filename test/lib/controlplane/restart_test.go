package controlplane

import (
	"bufio"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestControllersComeBack: where there are kubelets, controllers that have ended by themselves are started again, each
// time. Elsewhere, and after Stop, they are not.
func TestControllersComeBack(t *testing.T) {
	for _, kubelets := range []bool{true, false} {
		dir := t.TempDir()
		fifo := filepath.Join(dir, "starts")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		starts, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer starts.Close()
		ns, err := openNetNS("")
		if err != nil {
			t.Fatal(err)
		}
		c := &Cluster{
			cfg: Config{Dir: dir, Log: testLog{t}}, ns: ns, stopping: make(chan struct{}), processes: map[string]*process{},
			binaries: map[string]string{controllerManager: "/bin/sh"},
		}
		if kubelets {
			c.cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
		}
		if err := c.launch(controllerManager, []string{"-c", "echo up >" + fifo}); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(starts)
		hear := func() {
			if _, err := lines.ReadString('\n'); err != nil {
				t.Fatalf("kubelets %v: %v", kubelets, err)
			}
		}
		hear()
		if kubelets {
			hear()
			hear()
			c.Stop()
			continue
		}
		c.watching.Wait() // it does not end where the component is started again
		c.Stop()
		if err := starts.SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		if line, err := lines.ReadString('\n'); err == nil {
			t.Errorf("without kubelets it was started again: %q", line)
		}
	}
}

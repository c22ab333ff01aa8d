package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestKubeProxyWithFewRights: with the capability CAP_NET_ADMIN alone, which processes of kube-proxy run in
// this network namespace is known all the same. Where /proc hides them, nothing is certain.
func TestKubeProxyWithFewRights(t *testing.T) {
	here, elsewhere := testnet.NamespaceForTest(t, "here"), testnet.NamespaceForTest(t, "elsewhere")
	const few = "exec setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all,+net_admin nftproxy proxies -o json"
	look := func(before string) (running, detail string) {
		t.Helper()
		var out, problems bytes.Buffer
		cmd := exec.Command("unshare", "--mount", "sh", "-c", before+few)
		cmd.Stdout, cmd.Stderr = &out, &problems
		if err := here.Run(cmd); err != nil {
			t.Fatalf("%v: %s", err, problems.Bytes())
		}
		var report proxiesReport
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		p := report.Proxies[1]
		return p.Running, p.Detail
	}
	kubeProxy(t, elsewhere)
	if running, detail := look(""); running == "yes" {
		t.Errorf("it runs in another namespace: %s", detail)
	}
	hidden := "mount -t proc -o hidepid=2,gid=65534 proc /proc && "
	pid := kubeProxy(t, here)
	if running, detail := look(""); running != "yes" || !strings.Contains(detail, fmt.Sprintf("PID %d", pid)) {
		t.Errorf("it runs as PID %d: got %s, %s", pid, running, detail)
	}
	if running, detail := look(hidden); running != "unknown" {
		t.Errorf("it is hidden: got %s, %s", running, detail)
	}
}

// kubeProxy starts a process with the name and all capabilities of kube-proxy.
func kubeProxy(t *testing.T, ns *testnet.Namespace) (pid int) {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.WriteFile(file, text, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, "infinity")
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait() // It was killed.
	})
	return cmd.Process.Pid
}

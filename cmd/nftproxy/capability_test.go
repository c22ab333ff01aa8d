package main

import (
	"bytes"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// TestWithoutCapability: a process that may not write nftables says so and ends,
// before it has done anything. (It has given up other capabilities, and logged that.)
func TestWithoutCapability(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	cmd := exec.Command("nftproxy", "run", "--nftproxy-manifests", manifest(t, webManifest("")), "--hostname-override", "node-1",
		"--metrics-bind-address=", "--healthz-bind-address=", "--nftproxy-conntrack-sysctl-dir", t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	started := make(chan error)
	go func() {
		// The thread has lost the capability for good, and ends with the goroutine.
		runtime.LockOSThread()
		err := unix.Setns(ns.Fd(), unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0)
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v", err)
	}
	lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "privileges") || !strings.Contains(lines[1], "run needs CAP_NET_ADMIN in its network namespace") {
		t.Errorf("it said:\n%s", stderr.String())
	}
}

// TestOneCapability: the commands that look at the kernel need CAP_NET_ADMIN and no other
// capability: the DaemonSet's pod has no more.
func TestOneCapability(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	flags := []string{"--nftproxy-manifests", manifest(t, webManifest("", "10.244.0.1")), "--hostname-override", "node-1"}
	firstSync(t, ns, flags...)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{append([]string{"verify"}, flags...), 0, "1 service, from the manifests"},
		{[]string{"trace", "--timeout", "1s", "10.96.0.10:80"}, int(statusNoPacket), "no new connection came"},
	} {
		cmd := exec.Command("nftproxy", c.args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		started := make(chan error)
		go func() {
			// The thread has lost the capabilities for good, and ends with the goroutine.
			runtime.LockOSThread()
			err := unix.Setns(ns.Fd(), unix.CLONE_NEWNET)
			for capability := uintptr(0); err == nil && capability <= unix.CAP_LAST_CAP; capability++ {
				if capability != unix.CAP_NET_ADMIN {
					err = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
				}
			}
			if err == nil {
				err = cmd.Start()
			}
			started <- err
		}()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the exit code says it
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: exit code %d, want %d, said:\n%s", c.args[0], code, c.code, stderr.String())
		}
	}
}

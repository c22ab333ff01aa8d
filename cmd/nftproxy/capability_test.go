package main

import (
	"bytes"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/test/testnet"
)

// TestWithoutCapability: a process that may not write nftables says so and ends,
// before it has done anything.
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
	if text := stderr.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "run needs CAP_NET_ADMIN in its network namespace") {
		t.Errorf("it said:\n%s", text)
	}
}

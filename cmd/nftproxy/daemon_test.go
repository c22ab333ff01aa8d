package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// running is `nftproxy run` as node-1 in a network namespace, with its log.
type running struct {
	*testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	log   strings.Builder
}

// logged has the fields of a log line that the tests read.
type logged struct {
	Msg, Level, Address string
	Written, Clients    int
	Missing, Serving    int
	Why                 map[string]int
}

func start(t *testing.T, ns *testnet.Namespace, flags ...string) *running {
	t.Helper()
	r := &running{T: t, cmd: exec.Command("nftproxy", append([]string{"run", "--hostname-override", "node-1",
		"--metrics-bind-address=", "--healthz-bind-address=", "-v", "2"}, flags...)...)}
	stderr, err := r.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.lines = bufio.NewScanner(stderr)
	if err := ns.Start(r.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.cmd.ProcessState != nil {
			return
		}
		_ = r.cmd.Process.Signal(syscall.SIGTERM) // If the process has ended, Wait returns its error.
		_, _ = io.Copy(io.Discard, stderr)
		if err := r.cmd.Wait(); err != nil {
			t.Errorf("nftproxy run: %v, log:\n%s", err, r.log.String())
		}
	})
	return r
}

// awaitLimit is far beyond what any line takes. A process that never writes it must not
// take the time of all other tests.
const awaitLimit = 3 * time.Minute

// await returns the next line for which is returns true. It kills a process that does not
// write one.
func (r *running) await(what string, is func(logged) bool) logged {
	r.Helper()
	limit := time.AfterFunc(awaitLimit, func() { _ = r.cmd.Process.Kill() }) // If it has ended, the log ends, too.
	defer limit.Stop()
	for r.lines.Scan() {
		r.log.WriteString(r.lines.Text() + "\n")
		var l logged
		if json.Unmarshal(r.lines.Bytes(), &l) == nil && is(l) {
			return l
		}
	}
	r.Fatalf("ended without %s, log:\n%s", what, r.log.String())
	return logged{}
}

// awaitSync returns the number of objects that the next sync wrote.
func (r *running) awaitSync() int {
	r.Helper()
	return r.await("a sync", func(l logged) bool { return l.Msg == "synced" }).Written
}

// awaitSyncAndServer waits for a sync and for the server at an address, which come in any order.
func (r *running) awaitSyncAndServer(address string) {
	r.Helper()
	synced, serving := false, false
	r.await("a sync and the server at "+address, func(l logged) bool {
		synced = synced || l.Msg == "synced"
		serving = serving || l.Msg == "serving" && l.Address == address
		return synced && serving
	})
}

// end ends the process as an init system does.
func (r *running) end() {
	r.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.Error(err)
	}
	for r.lines.Scan() {
		r.log.WriteString(r.lines.Text() + "\n")
	}
	if err := r.cmd.Wait(); err != nil {
		r.Fatalf("nftproxy run: %v, log:\n%s", err, r.log.String())
	}
}

// firstSync runs the process until its first sync, and returns the number of objects that
// it wrote.
func firstSync(t *testing.T, ns *testnet.Namespace, flags ...string) int {
	t.Helper()
	r := start(t, ns, flags...)
	defer r.end()
	return r.awaitSync()
}

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nftproxy/internal/testnet"
)

// process is nftproxy, or another program, as a child of the test.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{} // closed once err is set
	err    error         // what Wait said

	mu      sync.Mutex
	rest    []byte // of a line that is not complete
	lines   []line
	changed chan struct{} // closed and replaced when lines arrive
}

// line is one line of a log: of JSON where the program writes that.
type line struct {
	text  string
	Level string
	Msg   string
	Err   string
	// Of "synced".
	Services *int
	Written  *int
	// In nanoseconds.
	Latency, Compile, Read, Plan, Apply time.Duration
}

// startProxy runs nftproxy on the node as the cluster's administrator, with its
// health and metrics servers off, and returns when the first program is in the
// kernel.
func (n *node) startProxy(more ...string) *process {
	n.t.Helper()
	p := n.run(n.proxyCommand(more...))
	p.awaitSync(0)
	return p
}

func (n *node) proxyCommand(more ...string) *exec.Cmd {
	n.t.Helper()
	args := append([]string{
		"run", "--hostname-override=" + n.name, "--cluster-cidr=" + n.clusterCIDR(), "-v=2",
		"--kubeconfig=" + n.plane.cluster.AdminKubeconfig(), "--healthz-bind-address=", "--metrics-bind-address=",
	}, more...)
	return exec.Command(shared.nftproxy(n.t), args...)
}

func (n *node) clusterCIDR() string {
	return fmt.Sprintf("%s,%s", n.ClusterCIDRs[0], n.ClusterCIDRs[1])
}

// run starts a command on the node. It ends with the test, or with this process
// if that is killed.
func (n *node) run(cmd *exec.Cmd) *process { return runIn(n.t, n.Node, cmd) }

func runIn(t *testing.T, ns *testnet.Namespace, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, exited: make(chan struct{}), changed: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		// The signal at the parent's death is bound to this thread, which must
		// not end before the child.
		p.err = ns.Do(func() error {
			err := cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return cmd.Wait()
		})
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", cmd, err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", cmd, p.tail(120))
		}
	})
	return p
}

// Write takes what the process writes.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	for {
		text, rest, found := bytes.Cut(p.rest, []byte("\n"))
		if !found {
			break
		}
		l := line{text: string(text)}
		_ = json.Unmarshal(text, &l) // other lines are there as text
		p.lines, p.rest = append(p.lines, l), rest
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return len(b), nil
}

// logged returns the lines from a mark on, and what is closed when there are more.
func (p *process) logged(from int) ([]line, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[from:len(p.lines):len(p.lines)], p.changed
}

// mark is where the log is now.
func (p *process) mark() int {
	lines, _ := p.logged(0)
	return len(lines)
}

// await returns the first line from a mark on that matches, and the mark after it.
func (p *process) await(what string, from int, match func(line) bool) (line, int) {
	p.t.Helper()
	timeout := time.After(patience)
	for ended := false; ; {
		lines, changed := p.logged(from)
		for i, l := range lines {
			if match(l) {
				return l, from + i + 1
			}
		}
		from += len(lines)
		if ended {
			p.t.Fatalf("the process ended (%v) without a line about: %s", p.err, what)
		}
		select {
		case <-changed:
		case <-p.exited:
			ended = true
		case <-timeout:
			p.t.Fatalf("no line within %v about: %s", patience, what)
		}
	}
}

// awaitSync waits for a sync after the mark.
func (p *process) awaitSync(from int) (line, int) {
	p.t.Helper()
	return p.await("a sync", from, func(l line) bool { return l.Msg == "synced" })
}

// awaitText waits for a line that has all of the words.
func (p *process) awaitText(from int, words ...string) line {
	p.t.Helper()
	l, _ := p.await(strings.Join(words, ", "), from, func(l line) bool { return l.has(words...) })
	return l
}

func (l line) has(words ...string) bool {
	for _, w := range words {
		if !strings.Contains(strings.ReplaceAll(l.text, `\"`, `"`), w) {
			return false
		}
	}
	return true
}

// until checks at once, and again whenever the process has logged something,
// until the check has no error.
func (p *process) until(what string, check func() error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		_, changed := p.logged(0)
		err := check()
		if err == nil {
			return
		}
		select {
		case <-changed:
		case <-p.exited:
			p.t.Fatalf("%s: %v, and the process ended: %v", what, err, p.err)
		case <-ctx.Done():
			p.t.Fatalf("%s: still %v after %v", what, err, patience)
		}
	}
}

// stop ends the process as a kubelet does, and expects a clean exit.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatalf("stop %s: %v", p.cmd, err)
	}
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("%s did not stop", p.cmd)
	}
	if p.err != nil {
		p.t.Fatalf("%s: %v", p.cmd, p.err)
	}
}

// ended says whether the process has.
func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// kill ends the process and what it started.
func (p *process) kill() {
	if p.ended() {
		return
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.t.Errorf("kill %s: %v", p.cmd, err)
	}
	<-p.exited
}

// tail is the end of the log.
func (p *process) tail(most int) string {
	lines, _ := p.logged(0)
	var b strings.Builder
	for _, l := range lines[max(0, len(lines)-most):] {
		fmt.Fprintln(&b, l.text)
	}
	return b.String()
}

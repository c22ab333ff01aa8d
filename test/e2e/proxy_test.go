package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

// process is nftproxy, or another program, as a child of the test.
type process struct {
	*child.Process
	t *testing.T
}

type line = child.Line

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
	started, err := child.Start(ns, cmd)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{started, t}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", cmd, p.Tail(120))
		}
	})
	return p
}

// await returns the first line from a mark on that matches, and the mark after it.
func (p *process) await(what string, from int, match func(line) bool) (line, int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, mark, err := p.Await(ctx, from, match)
	if err != nil {
		p.t.Fatalf("no line about: %s: %v", what, err)
	}
	return l, mark
}

// awaitSync waits for a sync after the mark.
func (p *process) awaitSync(from int) (line, int) {
	p.t.Helper()
	return p.await("a sync", from, line.Synced)
}

// awaitText waits for a line that has all of the words.
func (p *process) awaitText(from int, words ...string) line {
	p.t.Helper()
	l, _ := p.await(strings.Join(words, ", "), from, func(l line) bool { return l.Has(words...) })
	return l
}

// until checks at once, and again whenever the process has logged something,
// until the check has no error.
func (p *process) until(what string, check func() error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		_, changed := p.Logged(0)
		err := check()
		if err == nil {
			return
		}
		select {
		case <-changed:
		case <-p.Exited():
			p.t.Fatalf("%s: %v, and the process ended: %v", what, err, p.Err())
		case <-ctx.Done():
			p.t.Fatalf("%s: still %v after %v", what, err, patience)
		}
	}
}

// stop ends the process as a kubelet does, and expects a clean exit.
func (p *process) stop() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		p.t.Fatalf("%s: %v", p, err)
	}
}

// kill ends the process and what it started.
func (p *process) kill() {
	if err := p.Kill(); err != nil {
		p.t.Error(err)
	}
}

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestCleanup asks for the tables' removal while their owner runs, which the
// kernel forbids, and afterwards.
func TestCleanup(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	web := n.create(service("web", "web"))
	n.runPod("web-1", "web")
	p := n.startProxy()
	reached := func() error { return n.reaches(client, testnet.TCP, address(web, testnet.TCP, ip.V4), "web-1") }
	p.until("the pod serves", reached)

	out, err := n.cleanup()
	if err == nil {
		t.Fatalf("cleanup beside a running proxy succeeded: %s", out)
	}
	for _, want := range []string{
		"table ip nftproxy belongs to a running nftproxy", "PID", "nftproxy run --hostname-override=" + n.name,
		"stop it first", "run cleanup again",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("cleanup beside a running proxy says %q, want it to say %q", out, want)
		}
	}
	n.must(reached())

	p.stop()
	n.must(reached())
	out, err = n.cleanup()
	if want := "removed table ip nftproxy\nremoved table ip6 nftproxy\n"; err != nil || out != want {
		t.Errorf("cleanup: got %q, %v, want %q", out, err, want)
	}
	tables, err := n.nftables().Tables("nftproxy")
	if n.must(err); len(tables) > 0 {
		t.Errorf("after cleanup there is %v", tables)
	}
	out, err = n.cleanup()
	if want := "no table nftproxy: nothing to remove\n"; err != nil || out != want {
		t.Errorf("a second cleanup: got %q, %v, want %q", out, err, want)
	}

	n.startProxy().until("the pod serves again", reached)
}

// cleanup runs `nftproxy cleanup` on the node and with more flags, and returns what it says.
func (n *node) cleanup(more ...string) (string, error) {
	n.t.Helper()
	p := n.run(exec.Command(shared.nftproxy(n.t), append([]string{"cleanup"}, more...)...))
	<-p.Exited()
	return p.Tail(10), p.Err()
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nftproxy/test/lib/aptget"
)

// TestImage has a real containerd import the image and run it on a node, with the rights
// that the manifests give: no capability but NET_ADMIN, a read-only root and the default
// seccomp profile.
func TestImage(t *testing.T) {
	n := newNode(t)
	n.startProxy().stop()
	tables, err := n.nftables().Tables("nftproxy")
	if n.must(err); len(tables) != 2 {
		t.Fatalf("the proxy left the tables %v, want two", tables)
	}
	c := n.startContainerd()
	archive := filepath.Join(t.TempDir(), "image.tar")
	if out, err := exec.Command(shared.release(t), "image", "-o", archive,
		shared.nftproxy(t)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const name = "localhost/nftproxy:dev"
	c.ctr("images", "import", archive)
	if out := c.ctr("images", "ls", "-q"); strings.TrimSpace(out) != name {
		t.Errorf("containerd has the images %q, want %s", out, name)
	}
	rights := []string{"run", "--rm", "--net-host", "--read-only", "--seccomp"}
	for _, capability := range containerdCapabilities() {
		rights = append(rights, "--cap-drop=CAP_"+capability)
	}
	if out := c.ctr(append(rights, name, "version", "/nftproxy", "version")...); !strings.HasPrefix(out,
		"nftproxy version ") {
		t.Errorf("version says %q", out)
	}
	// As the image's user, which is not root: containerd gives the capability to every user, and the binary has it as a
	// file capability, also under no_new_privs, which ctr sets.
	rights = append(rights, "--cap-add=CAP_NET_ADMIN")
	if out := c.ctr(append(rights, name, "cleanup", "/nftproxy",
		"cleanup")...); out != "removed table ip nftproxy\nremoved table ip6 nftproxy\n" {
		t.Errorf("cleanup says %q", out)
	}
	tables, err = n.nftables().Tables("nftproxy")
	if n.must(err); len(tables) > 0 {
		t.Errorf("after cleanup there is %v", tables)
	}
}

// containerdCapabilities are those that containerd gives a container by default.
func containerdCapabilities() []string {
	return []string{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
		"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
	}
}

// containerd is a containerd of the test's own, on a node.
type containerd struct {
	n      *node
	dir    string
	client string
}

func (n *node) startContainerd() *containerd {
	n.t.Helper()
	c := &containerd{n: n, dir: n.t.TempDir()}
	var server string
	for command, at := range map[string]*string{"containerd": &server, "ctr": &c.client} {
		path, err := aptget.Command(command, "containerd")
		n.must(err)
		*at = path
	}
	_, err := aptget.Command("runc", "runc")
	n.must(err)
	config := filepath.Join(c.dir, "config.toml")
	n.must(os.WriteFile(config, fmt.Appendf(nil, `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = %q
`, filepath.Join(c.dir, "root"), filepath.Join(c.dir, "state"), c.socket()), 0o600))
	p := n.run(exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", server,
		"--config="+config))
	n.soon("containerd", func() error {
		select {
		case <-p.Exited():
			n.t.Fatalf("containerd ended: %v: %s", p.Err(), p.Tail(20))
		default:
		}
		out, err := exec.Command(c.client, "--address="+c.socket(), "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return c
}

func (c *containerd) socket() string { return filepath.Join(c.dir, "c.sock") }

// ctr runs containerd's client on the node and returns what it and the container say.
func (c *containerd) ctr(args ...string) string {
	c.n.t.Helper()
	ctx, cancel := context.WithTimeout(c.n.ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.client, append([]string{"--address=" + c.socket(), "--namespace=k8s.io"},
		args...)...).CombinedOutput()
	if err != nil {
		c.n.t.Errorf("ctr %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

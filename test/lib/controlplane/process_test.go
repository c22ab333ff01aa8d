package controlplane

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestStopped checks that Stop leaves nothing of a cluster behind.
func TestStopped(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	processes := []*process{c.process(etcd), c.process(apiServer), c.process(controllerManager)}
	c.Stop()
	for _, p := range processes {
		if !p.dead() {
			t.Errorf("%s is still there", p.name)
		}
	}
	if _, err := os.Stat(c.cfg.Dir); !os.IsNotExist(err) {
		t.Errorf("directory %s: got %v, want that it does not exist", c.cfg.Dir, err)
	}
	if err := c.StartAPIServer(ctx); err == nil {
		t.Error("StartAPIServer after Stop: want an error")
	}
}

// TestComponentFails checks that an error has the component's own message.
func TestComponentFails(t *testing.T) {
	var cidrs []netip.Prefix
	for _, cidr := range []string{"10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"} {
		cidrs = append(cidrs, netip.MustParsePrefix(cidr))
	}
	cfg := Config{NetNS: newNetNS(t), ServiceCIDRs: cidrs}
	c, err := Start(newContext(t), cfg)
	if err == nil {
		c.Stop()
		t.Fatal("three ranges, of which the API server takes two: want an error")
	}
	for _, want := range []string{"start kube-apiserver", "service-cluster-ip-range"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %q: %v", want, err)
		}
	}
}

// TestSecondLife checks that a control plane continues with the data in its directory.
func TestSecondLife(t *testing.T) {
	ctx := newContext(t)
	cfg := Config{Dir: t.TempDir(), NetNS: newNetNS(t)}
	first := startCluster(t, ctx, cfg)
	if err := first.CreateNamespace(ctx, "shop"); err != nil {
		t.Fatal(err)
	}
	first.Stop()
	second := startCluster(t, ctx, cfg)
	client, err := kubernetes.NewForConfig(second.Client())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := second.CreateNamespace(ctx, "shed"); err != nil {
		t.Errorf("the controllers are not back: %v", err)
	}
}

// orphanNetNS tells TestOrphans, run again as a process of its own, to start a cluster;
// the test then kills that process.
const orphanNetNS = "CLUSTER_TEST_ORPHAN_NETNS"

// TestOrphans checks that the components die with the process that started them.
func TestOrphans(t *testing.T) {
	ctx := newContext(t)
	if path := os.Getenv(orphanNetNS); path != "" {
		c := startCluster(t, ctx, Config{Dir: os.Getenv("TMPDIR"), NetNS: path})
		for _, p := range c.processes {
			fmt.Println("pid", p.cmd.Process.Pid)
		}
		fmt.Println("pid done")
		<-ctx.Done()
		return
	}
	// The other process cannot use this one's descriptors, but can open them by /proc.
	path := strings.Replace(newNetNS(t), "self", fmt.Sprint(os.Getpid()), 1)
	starter := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestOrphans$")
	starter.Env = append(os.Environ(), orphanNetNS+"="+path, "TMPDIR="+t.TempDir())
	out, err := starter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	orphans := readProcesses(t, bufio.NewScanner(out))
	if err := starter.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = starter.Wait() // "signal: killed"
	if len(orphans) != 3 {
		t.Fatalf("got %d processes, want 3", len(orphans))
	}
	for pid, fd := range orphans {
		waitExit(t, ctx, pid, fd)
	}
}

// readProcesses opens the processes that the lines "pid N" name, up to the line "pid done".
func readProcesses(t *testing.T, lines *bufio.Scanner) map[int]int {
	t.Helper()
	open := map[int]int{}
	for lines.Scan() {
		var pid int
		if lines.Text() == "pid done" {
			return open
		}
		if _, err := fmt.Sscanf(lines.Text(), "pid %d", &pid); err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatalf("open process %d: %v", pid, err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		open[pid] = fd
	}
	t.Fatalf("the process that starts a cluster ended early: %v", lines.Err())
	return nil
}

// waitExit waits until the process behind a pidfd has ended: the descriptor is readable then.
func waitExit(t *testing.T, ctx context.Context, pid, fd int) {
	t.Helper()
	const timeout = 30_000 // milliseconds
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, timeout)
		if err == unix.EINTR && ctx.Err() == nil {
			continue
		}
		if err != nil || n == 0 {
			t.Errorf("process %d outlived the one that started it (poll: %d, %v)", pid, n, err)
		}
		return
	}
}

// Package e2e promises that the whole thing works: a real etcd, kube-apiserver
// and kube-controller-manager in a network namespace, the nftproxy binary as a
// child process in the namespace of a node, and real connections from pods, from
// the node and from outside.
//
// The tests share one control plane, and each has a node, pods, a client outside
// and a Kubernetes namespace of its own, so that they can run in any order. What
// they wait for are events: log lines, watches, packets and the kernel's own
// notices. They need root, and skip with -short; the figures that they print are
// never asserted.
package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"nftproxy/internal/cluster"
	"nftproxy/internal/testnet"
)

// shared is what the tests of one run have in common.
var shared fixture

func TestMain(m *testing.M) {
	code := m.Run()
	shared.close()
	os.Exit(code)
}

// fixture holds what is slow to make, made when first asked for.
type fixture struct {
	mu     sync.Mutex
	dir    string
	binary string
	plane  *controlPlane
}

// nftproxy returns the path of the binary, built as `make build` does.
func (f *fixture) nftproxy(t *testing.T) string {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.binary != "" {
		return f.binary
	}
	if f.dir == "" {
		dir, err := os.MkdirTemp("", "nftproxy-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		f.dir = dir
	}
	path := filepath.Join(f.dir, "nftproxy")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "../../cmd/nftproxy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build nftproxy: %v\n%s", err, out)
	}
	f.binary = path
	return path
}

// controlPlane returns the one that tests share. Tests that need one for
// themselves start their own.
func (f *fixture) controlPlane(t *testing.T) *controlPlane {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plane == nil {
		plane, err := startControlPlane(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		f.plane = plane
	}
	return f.plane
}

// rest stops the shared control plane, which the next test that wants one starts
// again: where time is measured it would take part.
func (f *fixture) rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plane != nil {
		f.plane.stop()
		f.plane = nil
	}
}

func (f *fixture) close() {
	f.rest()
	if f.dir != "" {
		os.RemoveAll(f.dir)
	}
}

// controlPlane is a running one, in a namespace with a link to each node.
type controlPlane struct {
	ns      *testnet.Namespace
	cluster *cluster.Cluster
	client  *kubernetes.Clientset
	nodes   int // made so far
}

// ownControlPlane starts one for a test that would disturb others: the controllers
// take up to half a minute to notice that an API server is back.
func ownControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	requireRoot(t)
	plane, err := startControlPlane(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.stop)
	return plane
}

// apiAddr is where API servers listen: not a loopback address, so that the
// Service default/kubernetes has an endpoint.
func apiAddr() netip.Addr { return netip.MustParseAddr("172.30.0.1") }

func startControlPlane(ctx context.Context) (*controlPlane, error) {
	ns, err := testnet.New("control-plane")
	if err != nil {
		return nil, err
	}
	plane := &controlPlane{ns: ns}
	if err := plane.start(ctx); err != nil {
		plane.stop()
		return nil, err
	}
	return plane, nil
}

func (c *controlPlane) start(ctx context.Context) error {
	if err := c.ns.AddAddr("lo", netip.PrefixFrom(apiAddr(), 32)); err != nil {
		return err
	}
	var err error
	c.cluster, err = cluster.Start(ctx, cluster.Config{NetNS: c.ns.Path(), ListenAddr: apiAddr(), Log: os.Stderr})
	if err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.cluster.Client()); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

func (c *controlPlane) stop() {
	if c.cluster != nil {
		c.cluster.Stop()
	}
	if err := c.ns.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// requireRoot skips what cannot run here; where a skip would hide something it
// fails.
func requireRoot(t *testing.T) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("-short: needs a control plane")
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "" || os.Getenv("REQUIRE_PRIVILEGED") != "":
		t.Fatal("needs root")
	default:
		t.Skip("needs root")
	}
}

// patience bounds every wait for something that is to happen.
const patience = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

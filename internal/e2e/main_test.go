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
	"nftproxy/internal/cluster/controlplane"
	"nftproxy/internal/cluster/controlplane/controlplanetest"
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
	// scenarios is the control plane of scenario files.
	scenarios *controlPlane
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
		f.plane = startForTest(t, planeConfig())
	}
	return f.plane
}

// scenarioPlane returns the one that scenario files share.
func (f *fixture) scenarioPlane(t *testing.T) *controlPlane {
	t.Helper()
	controlplanetest.Require(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.scenarios == nil {
		f.scenarios = startForTest(t, scenarioPlaneConfig())
	}
	return f.scenarios
}

// rest stops the shared control planes, which the next test that wants one starts
// again: where time is measured it would take part.
func (f *fixture) rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, plane := range []**controlPlane{&f.plane, &f.scenarios} {
		if *plane != nil {
			(*plane).stop()
			*plane = nil
		}
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
	*controlplane.Plane
	cluster *cluster.Cluster
	client  *kubernetes.Clientset
	markers int // of scenarios; see world
}

// ownControlPlane starts one for a test that would disturb others: the controllers
// take up to half a minute to notice that an API server is back.
func ownControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	controlplanetest.Require(t)
	plane := startForTest(t, planeConfig())
	t.Cleanup(plane.stop)
	return plane
}

// planeConfig has the API server listen on no loopback address, so that the
// Service default/kubernetes has an endpoint.
func planeConfig() cluster.Config {
	return cluster.Config{ListenAddr: netip.MustParseAddr("172.30.0.1"), Log: os.Stderr}
}

func startForTest(t *testing.T, config cluster.Config) *controlPlane {
	t.Helper()
	plane, err := controlplane.Start(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	return &controlPlane{Plane: plane, cluster: plane.Cluster, client: plane.Client}
}

// connect joins a node with the control plane, by a link of their own.
func (c *controlPlane) connect(t *testing.T, node *testnet.Namespace) {
	t.Helper()
	if err := c.Connect(node); err != nil {
		t.Fatal(err)
	}
}

func (c *controlPlane) stop() {
	if err := c.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// patience bounds every wait for something that is to happen.
const patience = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Package e2e promises that all parts work together: a real etcd, kube-apiserver and
// kube-controller-manager in a network namespace, the nftproxy binary as a child process
// in the namespace of a node, and real connections from pods, from the node and from
// outside.
//
// The tests share one control plane. Each has a node, pods, a client outside and a
// Kubernetes namespace of its own, so that they can run in any order. They wait for
// events: log lines, watches, packets and the kernel's own notices. They need root, and
// -short skips them. They print durations; no test fails for one, but that TestAtOnce
// wants one of 20 changes in the kernel within a second.
package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// shared has what the tests of one run share.
var shared fixture

func TestMain(m *testing.M) {
	code := m.Run()
	shared.close()
	os.Exit(code)
}

// fixture holds what is slow to make. The first test that needs it makes it.
type fixture struct {
	mu       sync.Mutex
	dir      string
	binaries map[string]string // their paths, by name
	plane    *controlPlane
	// scenarios is the control plane for the scenario files.
	scenarios *controlPlane
}

// nftproxy returns the path of the binary, built as `make build` does.
func (f *fixture) nftproxy(t *testing.T) string {
	t.Helper()
	return f.build(t, "nftproxy", "../..", "./cmd/nftproxy")
}

// release builds the command that renders manifests and makes the image, which is in a
// module of its own.
func (f *fixture) release(t *testing.T) string {
	t.Helper()
	return f.build(t, "release", "../../hack/release", ".")
}

// build builds a command once, as make does.
func (f *fixture) build(t *testing.T, name, module, pkg string) string {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if path := f.binaries[name]; path != "" {
		return path
	}
	if f.dir == "" {
		dir, err := os.MkdirTemp("", "nftproxy-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		f.dir, f.binaries = dir, map[string]string{}
	}
	path := filepath.Join(f.dir, name)
	if err := child.Build(path, module, pkg); err != nil {
		t.Fatal(err)
	}
	f.binaries[name] = path
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
	controlplane.Require(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.scenarios == nil {
		f.scenarios = startForTest(t, scenarioPlaneConfig())
	}
	return f.scenarios
}

// stopPlanes stops the shared control planes, so that they take no CPU time from a large
// test. The next test that needs one starts it again.
func (f *fixture) stopPlanes() {
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
	f.stopPlanes()
	if f.dir != "" {
		os.RemoveAll(f.dir)
	}
}

// controlPlane is a running one, in a namespace with a link to each node.
type controlPlane struct {
	*controlplane.Plane
	cluster *controlplane.Cluster
	client  *kubernetes.Clientset
	markers int // of scenarios; see world
}

// ownControlPlane starts a control plane for a test that would disturb others: after a
// restart of the API server the controllers need up to half a minute.
func ownControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	controlplane.Require(t)
	plane := startForTest(t, planeConfig())
	t.Cleanup(plane.stop)
	return plane
}

// planeConfig has the API server listen on no loopback address, so that the
// Service default/kubernetes has an endpoint.
func planeConfig() controlplane.Config {
	return controlplane.Config{ListenAddr: netip.MustParseAddr("172.30.0.1"), Log: os.Stderr}
}

func startForTest(t *testing.T, config controlplane.Config) *controlPlane {
	t.Helper()
	plane, err := controlplane.StartInNamespace(testContext(t), config)
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

// patience bounds every wait for an event that must come.
const patience = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

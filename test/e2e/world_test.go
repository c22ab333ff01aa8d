package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/scenario"
)

// scenarioPlaneConfig has the ServiceCIDRs of the scenarios' fixture, and an
// API server outside of them. The only controller is the one that makes
// ServiceCIDRs ready.
func scenarioPlaneConfig() controlplane.Config {
	return controlplane.Config{
		ListenAddr:   netip.MustParseAddr("172.29.0.1"),
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:172:30::/112")},
		Controllers:  []string{"service-cidr-controller"},
		Log:          os.Stderr,
	}
}

// eachScenario runs a test for each scenario file.
func eachScenario(t *testing.T, test func(*testing.T, *scenario.Scenario)) {
	t.Helper()
	scenario.Each(t, "../scenario/testdata", test)
}

// world has the objects of a scenario on an API server. Nothing else is there but the
// marker. The objects go with the test.
type world struct {
	t     *testing.T
	ctx   context.Context
	plane *controlPlane
	// unchecked objects go past the API server.
	unchecked bool
	objects   map[scenario.Key]scenario.Object
	// stored has the objects that were written past the API server.
	stored map[scenario.Key]bool
}

func newWorld(t *testing.T, plane *controlPlane, s *scenario.Scenario) *world {
	t.Helper()
	w := &world{
		t: t, ctx: testContext(t), plane: plane, unchecked: s.Unchecked,
		objects: map[scenario.Key]scenario.Object{}, stored: map[scenario.Key]bool{},
	}
	t.Cleanup(w.clear)
	w.namespaces(s)
	return w
}

// namespaces makes those that the scenario uses. They stay.
func (w *world) namespaces(s *scenario.Scenario) {
	w.t.Helper()
	wanted := map[string]bool{markerNamespace: true}
	for _, step := range s.Steps {
		for _, o := range step.Objects {
			wanted[o.Namespace] = true
		}
	}
	delete(wanted, "")
	for name := range wanted {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := w.plane.client.CoreV1().Namespaces().Create(w.ctx, namespace, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			w.t.Fatalf("create namespace %s: %v", name, err)
		}
	}
}

// apply makes the objects of a step. Nodes and ServiceCIDRs come first, so that followers
// learn of them before Services and EndpointSlices. The marker comes last.
func (w *world) apply(step *scenario.Step) {
	w.t.Helper()
	for _, key := range step.Deleted {
		w.must(w.remove(key))
	}
	changed := slices.Clone(step.Changed)
	slices.SortStableFunc(changed, func(a, b scenario.Object) int { return rank(a.Kind) - rank(b.Kind) })
	for _, o := range changed {
		w.must(w.put(o))
	}
	w.mark()
}

// rank puts a Service after the ServiceCIDR of its address.
func rank(kind string) int {
	return slices.Index([]string{"ServiceCIDR", "Node", "Service", "EndpointSlice"}, kind)
}

func (w *world) put(o scenario.Object) error {
	if givenByCluster(o) {
		return nil
	}
	replaced := w.objects[o.Key].YAML != ""
	w.objects[o.Key] = o
	if w.stored[o.Key] || !replaced && (w.unchecked || dated(o)) {
		w.stored[o.Key] = true
		return w.plane.cluster.Store(w.ctx, o.YAML)
	}
	return w.plane.cluster.Replace(w.ctx, o.YAML)
}

// givenByCluster says whether an object is the ServiceCIDR that the API server
// makes of its own flags.
func givenByCluster(o scenario.Object) bool {
	return o.Kind == "ServiceCIDR" && strings.Contains(scenario.Fixture(), strings.TrimSpace(o.YAML))
}

// dated says whether an object has its time of creation: the API server would set the
// present time.
func dated(o scenario.Object) bool {
	var head struct {
		Metadata struct{ CreationTimestamp string }
	}
	return yaml.Unmarshal([]byte(o.YAML), &head) == nil && head.Metadata.CreationTimestamp != ""
}

func (w *world) remove(key scenario.Key) error {
	o, found := w.objects[key]
	if !found {
		return fmt.Errorf("%s is the API server's own", key)
	}
	delete(w.objects, key)
	stored := w.stored[key]
	delete(w.stored, key)
	// The API server deletes a Service also if it was stored past it. Every three minutes it allocates the ports of all
	// Services, and it would take it nine to see that nobody has this one any more.
	if stored && key.Kind != "Service" {
		return w.plane.cluster.Unstore(w.ctx, o.YAML)
	}
	return w.plane.cluster.Delete(w.ctx, o.YAML)
}

// clear removes all objects.
func (w *world) clear() {
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(context.Background(), patience)
	defer cancel()
	for key := range w.objects {
		// The list also has the objects that were refused.
		if err := w.remove(key); err != nil && !apierrors.IsNotFound(err) {
			w.t.Errorf("clean up: %v", err)
		}
	}
}

// markerNamespace has a Service and its EndpointSlices that change with every step. Their
// addresses in the kernel show that a proxy knows all earlier changes, kind by kind and
// family by family.
const markerNamespace = "marker"

const markerManifest = `
apiVersion: v1
kind: Service
metadata: {name: marker, namespace: marker}
spec:
  clusterIP: 172.30.255.254
  clusterIPs: [172.30.255.254, "fd00:172:30::fffe"]
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  externalIPs: [%[1]s, "%[2]s"]
  ports: [{name: marker, port: 9, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: marker-4, namespace: marker, labels: {kubernetes.io/service-name: marker}}
addressType: IPv4
ports: [{name: marker, port: 9, protocol: TCP}]
endpoints: [{addresses: [%[3]s]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: marker-6, namespace: marker, labels: {kubernetes.io/service-name: marker}}
addressType: IPv6
ports: [{name: marker, port: 9, protocol: TCP}]
endpoints: [{addresses: ["%[4]s"]}]
`

// nextMarker returns the marker's next addresses: of the Service and of the endpoints,
// each by family (RFC 2544's range, which no scenario uses).
func (w *world) nextMarker() []netip.Addr {
	n := w.plane.markers + 1
	text := func(format string) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, n>>8, n&255)) }
	return []netip.Addr{text("198.18.%d.%d"), text("fd00:198:18::%x:%x"), text("198.19.%d.%d"), text("fd00:198:19::%x:%x")}
}

func (w *world) mark() {
	w.t.Helper()
	next := w.nextMarker()
	w.plane.markers++
	w.must(w.plane.cluster.Replace(w.ctx, fmt.Sprintf(markerManifest, next[0], next[1], next[2], next[3])))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

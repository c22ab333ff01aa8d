package watch

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"nftproxy/model/service"
	"nftproxy/test/lib/controlplane"
)

// annotationValues are tried with each annotation: each is good for some and bad for most.
func annotationValues() []string {
	many := func(n int, word string) string { return strings.TrimSuffix(strings.Repeat(word+",", n), ",") }
	return append(strings.Fields(`random client flow hsah Client off report on onn drop pass cluster passs Default PreserveDuringTermination
		keep cut cut-after cut-after= cut-after=30s cut-after=1h cut-after=1h0m1s cut-after=0s cut-after=-30s cut-after=1500ms cut-after=2000ms
		refuse refused hold Hold hold= hold=30s hold=2m hold=2m1s hold=0s hold=1500ms hold=30 hold=.5m
		cut-after=30 cut-after=.5m cut-after=30s30s cut-after=+30s cut-after=99999999999h
		1s 30s 60s 1m 5m 10m 1h 60m 3600s 3601s 72h 168h 120h 1.0h +1m 1m0s 0.5s 0 30 -1s 1e3s 99999999999h 1m1
		5s,15s 15s,30s 5s,5s 10s,30s 30s,10m 30s,10s 30s,2m 60s,1m 10m,10m 24h,24h 30s, ,30s 30s,10m,5m 10s,24h
		none 192.0.2.0/24 192.0.2.1/24 192.0.2.1 2001:db8::/32 ::ffff:192.0.2.0/120 192.0.2.0/33 192.0.2.0/024 fe80::1%eth0/64
		192.0.2.0/24,2001:db8::/32 192.0.2.0/24,all , 0.0.0.0/0 192.0.02.0/24
		53/UDP 53/udp 5060/TCP,10000-20000/UDP 1-65535/SCTP 0/TCP 65536/TCP 20-10/TCP 10-10/TCP 53 53/ICMP /TCP 1-2-3/TCP 0053/UDP 5-/TCP
		+5/TCP 53/TCP/UDP 000000053/UDP 00053-000054/UDP
		0 7 007 65535 65536 +5 -0 NaN 1.5 0x10 1_000 000000000000007 99999999999999999999999`),
		"", " ", " none ", " 30s, 10m ", " 1h", " 30s", " 53/UDP , 54/TCP ", "192.0.2.0/24, 2001:db8::/32,", " 5", " client",
		"cut-after= 30s", "\u00a01h", "1h\n", "30s\n",
		"client\n", "53/UDP\n", "7\n", many(16, "53/UDP"), many(17, "53/UDP"), many(1000, "192.0.2.0/24"),
		many(1001, "192.0.2.0/24"))
}

// TestValidateOptions: with the policy of deploy/components/validate-options, the API server refuses each annotation
// that nftproxy would report as a problem, and no other; and on an object that has a bad one already, it refuses
// nothing else.
//
// By make test-skew it runs on API servers of several releases. One of 1.29 has no such policies, and says so.
func TestValidateOptions(t *testing.T) {
	onEachRelease(t, testValidateOptions)
}

// onEachRelease runs a test with the API server of each release that make test-skew names, or else of the newest.
func onEachRelease(t *testing.T, test func(t *testing.T, plane *controlplane.Plane, release string)) {
	controlplane.Require(t)
	releases := controlplane.Skew()
	if len(releases) == 0 {
		releases = []string{controlplane.Newest}
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			plane, err := controlplane.StartInNamespace(t.Context(), controlplane.Config{
				ListenAddr: netip.MustParseAddr("172.30.0.1"), Controllers: []string{"service-cidr-controller"},
			}.Release(release))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := plane.Stop(); err != nil {
					t.Error(err)
				}
			})
			version, is, err := plane.IsRelease(release)
			if t.Logf("the API server is %s", version); err != nil || !is {
				t.Fatalf("the API server is %s, want %s; error %v", version, release, err)
			}
			test(t, plane, release)
		})
	}
}

func testValidateOptions(t *testing.T, plane *controlplane.Plane, release string) {
	ctx := t.Context()
	server := policyServer{T: t, Interface: plane.Client}
	old := server.service(map[string]string{"nftproxy.io/balance": "hsah"})
	if _, err := server.CoreV1().Services("default").Create(ctx, old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	policy, err := os.ReadFile("../deploy/components/validate-options/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	err = plane.Cluster.Apply(ctx, string(policy))
	if release == "1.29" {
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			t.Errorf("an API server without these policies: %v", err)
		}
		t.Logf("the policy is refused: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	server.awaitPolicies()
	server.compareAll()
	server.checkOld()
}

// compareAll tries each value with each key.
func (s policyServer) compareAll() {
	keys := []string{"nftproxy.io/balence", "nftproxy.io/weight", "example.com/balance", "service.kubernetes.io/udp",
		"nftproxy/balance", "nftproxy.com/eject", "x.nftproxy.io/slow-start", "nftproxy.example.com/owner",
		ciliumAlgorithm, service.SourcesPolicyAnnotation}
	others := len(keys)
	for key := range service.AllOptions() {
		keys = append(keys, service.OptionAnnotation(key))
	}
	for _, key := range keys {
		good, bad := 0, 0
		for _, value := range annotationValues() {
			problems := slices.DeleteFunc(convertService(s.service(map[string]string{key: value})).problems,
				func(p Problem) bool {
					return strings.Contains(p.Error(), "are closed to all clients") // it is about the families of the Service
				})
			err := s.createService(map[string]string{key: value})
			if s.compare(key, value, problems, err) {
				bad++
			} else {
				good++
			}
		}
		if _, known := service.OptionKey(key); known && slices.Contains(keys[others:], key) && (good == 0 || bad == 0) {
			s.Errorf("%s: %d values are good and %d bad", key, good, bad)
		}
	}
	for _, key := range []string{"nftproxy.io/weight", "nftproxy.io/weigth", "nftproxy.io/balance", "example.com/weight",
		"nftproxy/weight", "nftproxy.com/weight"} {
		for _, value := range annotationValues() {
			problems := convertSlice(s.slice(map[string]string{key: value})).problems
			s.compare("EndpointSlice "+key, value, problems, s.createSlice(map[string]string{key: value}))
		}
	}
}

type policyServer struct {
	*testing.T
	kubernetes.Interface
}

func (s policyServer) service(annotations map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "default", Annotations: annotations},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.77", Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}},
	}
}

func (s policyServer) createService(annotations map[string]string) error {
	o := s.service(annotations)
	o.Name, o.Spec.ClusterIP = "new", ""
	_, err := s.CoreV1().Services("default").Create(s.Context(), o,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (s policyServer) slice(annotations map[string]string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Annotations: annotations,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}}},
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(80)), Name: new(""), Protocol: new(corev1.ProtocolTCP)}},
	}
}

func (s policyServer) createSlice(annotations map[string]string) error {
	_, err := s.DiscoveryV1().EndpointSlices("default").Create(s.Context(), s.slice(annotations),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// awaitPolicies asks until the API server has compiled both. It follows them as anybody does, and says nowhere when a
// policy is in force.
func (s policyServer) awaitPolicies() {
	s.Helper()
	bad := map[string]string{"nftproxy.io/weight": "heavy", "nftproxy.io/balence": "x"}
	inForce := func(context.Context) (bool, error) {
		return s.createService(bad) != nil && s.createSlice(bad) != nil, nil
	}
	if wait.PollUntilContextTimeout(s.Context(), 50*time.Millisecond, time.Minute, true, inForce) != nil {
		s.Fatal("the policies are not in force")
	}
}

// compare returns whether the value is bad.
func (s policyServer) compare(key, value string, problems []Problem, err error) (bad bool) {
	s.Helper()
	if err != nil && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy")) {
		s.Errorf("%s: %.60q: %v", key, value, err)
	}
	if (err != nil) != (len(problems) > 0) {
		s.Errorf("%s: %.60q: nftproxy reports %v, and the API server %v", key, value, problems, err)
	}
	overflow := strings.Contains(value, "99999999999h") // CEL gives up
	if err != nil && (strings.Contains(err.Error(), "resulted in error") && !overflow || !strings.Contains(err.Error(),
		"nftproxy.io")) && !strings.Contains(err.Error(), service.UDPHandlingAnnotation) {
		s.Errorf("%s: %.60q: the message is of no use: %v", key, value, err)
	}
	return err != nil
}

// checkOld changes a Service whose annotation was there before the policy.
func (s policyServer) checkOld() {
	services := s.CoreV1().Services("default")
	for change, refused := range map[string]bool{"example.com/a=b": false, "nftproxy.io/eject=on": false,
		"nftproxy.io/eject=onn": true, "nftproxy.io/balance=hash": true, "nftproxy.io/balance=client": false} {
		o, err := services.Get(s.Context(), "old", metav1.GetOptions{})
		if err != nil {
			s.Fatal(err)
		}
		key, value, _ := strings.Cut(change, "=")
		o.Annotations = maps.Clone(o.Annotations)
		o.Annotations[key] = value
		dry := metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}
		if _, err = services.Update(s.Context(), o, dry); (err != nil) != refused {
			s.Errorf("%s: %s", change, fmt.Sprint(err))
		}
	}
}

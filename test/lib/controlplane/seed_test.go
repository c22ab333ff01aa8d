package controlplane

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

func seedService(name string, clusterIPs ...string) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.ServiceSpec{
			ClusterIPs:     clusterIPs,
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			Ports:          []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if len(clusterIPs) > 0 {
		service.Spec.ClusterIP = clusterIPs[0]
	}
	return service
}

func seedSlice(name string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.1.2"}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
	}
}

// TestSeed compares a seeded object with one that the API server made from the same
// manifest.
func TestSeed(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	client, err := kubernetes.NewForConfig(c.Client())
	if err != nil {
		t.Fatal(err)
	}
	services, endpointSlices := client.CoreV1().Services("default"), client.DiscoveryV1().EndpointSlices("default")
	seeded := seedService("seeded", "10.96.1.1", "fd00:10:96::1:1")
	if err := c.Seed(ctx, seeded, seedSlice("seeded")); err != nil {
		t.Fatal(err)
	}
	made := seedService("made", "10.96.1.2", "fd00:10:96::1:2")
	if _, err := services.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := endpointSlices.Create(ctx, seedSlice("made"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	ignored := cmp.Options{
		cmpopts.IgnoreFields(metav1.ObjectMeta{}, "Name", "UID", "CreationTimestamp", "ResourceVersion", "ManagedFields"),
		cmpopts.IgnoreFields(corev1.ServiceSpec{}, "ClusterIP", "ClusterIPs"),
	}
	wantService, err := services.Get(ctx, "made", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gotService, err := services.Get(ctx, "seeded", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantService, gotService, ignored); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(seeded.Spec.ClusterIPs, gotService.Spec.ClusterIPs); diff != "" {
		t.Errorf("cluster IPs (-want +got):\n%s", diff)
	}
	wantSlice, err := endpointSlices.Get(ctx, "made", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gotSlice, err := endpointSlices.Get(ctx, "seeded", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantSlice, gotSlice, ignored); diff != "" {
		t.Errorf("slice (-want +got):\n%s", diff)
	}

	_, err = services.Create(ctx, seedService("thief", "10.96.1.1", "fd00:10:96::1:3"), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "already allocated") {
		t.Errorf("create a service with a seeded address: got %v, want that it is already allocated", err)
	}
	if err := services.Delete(ctx, "seeded", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete a seeded service: %v", err)
	}
}

func TestSeedErrors(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	slice := seedSlice("twice")
	if err := c.Seed(ctx, slice); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"twice":       {c.Seed(ctx, slice), "/registry/endpointslices/default/twice: it exists already"},
		"no address":  {c.Seed(ctx, seedService("web")), "service default/web has no cluster IPs"},
		"bad address": {c.Seed(ctx, seedService("web", "10.96.0.300")), "service default/web: ParseAddr"},
		"other type":  {c.Seed(ctx, &corev1.Pod{}), "*v1.Pod"},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("%s: got error %v, want it to mention %q", name, test.err, test.want)
		}
	}
}

// TestWriter: the API server returns an object that was written past it, and sends it to
// its watchers. The object keeps its UID, and can be updated through the API server
// afterwards.
func TestWriter(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	client, err := kubernetes.NewForConfig(c.Client())
	if err != nil {
		t.Fatal(err)
	}
	endpointSlices := client.DiscoveryV1().EndpointSlices("default")
	slice := seedSlice("moving")
	slice.UID = "of-its-own"
	if err := c.Seed(ctx, slice); err != nil {
		t.Fatal(err)
	}
	before, err := endpointSlices.Get(ctx, "moving", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := endpointSlices.Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()

	w := c.NewWriter()
	defer w.Close()
	slice.Endpoints[0].Addresses[0] = "10.0.1.3"
	fresh := seedSlice("fresh")
	if err := errors.Join(w.Put(ctx, slice), w.Put(ctx, fresh)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		event watch.EventType
		name  string
		addr  string
	}{{watch.Modified, "moving", "10.0.1.3"}, {watch.Added, "fresh", "10.0.1.2"}} {
		select {
		case e := <-events.ResultChan():
			got := e.Object.(*discoveryv1.EndpointSlice)
			if e.Type != want.event || got.Name != want.name || got.Endpoints[0].Addresses[0] != want.addr {
				t.Errorf("%s of %+v, want %+v", e.Type, got, want)
			}
			if want.name == "moving" && got.UID != before.UID {
				t.Errorf("UID %s, then %s", before.UID, got.UID)
			}
		case <-ctx.Done():
			t.Fatal("no event")
		}
	}
	slice.Endpoints[0].Addresses[0] = "10.0.1.4"
	if _, err := endpointSlices.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		t.Errorf("update through the API server: %v", err)
	}
}

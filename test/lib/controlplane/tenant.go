package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/utils/ptr"
)

// Worst is the largest Service by one option that the limits of docs/tenants.md admit. Its elements are
// (addresses + 1) x ports x (endpoints + 1), and for weights and hashes more.
type Worst struct {
	Option                      string
	ports, endpoints, addresses int
	// set makes a version of the objects of the first one.
	set func(version int, s *corev1.Service, slices []*discoveryv1.EndpointSlice)
}

// WorstObjects lists those of some options, or of all.
func WorstObjects(options ...string) ([]Worst, error) {
	all := worstObjects()
	if len(options) == 0 {
		return all, nil
	}
	var list []Worst
	for _, option := range options {
		i := slices.IndexFunc(all, func(w Worst) bool { return w.Option == option })
		if i < 0 {
			return nil, fmt.Errorf("no object for %q", option)
		}
		list = append(list, all[i])
	}
	return list, nil
}

func worstObjects() []Worst {
	annotation := func(key string, values ...string) func(int, *corev1.Service, []*discoveryv1.EndpointSlice) {
		return func(version int, s *corev1.Service, _ []*discoveryv1.EndpointSlice) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, "nftproxy.io/"+key, values[version%len(values)])
		}
	}
	return []Worst{
		{"none, all elements", 256, 1022, 0, func(version int, _ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
			for _, slice := range slices {
				for i := range slice.Ports {
					*slice.Ports[i].Port += int32(version % 2)
				}
			}
		}},
		{"balance", 16, 327, 0, annotation("balance", "random", "client")},
		{"balance, all elements", 256, 1022, 0, annotation("balance", "random", "client")},
		{"weight", 16, 327, 0, func(version int, _ *corev1.Service, slices []*discoveryv1.EndpointSlice) {
			metav1.SetMetaDataAnnotation(&slices[0].ObjectMeta, "nftproxy.io/weight", []string{"7", "93"}[version%2])
		}},
		{"slow-start", 256, 254, 0, func(version int, s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, "nftproxy.io/slow-start", "30s")
			if version%2 == 1 {
				slices[0].Endpoints = nil
			}
		}},
		{"port-ranges", 1, 170, 500, annotation("port-ranges", ranges(1000), ranges(1050))},
		{"source-ranges", 128, 14, 127, annotation("source-ranges", sources("11.0.0.0"), sources("12.0.0.0"))},
		{"tcp-established-timeout", 128, 14, 127, annotation("tcp-established-timeout", "1m", "5m", "10m", "30m", "1h",
			"2h", "6h", "12h", "24h", "72h", "168h")},
		{"affinity", 500, 522, 0, func(version int, s *corev1.Service, _ []*discoveryv1.EndpointSlice) {
			if s.Spec.SessionAffinity = corev1.ServiceAffinityNone; version%2 == 1 {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			}
		}},
	}
}

// ranges are as many ranges of ports as one Service may have, from a port on.
func ranges(from int) string {
	var list []string
	for i := range 16 {
		list = append(list, fmt.Sprintf("%d-%d/%s", from+i*100, from+i*100+40, []string{"TCP", "UDP"}[i%2]))
	}
	return strings.Join(list, ",")
}

// sources are as many source ranges as one Service may have, from an address on.
func sources(from string) string {
	var list []string
	for i := range 1000 {
		list = append(list, netip.PrefixFrom(Address(from, i*512), 24).String())
	}
	return strings.Join(list, ",")
}

// TenantNamespace has the Service of each worst object, one at a time. It is the Service's name, too.
const TenantNamespace = "tenant"

// worstIP is the n-th address of the worst object: an external one or that of an endpoint.
func worstIP(n int) netip.Addr { return Address("10.170.0.0", n) }

// Tenant is a worst object on an API server.
type Tenant struct {
	Worst
	// Version is the number of changes so far.
	Version int

	services       corev1client.ServiceInterface
	endpointSlices discoveryv1client.EndpointSliceInterface
	// first is the objects without what set does, last are those of now.
	first, last objects
}

// objects are the Service and its EndpointSlices.
type objects struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

func (o objects) copy() objects {
	made := objects{service: o.service.DeepCopy()}
	for _, s := range o.slices {
		made.slices = append(made.slices, s.DeepCopy())
	}
	return made
}

// NewTenant writes the first version. Each of two slices has half of the endpoints.
func (c *Cluster) NewTenant(ctx context.Context, w Worst) (*Tenant, error) {
	config := c.Client()
	config.ContentType = runtime.ContentTypeProtobuf // the least work for the API server
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	t := &Tenant{Worst: w, services: client.CoreV1().Services(TenantNamespace),
		endpointSlices: client.DiscoveryV1().EndpointSlices(TenantNamespace), first: w.objects()}
	t.last = t.first.copy()
	w.set(0, t.last.service, t.last.slices)
	made, err := t.services.Create(ctx, t.last.service, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range []objects{t.first, t.last} {
		o.service.Spec.ClusterIP, o.service.Spec.ClusterIPs = made.Spec.ClusterIP, made.Spec.ClusterIPs
	}
	for _, slice := range t.last.slices {
		if _, err := t.endpointSlices.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return nil, errors.Join(err, t.Remove(ctx))
		}
	}
	return t, nil
}

// objects are those without what set does.
func (w Worst) objects() objects {
	const name = TenantNamespace
	first := objects{Service(name, netip.IPv4Unspecified()), []*discoveryv1.EndpointSlice{Slice(name, name+"-0"),
		Slice(name, name+"-1")}}
	spec := &first.service.Spec
	first.service.Namespace, spec.ClusterIPs, spec.Ports = TenantNamespace, nil, nil
	for i := range w.addresses {
		spec.ExternalIPs = append(spec.ExternalIPs, worstIP(1<<16+i).String())
	}
	for n, slice := range first.slices {
		slice.Namespace, slice.UID, slice.Ports = TenantNamespace, "", nil
		for i := n; i < w.endpoints; i += len(first.slices) {
			slice.Endpoints = append(slice.Endpoints, Endpoint(worstIP(i), nil))
		}
	}
	for i := range w.ports {
		name, port := fmt.Sprintf("p%d", i), int32(8000+2*i)
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: name, Port: int32(80 + i), Protocol: corev1.ProtocolTCP,
			TargetPort: intstr.FromInt32(port)})
		for _, slice := range first.slices {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: ptr.To(corev1.ProtocolTCP),
				Port: ptr.To(port)})
		}
	}
	return first
}

// Change writes another version each period, until the context ends.
func (t *Tenant) Change(ctx context.Context, period time.Duration) error {
	for ticks := time.NewTicker(period); ; {
		select {
		case <-ctx.Done():
			ticks.Stop()
			return nil
		case <-ticks.C:
		}
		t.Version++
		if err := t.write(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// write writes what differs from the last version.
func (t *Tenant) write(ctx context.Context) error {
	next := t.first.copy()
	t.set(t.Version, next.service, next.slices)
	if !apiequality.Semantic.DeepEqual(next.service, t.last.service) {
		if _, err := t.services.Update(ctx, next.service, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	for i, slice := range next.slices {
		if apiequality.Semantic.DeepEqual(slice, t.last.slices[i]) {
			continue
		}
		if _, err := t.endpointSlices.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	t.last = next
	return nil
}

// Remove deletes the objects.
func (t *Tenant) Remove(ctx context.Context) error {
	return errors.Join(t.services.Delete(ctx, TenantNamespace, metav1.DeleteOptions{}),
		t.endpointSlices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

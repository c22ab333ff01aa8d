package controlplane

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// seedConnections is how many writes to etcd are under way at once.
const seedConnections = 16

// Seed stores Services and EndpointSlices in etcd in the form in which the API server
// stores them, past the API server. The API server then serves them and tells its
// watchers, as if it had written them itself. The reason is time: for each new Service
// kube-apiserver 1.36 takes time in proportion to the cluster IPs in use, since its
// allocator counts them twice, for metrics. 10,000 Services take a minute or two through
// the API, and seconds this way.
//
// Nothing validates, defaults or allocates. A Service must have its ClusterIPs, in the
// order of its families. Its node ports stay free in the API server's eyes. Its namespace
// must exist. Managed fields are missing. An object may bring its UID. An object that
// exists already is an error; earlier ones may have been written by then.
func (c *Cluster) Seed(ctx context.Context, objects ...runtime.Object) error {
	client := c.newEtcdClient()
	defer client.close()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(seedConnections)
	for _, object := range objects {
		entries, err := stored(object)
		if err != nil {
			return fmt.Errorf("seed: %w", err)
		}
		// In this order: no client may see a service whose addresses another one could
		// still get.
		group.Go(func() error {
			for _, e := range entries {
				if err := client.putNew(ctx, e); err != nil {
					return fmt.Errorf("seed %s: %w", e.key, err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// Writer puts EndpointSlices into etcd past the API server, over connections that stay
// open. It writes several times as many as the API server could in the same time. The API
// server serves them and tells its watchers, as if it had written them itself.
type Writer struct{ client *etcdClient }

// NewWriter makes a Writer, which must be closed. Its methods may be called from several goroutines.
func (c *Cluster) NewWriter() *Writer { return &Writer{c.newEtcdClient()} }

// Close closes the connections.
func (w *Writer) Close() { w.client.close() }

// Put stores a slice, new or in place of another one. Nothing validates or defaults it.
// To stay the same object, it must have the UID of the earlier one.
func (w *Writer) Put(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	entries, err := stored(slice)
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	for _, e := range entries {
		if err := w.client.put(ctx, e); err != nil {
			return fmt.Errorf("put %s: %w", e.key, err)
		}
	}
	return nil
}

// entry is one key of etcd with the object under it.
type entry struct {
	key   string
	value []byte
}

// stored returns what the API server would write for an object. It leaves the object as
// it is.
func stored(object runtime.Object) ([]entry, error) {
	switch o := object.(type) {
	case *corev1.Service:
		return storedService(o.DeepCopy())
	case *discoveryv1.EndpointSlice:
		o = o.DeepCopy()
		complete(&o.ObjectMeta)
		o.Generation = 1
		e, err := encode("endpointslices/"+o.Namespace+"/"+o.Name, discoveryv1.SchemeGroupVersion, o)
		return []entry{e}, err
	default:
		return nil, fmt.Errorf("objects of type %T are not supported", object)
	}
}

func storedService(service *corev1.Service) ([]entry, error) {
	name := service.Namespace + "/" + service.Name
	if len(service.Spec.ClusterIPs) == 0 {
		return nil, fmt.Errorf("service %s has no cluster IPs", name)
	}
	complete(&service.ObjectMeta)
	service.Spec.ClusterIP = service.Spec.ClusterIPs[0]
	service.Spec.IPFamilies = nil
	var entries []entry
	for _, text := range service.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("service %s: %w", name, err)
		}
		family := corev1.IPv4Protocol
		if addr.Is6() {
			family = corev1.IPv6Protocol
		}
		service.Spec.IPFamilies = append(service.Spec.IPFamilies, family)
		e, err := storedAddress(addr, family, service)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(service.Spec.IPFamilies) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	service.Spec.IPFamilyPolicy = &policy
	e, err := encode("services/specs/"+name, corev1.SchemeGroupVersion, service)
	return append(entries, e), err
}

// storedAddress is the claim of a service to a cluster IP. Without it the API server's
// repair loop would complain, and its allocator would give the address to another
// service.
func storedAddress(addr netip.Addr, family corev1.IPFamily, service *corev1.Service) (entry, error) {
	claim := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: addr.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(family),
			networkingv1.LabelManagedBy:       "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: service.Namespace, Name: service.Name,
		}},
	}
	complete(&claim.ObjectMeta)
	return encode("ipaddresses/"+claim.Name, networkingv1.SchemeGroupVersion, claim)
}

// complete sets the fields that the API server sets on every new object, where they are
// missing.
func complete(m *metav1.ObjectMeta) {
	if m.UID == "" {
		m.UID = uuid.NewUUID()
	}
	if m.CreationTimestamp.IsZero() {
		m.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	}
}

// registry is the prefix of the API server's keys in etcd.
const registry = "/registry/"

// encode writes an object in the API server's default form: protobuf, with an envelope
// that names its type.
func encode(key string, version runtime.GroupVersioner, object runtime.Object) (entry, error) {
	value, err := Encode(object, version)
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w", key, err)
	}
	return entry{key: registry + key, value: value}, nil
}

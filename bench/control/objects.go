package control

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const (
	namespace   = "default"
	servicePort = 80
	targetPort  = 8080
	// maxSlice is how many endpoints the EndpointSlice controller puts into one
	// slice by default.
	maxSlice = 100
	// otherNodes are where endpoints run, in turn.
	otherNodes = 100
	// firstNodePort is that of the first service that has one. All lie below
	// what the kernel gives to clients.
	firstNodePort = 20_000
)

// NodePortRange is what an API server has to be started with for as many
// services with node ports as Sizes have.
const NodePortRange = "20000-32767"

// address counts on from a first address.
func address(first string, n int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// The addresses of services, endpoints, ingress, and of endpoints that come
// later. No two ranges overlap for any size that Find accepts, and none of them
// with those of package testnet.
func clusterIP(service int) netip.Addr    { return address("10.100.0.0", service) }
func extraIP(n int) netip.Addr            { return address("10.102.0.0", n) }
func endpointIP(n int) netip.Addr         { return address("10.128.0.0", n) }
func laterIP(n int) netip.Addr            { return address("10.160.0.0", n) }
func ingressIP(service, n int) netip.Addr { return address("198.18.0.0", n<<16+service) }

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

func sliceName(service string, n int) string { return fmt.Sprintf("%s-%03d", service, n) }

// newService is a Service without selector.
func newService(name string, ip netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIPs: []string{ip.String()},
			// What the API server would fill in, as the objects go past it.
			SessionAffinity:       corev1.ServiceAffinityNone,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
			Ports: []corev1.ServicePort{{
				Name: "http", Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(targetPort),
			}},
		},
	}
}

// service is the service of a number.
func (s Size) service(i int) *corev1.Service {
	o := newService(serviceName(i), clusterIP(i))
	if s.LoadBalancer {
		o.Spec.Type = corev1.ServiceTypeLoadBalancer
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		o.Spec.AllocateLoadBalancerNodePorts = ptr.To(true)
		o.Spec.Ports[0].NodePort = int32(firstNodePort + i)
		for n := range 2 {
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
				IP: ingressIP(i, n).String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP),
			})
		}
	}
	return o
}

// newSlice is an EndpointSlice for a service.
func newSlice(service string, n int, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name := sliceName(service, n)
	return &discoveryv1.EndpointSlice{
		// With a UID it stays the same object when it is written past the API
		// server.
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "bench.nftproxy",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](targetPort),
		}},
	}
}

func newEndpoint(a netip.Addr, node int) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{a.String()}, NodeName: ptr.To(fmt.Sprintf("other-%d", node%otherNodes)),
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
	}
}

// slices are the EndpointSlices of a service, whose first endpoint has the given
// number among all.
func (s Size) slices(service, first int) []*discoveryv1.EndpointSlice {
	var list []*discoveryv1.EndpointSlice
	n := s.endpointsOf(service)
	for at := 0; at < n; at += maxSlice {
		var endpoints []discoveryv1.Endpoint
		for j := at; j < min(at+maxSlice, n); j++ {
			endpoints = append(endpoints, newEndpoint(endpointIP(first+j), service+j))
		}
		list = append(list, newSlice(serviceName(service), at/maxSlice, endpoints...))
	}
	return list
}

// objects calls a function with some thousand objects at a time, until all were
// there: those of a large size would fill the memory.
func (s Size) objects(do func([]runtime.Object) error) error {
	const atOnce = 2_000
	var objects []runtime.Object
	first := 0
	for i := range s.Services {
		objects = append(objects, s.service(i))
		for _, slice := range s.slices(i, first) {
			objects = append(objects, slice)
		}
		first += s.endpointsOf(i)
		if len(objects) >= atOnce || i == s.Services-1 {
			if err := do(objects); err != nil {
				return err
			}
			objects = nil
		}
	}
	return nil
}

package control

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"nftproxy/test/lib/controlplane"
)

const (
	// maxSlice is how many endpoints the EndpointSlice controller puts into one slice by
	// default.
	maxSlice = 100
	// otherNodes are where endpoints run, in turn.
	otherNodes = 100
)

// The addresses of Services, endpoints, ingress, and endpoints that are added later. The
// ranges do not overlap for any size that Find accepts, nor with the addresses of package
// testnet.
func clusterIP(service int) netip.Addr    { return controlplane.Address("10.100.0.0", service) }
func endpointIP(n int) netip.Addr         { return controlplane.Address("10.128.0.0", n) }
func laterIP(n int) netip.Addr            { return controlplane.Address("10.160.0.0", n) }
func ingressIP(service, n int) netip.Addr { return controlplane.Address("198.18.0.0", n<<16+service) }

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

func sliceName(service string, n int) string { return fmt.Sprintf("%s-%03d", service, n) }

// service returns the Service with a number.
func (s Size) service(i int) *corev1.Service {
	o := controlplane.Service(serviceName(i), clusterIP(i))
	if s.LoadBalancer {
		controlplane.SetNodePort(o, corev1.ServiceTypeLoadBalancer, int32(controlplane.FirstNodePort+i))
		o.Spec.AllocateLoadBalancerNodePorts = ptr.To(true)
		for n := range 2 {
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
				IP: ingressIP(i, n).String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP),
			})
		}
	}
	return o
}

// newSlice returns an EndpointSlice of a Service, by its number.
func newSlice(service string, n int, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return controlplane.Slice(service, sliceName(service, n), endpoints...)
}

func newEndpoint(a netip.Addr, node int) discoveryv1.Endpoint {
	return controlplane.Endpoint(a, ptr.To(fmt.Sprintf("other-%d", node%otherNodes)))
}

// slices returns the EndpointSlices of a Service. first is the number of its first
// endpoint among all endpoints.
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

// objects passes all objects to a function, some thousand at a time: those of a large
// size would fill the memory.
func (s Size) objects(do func([]runtime.Object) error) error {
	const atOnce = 2_000
	var list []runtime.Object
	first := 0
	for i := range s.Services {
		list = append(list, s.service(i))
		for _, slice := range s.slices(i, first) {
			list = append(list, slice)
		}
		first += s.endpointsOf(i)
		if len(list) >= atOnce || i == s.Services-1 {
			if err := do(list); err != nil {
				return err
			}
			list = nil
		}
	}
	return nil
}

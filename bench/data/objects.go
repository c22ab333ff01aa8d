package data

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
	// endpointCount is that of each service that is measured.
	endpointCount = 10
	// everyPort is which services have a node port, beside those that are
	// measured: one in ten.
	everyPort = 10
	// maxServices is how many have addresses and node ports.
	maxServices = 60_000
)

// The addresses of services: by their number, and of those with session affinity by
// the number of services at the time when they were created.
func clusterIP(service int) netip.Addr   { return controlplane.Address("10.100.0.1", service) }
func affinityIP(services int) netip.Addr { return controlplane.Address("10.102.0.0", services) }

// otherIP is the endpoint of a service that is there for its number only.
func otherIP(service int) netip.Addr { return controlplane.Address("10.128.0.0", service) }

// endpointIPs are the addresses of the pod that answers for the others.
func endpointIPs() []netip.Addr {
	var list []netip.Addr
	for n := range endpointCount {
		list = append(list, controlplane.Address("10.244.0.100", n))
	}
	return list
}

// nodePort is that of a service: the ports of those whose number is a multiple
// of ten come first, then those of others, of which only the last of a size has
// one.
func nodePort(service int) uint16 {
	const first, others = controlplane.FirstNodePort, 26_500
	if service%everyPort == 0 {
		return uint16(first + service/everyPort)
	}
	return uint16(others + service/everyPort)
}

// newSlice is the EndpointSlice of a service, with ready endpoints.
func newSlice(service string, ips ...netip.Addr) *discoveryv1.EndpointSlice {
	s := controlplane.Slice(service, service)
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, controlplane.Endpoint(ip, nil))
	}
	return s
}

// service returns the service with a number, and its slice. A measured service has its
// endpoints in the pod that answers, and a node port.
func service(i int, measured bool) []runtime.Object {
	name := fmt.Sprintf("service-%05d", i)
	o := controlplane.Service(name, clusterIP(i))
	if measured || i%everyPort == 0 {
		controlplane.SetNodePort(o, corev1.ServiceTypeNodePort, int32(nodePort(i)))
	}
	if measured {
		return []runtime.Object{o, newSlice(name, endpointIPs()...)}
	}
	return []runtime.Object{o, newSlice(name, otherIP(i))}
}

// affinityService is the one that is created when there are so many services.
func affinityService(services int) []runtime.Object {
	name := fmt.Sprintf("affinity-%05d", services)
	o := controlplane.Service(name, affinityIP(services))
	o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(corev1.DefaultClientIPServiceAffinitySeconds)},
	}
	return []runtime.Object{o, newSlice(name, endpointIPs()...)}
}

// steps are the objects that make `to` services out of `from`, to be created one
// step after the other: the first, those between, and the last. At any number
// there is beside the services one with session affinity for the first and each last.
func steps(from, to int) [][]runtime.Object {
	var first, between, last []runtime.Object
	if from == 0 {
		first = append(service(0, true), affinityService(1)...)
	}
	for i := max(from, 1); i < to-1; i++ {
		between = append(between, service(i, false)...)
	}
	if to > max(from, 1) {
		last = append(service(to-1, true), affinityService(to)...)
	}
	return [][]runtime.Object{first, between, last}
}

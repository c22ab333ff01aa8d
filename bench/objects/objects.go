// Package objects promises Services and EndpointSlices as an API server would
// have stored them, with all that it fills in, so that they can be written past
// it.
//
// It decides neither how many there are nor which names and addresses they have.
package objects

import (
	"encoding/binary"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// What all objects have in common.
const (
	Namespace   = "default"
	ServicePort = 80
	TargetPort  = 8080
)

// FirstNodePort begins the node ports, and NodePortRange is all of them, with
// which the API server has to be started. It ends below what the kernel gives to
// clients.
const (
	FirstNodePort = 20_000
	NodePortRange = "20000-32767"
)

// Address counts on from a first address.
func Address(first string, n int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// Service is a Service without selector, of one port.
func Service(name string, ip netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIPs:            []string{ip.String()},
			SessionAffinity:       corev1.ServiceAffinityNone,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
			Ports: []corev1.ServicePort{{
				Name: "http", Protocol: corev1.ProtocolTCP, Port: ServicePort, TargetPort: intstr.FromInt32(TargetPort),
			}},
		},
	}
}

// SetNodePort makes a Service have a node port too; the type is one of those
// that do.
func SetNodePort(s *corev1.Service, as corev1.ServiceType, port int32) {
	s.Spec.Type = as
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	s.Spec.Ports[0].NodePort = port
}

// Slice is an EndpointSlice of a service.
func Slice(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		// With a UID it stays the same object when it is written past the API
		// server again.
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "bench.nftproxy",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](TargetPort),
		}},
	}
}

// Endpoint is one that is ready. Its node is nil where none is known.
func Endpoint(a netip.Addr, node *string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{a.String()}, NodeName: node,
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
	}
}

package controlplane

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

// The ports of Service and Slice.
const (
	ServicePort = 80
	TargetPort  = 8080
)

// FirstNodePort is the first node port, and NodePortRange is the range of all node ports.
// The API server must be started with that range. It ends below the kernel's range of
// ephemeral ports.
const (
	FirstNodePort = 20_000
	NodePortRange = "20000-32767"
)

// Address returns the address that is n after the first one.
func Address(first string, n int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// Service returns a Service without selector, with one port, and with all the fields that an API server would have
// filled in: Seed and Writer write past it.
func Service(name string, ip netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
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

// SetNodePort gives a Service a node port as well, and a type that has node ports.
func SetNodePort(s *corev1.Service, as corev1.ServiceType, port int32) {
	s.Spec.Type = as
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	s.Spec.Ports[0].NodePort = port
}

// Slice returns an EndpointSlice of a Service, complete too.
func Slice(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		// With the UID it stays the same object when it is written again past the API
		// server.
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "bench.nftproxy",
			}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](TargetPort),
		}},
	}
}

// Endpoint returns a ready endpoint. Its node is nil if the node is not known.
func Endpoint(a netip.Addr, node *string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{a.String()}, NodeName: node,
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
	}
}

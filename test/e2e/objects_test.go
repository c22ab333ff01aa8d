package e2e

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// podPort is where every pod serves, with every protocol.
const podPort = 8080

// The ports of every service.
const (
	httpPort = 80   // TCP
	dnsPort  = 53   // UDP
	sctpPort = 5000 // SCTP
)

// protocols are those of every service, with their ports there.
func protocols() map[string]uint16 {
	return map[string]uint16{testnet.TCP: httpPort, testnet.UDP: dnsPort, testnet.SCTP: sctpPort}
}

// addServer makes a pod with servers, whose id is its name, for the network only.
func (n *node) addServer(name string) *testnet.Pod {
	n.t.Helper()
	pod, err := n.AddPod(name)
	n.must(err)
	for protocol := range protocols() {
		for _, a := range pod.Addrs {
			_, err := pod.NS.Serve(protocol, netip.AddrPortFrom(a, podPort), name)
			n.must(err)
		}
	}
	return pod
}

// addClient makes a pod that serves nothing and that the API server does not know.
func (n *node) addClient() *testnet.Namespace {
	n.t.Helper()
	pod, err := n.AddPod("client")
	n.must(err)
	return pod.NS
}

// runPod makes a pod with servers and its Pod object, bound to the node and
// ready, as scheduler and kubelet would.
func (n *node) runPod(name, app string) *testnet.Pod {
	n.t.Helper()
	pod := n.addServer(name)
	pods := n.plane.client.CoreV1().Pods(n.namespace)
	object, err := pods.Create(n.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "server", Image: "server"}}},
	}, metav1.CreateOptions{})
	n.must(err)
	object.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: pod.Addrs[0].String(),
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Now()}},
	}
	for _, a := range pod.Addrs {
		object.Status.PodIPs = append(object.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	_, err = pods.UpdateStatus(n.ctx, object, metav1.UpdateOptions{})
	n.must(err)
	return pod
}

// deletePod removes the Pod object at once; its servers go on, so that only the
// proxy keeps connections from them.
func (n *node) deletePod(name string) {
	n.t.Helper()
	n.must(n.plane.client.CoreV1().Pods(n.namespace).Delete(n.ctx, name,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

// service is a dual-stack one with a port of each protocol; app selects its pods.
func service(name, app string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: httpPort, TargetPort: intstr.FromInt32(podPort)},
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: dnsPort, TargetPort: intstr.FromInt32(podPort)},
				{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: sctpPort, TargetPort: intstr.FromInt32(podPort)},
			},
		},
	}
	if app != "" {
		s.Spec.Selector = map[string]string{"app": app}
	}
	return s
}

// create creates a service in the test's namespace.
func (n *node) create(s *corev1.Service) *corev1.Service {
	n.t.Helper()
	made, err := n.plane.client.CoreV1().Services(n.namespace).Create(n.ctx, s, metav1.CreateOptions{})
	n.must(err)
	return made
}

// clusterIPs are the service's addresses, IPv4 first.
func clusterIPs(s *corev1.Service) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range s.Spec.ClusterIPs {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

// address is the service's of one family with the port of a protocol.
func address(s *corev1.Service, protocol string, family ip.Family) netip.AddrPort {
	for _, a := range clusterIPs(s) {
		if family.Has(a) {
			return netip.AddrPortFrom(a, protocols()[protocol])
		}
	}
	return netip.AddrPort{}
}

// nodePort is what the API server has allocated for a protocol.
func nodePort(s *corev1.Service, protocol string) uint16 {
	for _, p := range s.Spec.Ports {
		if uint16(p.Port) == protocols()[protocol] {
			return uint16(p.NodePort)
		}
	}
	return 0
}

// slice is an EndpointSlice for a service without selector, of all its ports.
func slice(name string, of *corev1.Service, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: of.Name, discoveryv1.LabelManagedBy: "e2e.nftproxy",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints(addrs...),
	}
	if len(addrs) > 0 && addrs[0].Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range of.Spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To(p.TargetPort.IntVal),
		})
	}
	return s
}

func endpoints(addrs ...netip.Addr) []discoveryv1.Endpoint {
	list := []discoveryv1.Endpoint{}
	for _, a := range addrs {
		list = append(list, discoveryv1.Endpoint{Addresses: []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	return list
}

// publish creates an EndpointSlice in the test's namespace.
func (n *node) publish(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	n.t.Helper()
	made, err := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace).Create(n.ctx, s, metav1.CreateOptions{})
	n.must(err)
	return made
}

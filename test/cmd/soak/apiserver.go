package main

import (
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/test/cmd/soak/script"
	"nftproxy/test/lib/testnet"
)

// The ports of each Service.
const (
	tcpPort = 80
	udpPort = 53
)

// clusterIP is the n-th address of a family.
func clusterIP(n int, family ip.Family) netip.Addr {
	if family == ip.V6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::7:%x", n))
	}
	return netip.AddrFrom4([4]byte{10, 96, 7, byte(n)})
}

func nodePort(n int, protocol string) uint16 {
	if protocol == testnet.UDP {
		return uint16(30100 + n)
	}
	return uint16(30000 + n)
}

// specified is the Service that an event describes.
func specified(e script.Event) *corev1.Service {
	at, name := e.Int("at"), e.Get("name")
	target := targetPorts()[at%len(targetPorts())]
	spec := corev1.ServiceSpec{
		Type: corev1.ServiceType(e.Get("type")), SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
	}
	for _, f := range e.Get("families") {
		family := ip.V4
		if f == '6' {
			family = ip.V6
		}
		spec.IPFamilies = append(spec.IPFamilies, corev1.IPFamily(family.Name()))
		spec.ClusterIPs = append(spec.ClusterIPs, clusterIP(at, family).String())
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	if len(spec.ClusterIPs) > 1 {
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
	for _, protocol := range e.List("protocols") {
		p := corev1.ServicePort{Name: protocol, Protocol: corev1.ProtocolTCP, Port: tcpPort,
			TargetPort: intstr.FromInt32(int32(target))}
		if protocol == testnet.UDP {
			p.Protocol, p.Port = corev1.ProtocolUDP, udpPort
		}
		if spec.Type == corev1.ServiceTypeNodePort {
			p.NodePort = int32(nodePort(at, protocol))
		}
		spec.Ports = append(spec.Ports, p)
	}
	if e.Get("internal") == "Local" {
		spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if spec.Type == corev1.ServiceTypeNodePort {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		if e.Get("external") == "Local" {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	if seconds := e.Int("affinity"); seconds > 0 {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(
			int32(seconds))}}
	}
	if n := e.Get("external-ip"); n != "" {
		spec.ExternalIPs = []string{"198.51.100." + n}
	}
	made := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: spec}
	for word, key := range map[string]string{
		"failover": failoverKey, "departed": departedKey, "ranges": service.OptionPrefix + "port-ranges",
		"slow-start":   service.OptionPrefix + "slow-start",
		"udp-timeouts": service.OptionPrefix + service.UDPTimeoutsKey, "tcp-timeout": service.OptionPrefix +
			service.TCPTimeoutKey,
	} {
		if value := e.Get(word); value != "" {
			metav1.SetMetaDataAnnotation(&made.ObjectMeta, key, value)
		}
	}
	return made
}

// failoverKey and departedKey are the annotations of external failover, and of connections to departed endpoints.
const (
	failoverKey = service.OptionPrefix + "external-failover"
	departedKey = service.OptionPrefix + "departed-connections"
)

// putService makes or changes a Service. One whose addresses change is made again.
func (w *world) putService(e script.Event) error {
	want := specified(e)
	services := w.plane.Client.CoreV1().Services(namespace)
	old := w.objects.services[want.Name]
	if old != nil && (old.Spec.ClusterIP != want.Spec.ClusterIP || len(old.Spec.ClusterIPs) != len(want.Spec.ClusterIPs)) {
		if err := w.deleteService(want.Name); err != nil {
			return err
		}
		old = nil
	}
	if other := w.holder(want); other != "" && other != want.Name {
		return nil // of a script that was cut: the address is another Service's
	}
	w.objects.services[want.Name] = want
	w.expect()
	var made *corev1.Service
	var err error
	if old == nil {
		made, err = services.Create(w.ctx, want, metav1.CreateOptions{})
	} else {
		want.ResourceVersion = old.ResourceVersion
		made, err = services.Update(w.ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	w.objects.services[want.Name] = made
	return nil
}

// holder is the Service that has the first address of this one.
func (w *world) holder(s *corev1.Service) string {
	for name, o := range w.objects.services {
		for _, a := range o.Spec.ClusterIPs {
			for _, b := range s.Spec.ClusterIPs {
				if a == b {
					return name
				}
			}
		}
		for _, p := range o.Spec.Ports {
			for _, q := range s.Spec.Ports {
				if p.NodePort != 0 && p.NodePort == q.NodePort {
					return name
				}
			}
		}
	}
	return ""
}

func (w *world) deleteService(name string) error {
	if w.objects.services[name] == nil {
		return nil
	}
	delete(w.objects.services, name)
	w.expect()
	return w.plane.Client.CoreV1().Services(namespace).Delete(w.ctx, name, metav1.DeleteOptions{})
}

// putEndpoints sets the endpoints of a Service, as a slice for each family.
func (w *world) putEndpoints(e script.Event) error {
	service := w.objects.services[e.Get("name")]
	if service == nil {
		return nil
	}
	for _, family := range ip.Families() {
		if err := w.putSlice(w.slice(service, e.List("pods"), family)); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) putSlice(want *discoveryv1.EndpointSlice) error {
	slices := w.plane.Client.DiscoveryV1().EndpointSlices(namespace)
	old := w.objects.slices[want.Name]
	w.objects.slices[want.Name] = want
	w.expect()
	var made *discoveryv1.EndpointSlice
	var err error
	if old == nil {
		made, err = slices.Create(w.ctx, want, metav1.CreateOptions{})
	} else {
		want.ResourceVersion = old.ResourceVersion
		made, err = slices.Update(w.ctx, want, metav1.UpdateOptions{})
	}
	if err == nil {
		w.objects.slices[want.Name] = made
	}
	return err
}

func (w *world) slice(service *corev1.Service, pods []string, family ip.Family) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: service.Name + "-4", Namespace: namespace, Labels: map[string]string{
			discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "soak.nftproxy",
		}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
	}
	if family == ip.V6 {
		s.Name, s.AddressType = service.Name+"-6", discoveryv1.AddressTypeIPv6
	}
	for _, p := range []string{testnet.TCP, testnet.UDP} {
		protocol := corev1.ProtocolTCP
		if p == testnet.UDP {
			protocol = corev1.ProtocolUDP
		}
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr.To(p), Protocol: &protocol,
			Port: ptr.To(service.Spec.Ports[0].TargetPort.IntVal)})
	}
	for _, word := range pods {
		if e, ok := w.endpoint(word, family); ok {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}

// endpoint is the endpoint that a word of an event stands for.
func (w *world) endpoint(word string, family ip.Family) (discoveryv1.Endpoint, bool) {
	name, mark := word[:1], word[1:]
	pod := w.Pod(name)
	if pod == nil {
		return discoveryv1.Endpoint{}, false
	}
	address, node := pod.Addrs.V4(), nodeName
	if family == ip.V6 {
		address = pod.Addrs.V6()
	}
	if !onNode(name) {
		node = "remote"
	}
	ready, serving, terminating := true, true, false
	switch mark {
	case script.NotReady:
		ready, serving = false, false
	case script.Terminating:
		ready, terminating = false, true
	case script.Gone:
		ready, serving, terminating = false, false, true
	}
	return discoveryv1.Endpoint{
		Addresses: []string{address.String()}, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
	}, true
}

// list reads from the API server everything that the proxy reads.
func (w *world) list() error {
	services, err := w.plane.Client.CoreV1().Services("").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	slices, err := w.plane.Client.DiscoveryV1().EndpointSlices("").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	node, err := w.plane.Client.CoreV1().Nodes().Get(w.ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	cidrs, err := w.plane.Client.NetworkingV1().ServiceCIDRs().List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	now := newObjects()
	var items []any
	add := func(version, kind string, object runtime.Object) {
		object.GetObjectKind().SetGroupVersionKind(schemaOf(version, kind))
		items = append(items, object)
	}
	for i := range services.Items {
		s := &services.Items[i]
		if add("v1", "Service", s); s.Namespace == namespace {
			now.services[s.Name] = s
		}
	}
	for i := range slices.Items {
		s := &slices.Items[i]
		if add("discovery.k8s.io/v1", "EndpointSlice", s); s.Namespace == namespace {
			now.slices[s.Name] = s
		}
	}
	add("v1", "Node", node)
	for i := range cidrs.Items {
		add("networking.k8s.io/v1", "ServiceCIDR", &cidrs.Items[i])
	}
	if now.all, err = json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}); err != nil {
		return err
	}
	w.objects = now
	return nil
}

// refusedByAPI says that the API server did not take a change, as of a script that was cut.
func refusedByAPI(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

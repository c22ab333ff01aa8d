package servicetest

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	watchtools "k8s.io/client-go/tools/watch"
)

// balancerClass is of no load balancer, so that none is made for a Service and nothing is paid.
const balancerClass = "nftproxy.io/service-test"

// makeGiven makes Services as a load balancer leaves them, and gives them its addresses itself.
func (s *stage) makeGiven(ctx context.Context, client kubernetes.Interface) error {
	all, first := selectors()
	var admitted []string
	for _, ip := range s.admitted().pod.Status.PodIPs {
		bits := 128
		if isOf(ip.IP, []corev1.IPFamily{corev1.IPv4Protocol}) {
			bits = 32
		}
		admitted = append(admitted, fmt.Sprintf("%s/%d", ip.IP, bits))
	}
	balanced := func(s *corev1.ServiceSpec) {
		s.Type, s.LoadBalancerClass, s.Ports = corev1.ServiceTypeLoadBalancer, new(balancerClass), s.Ports[:1]
	}
	for _, given := range []struct {
		service *corev1.Service
		test    string
		// Of RFC 5737 and RFC 3849.
		addresses map[corev1.IPFamily]string
	}{
		{service(serviceGiven, first, func(s *corev1.ServiceSpec) {
			balanced(s)
			s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}), testGiven, map[corev1.IPFamily]string{
			corev1.IPv4Protocol: "198.51.100.78", corev1.IPv6Protocol: "2001:db8:77::78"}},
		{service(serviceRanges, all, func(s *corev1.ServiceSpec) {
			balanced(s)
			s.LoadBalancerSourceRanges = admitted
		}), testRanges, map[corev1.IPFamily]string{
			corev1.IPv4Protocol: "198.51.100.79", corev1.IPv6Protocol: "2001:db8:77::79"}},
	} {
		if err := s.makeService(ctx, client, given.service); err != nil {
			return err
		}
		svc := s.services[given.service.Name]
		if svc == nil {
			continue
		}
		var ingress []corev1.LoadBalancerIngress
		for _, f := range svc.Spec.IPFamilies {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: given.addresses[f]})
		}
		patch, err := json.Marshal(map[string]any{"status": corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}}})
		if err != nil {
			return fmt.Errorf("give Service %s an address: %w", svc.Name, err)
		}
		patched, err := client.CoreV1().Services(s.namespace).Patch(ctx, svc.Name, types.MergePatchType, patch,
			metav1.PatchOptions{}, "status")
		switch {
		case err != nil && isRefusal(err):
			s.lacks(given.test, "the API server refuses to patch services/status: "+short(err.Error()))
		case err != nil:
			return fmt.Errorf("give Service %s an address: %w", svc.Name, err)
		default:
			s.services[svc.Name] = patched
		}
	}
	return nil
}

// loadBalancerPatience is how long a cluster may take to give a Service an address.
const loadBalancerPatience = balancerLatency

// awaitLoadBalancer waits for an address.
func (s *stage) awaitLoadBalancer(ctx context.Context, client kubernetes.Interface) {
	ctx, cancel := context.WithTimeout(ctx, loadBalancerPatience)
	defer cancel()
	services := client.CoreV1().Services(s.namespace)
	source := listWatch(client, services, serviceBalanced)
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Service{}, nil, func(e watch.Event) (bool, error) {
		svc, is := e.Object.(*corev1.Service)
		if is && len(svc.Status.LoadBalancer.Ingress) > 0 {
			s.services[serviceBalanced] = svc
		}
		return is && len(svc.Status.LoadBalancer.Ingress) > 0, nil
	})
	if err != nil {
		delete(s.services, serviceBalanced)
		s.lacks(testLoadBalancer, fmt.Sprintf("no address within %s", loadBalancerPatience))
	}
}

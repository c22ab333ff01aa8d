package watch

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/internal/service"
)

// Labels that take an object out of a service proxy's hands.
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = corev1.IsHeadlessService
)

// serviceObject is what is kept of a Service.
type serviceObject struct {
	identity
	// part is the service without its endpoints; nil for one that is none of
	// a proxy's business: headless, an ExternalName, another proxy's, or one
	// without address yet.
	part     *service.Service
	problems []Problem
}

// convertService turns a Service into the model's, endpoints aside.
func convertService(s *corev1.Service) *serviceObject {
	object := &serviceObject{identity: identify(&s.ObjectMeta)}
	if !watched(s) {
		return object
	}
	p := problemsOf("Service", &s.ObjectMeta)
	part := &service.Service{Name: object.name(), Created: s.CreationTimestamp.UTC()}
	part.ClusterIPs = clusterIPs(&s.Spec, p)
	part.ExternalIPs = externalIPs(&s.Spec, p)
	part.LoadBalancerIPs = loadBalancerIPs(s, p)
	part.Sources = sources(&s.Spec, part.LoadBalancerIPs, p)
	part.Ports = servicePorts(s.Spec.Ports, p)
	part.InternalPolicy = internalPolicy(&s.Spec, p)
	part.ExternalPolicy = externalPolicy(&s.Spec, p)
	part.AffinityTimeout = affinityTimeout(&s.Spec, p)
	part.HealthCheckNodePort = healthCheckNodePort(&s.Spec, part.ExternalPolicy, p)
	object.part, object.problems = part, p.all()
	return object
}

func watched(s *corev1.Service) bool {
	_, otherProxy := s.Labels[labelProxyName]
	return !otherProxy && s.Spec.Type != corev1.ServiceTypeExternalName &&
		s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// clusterIPs are the service's addresses, by the order of its families. Where
// ipFamilies is empty only clusterIP counts, as in kube-proxy.
func clusterIPs(spec *corev1.ServiceSpec, p *problemList) []netip.Addr {
	if len(spec.IPFamilies) == 0 {
		addr, err := parseAddr(spec.ClusterIP)
		if err != nil {
			p.add("spec.clusterIP", err)
			return nil
		}
		return []netip.Addr{addr}
	}
	if len(spec.ClusterIPs) == 0 {
		p.add("spec.clusterIPs", errors.New("none, though spec.ipFamilies is set: the service is in no family"))
	}
	var addrs []netip.Addr
	for i, text := range spec.ClusterIPs {
		field := item("spec.clusterIPs", i)
		addr, err := parseAddr(text)
		switch {
		case err != nil:
			p.add(field, err)
		case i >= len(spec.IPFamilies):
			p.value(field, text, "spec.ipFamilies has no entry for it")
		case family(addr) != spec.IPFamilies[i]:
			p.value(field, text, "spec.ipFamilies says "+string(spec.IPFamilies[i]))
		case slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is6() == addr.Is6() }):
			p.value(field, text, "a second address of its family")
		default:
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func externalIPs(spec *corev1.ServiceSpec, p *problemList) []netip.Addr {
	addrs := addressList{spec: spec, problems: p}
	for i, text := range spec.ExternalIPs {
		addrs.add(item("spec.externalIPs", i), text)
	}
	return addrs.list
}

// addressList is external addresses without duplicates and of the families that
// the service has. One of another family has no cluster IP beside it, which
// kube-proxy takes for a service that does not exist in that family.
type addressList struct {
	spec     *corev1.ServiceSpec
	problems *problemList
	list     []netip.Addr
}

func (l *addressList) add(field, text string) {
	addr, err := parseAddr(text)
	switch {
	case err != nil:
		l.problems.add(field, err)
	case !hasFamily(l.spec, family(addr)):
		l.problems.value(field, text, "the service has no "+string(family(addr))+" cluster IP")
	case !slices.Contains(l.list, addr):
		l.list = append(l.list, addr)
	}
}

// internalPolicy is Cluster where nothing is said.
func internalPolicy(spec *corev1.ServiceSpec, p *problemList) service.TrafficPolicy {
	if spec.InternalTrafficPolicy == nil {
		return service.Cluster
	}
	return policy("spec.internalTrafficPolicy", string(*spec.InternalTrafficPolicy), p)
}

// externalPolicy counts only where there is external traffic to have a policy
// for: a ClusterIP service without external IPs may carry a left-over one.
func externalPolicy(spec *corev1.ServiceSpec, p *problemList) service.TrafficPolicy {
	if spec.ExternalTrafficPolicy == "" {
		return service.Cluster
	}
	external := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer || len(spec.ExternalIPs) > 0
	return policy("spec.externalTrafficPolicy", string(spec.ExternalTrafficPolicy), p) && service.TrafficPolicy(external)
}

func policy(field, text string, p *problemList) service.TrafficPolicy {
	switch text {
	case "Cluster":
		return service.Cluster
	case "Local":
		return service.Local
	}
	p.value(field, text, "not Cluster or Local; Cluster is in force")
	return service.Cluster
}

// hasFamily asks the spec, not the addresses: a bad cluster IP does not cost
// the service its external ones.
func hasFamily(spec *corev1.ServiceSpec, f corev1.IPFamily) bool {
	if len(spec.IPFamilies) > 0 {
		return slices.Contains(spec.IPFamilies, f)
	}
	addr, err := parseAddr(spec.ClusterIP)
	return err != nil || family(addr) == f
}

func servicePorts(ports []corev1.ServicePort, p *problemList) []service.Port {
	list := make([]service.Port, 0, len(ports))
	for i := range ports {
		field := item("spec.ports", i)
		port, ok := servicePort(&ports[i], field, p)
		if !ok {
			continue
		}
		same := func(a, b uint16) bool { return a == b && a != 0 }
		if slices.ContainsFunc(list, func(o service.Port) bool { return o.Protocol == port.Protocol && o.Port == port.Port }) {
			p.value(field, strconv.Itoa(int(port.Port))+"/"+port.Protocol.String(), "an earlier port has the same number and protocol")
			continue
		}
		if slices.ContainsFunc(list, func(o service.Port) bool { return o.Protocol == port.Protocol && same(o.NodePort, port.NodePort) }) {
			p.value(field+".nodePort", strconv.Itoa(int(port.NodePort)), "an earlier port has the same node port")
			port.NodePort = 0
		}
		list = append(list, port)
	}
	return list
}

// servicePort reads one port; false means that nothing of it can be used.
func servicePort(sp *corev1.ServicePort, field string, p *problemList) (service.Port, bool) {
	port := service.Port{Name: intern(sp.Name)}
	ok := true
	check := func(part string, err error) {
		if err != nil {
			p.add(field+part, err)
			ok = false
		}
	}
	var err error
	check(".name", checkName(sp.Name))
	port.Protocol, err = parseProtocol(&sp.Protocol)
	check(".protocol", err)
	port.Port, err = parsePort(sp.Port)
	check(".port", err)
	if sp.NodePort != 0 {
		// Whatever the type: an API server leaves the number in place only
		// where it is meant.
		if port.NodePort, err = parsePort(sp.NodePort); err != nil {
			p.add(field+".nodePort", err)
		}
	}
	return port, ok
}

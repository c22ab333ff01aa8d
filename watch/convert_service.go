package watch

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"nftproxy/model/service"
)

const (
	// labelProxyName has the name of the proxy that serves a Service. Without it the
	// cluster's ordinary proxy does.
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	// labelHeadless is on EndpointSlices that no proxy needs.
	labelHeadless = corev1.IsHeadlessService
	// annotationIdledAt says when OpenShift (oc idle) has scaled the Service's pods to zero (RFC 3339). Its unidling
	// controller scales them up again, and removes the annotation, after an event NeedPods about the Service with a last
	// time that is not earlier. It takes the event of any source (openshift-controller-manager, pkg/unidling).
	annotationIdledAt = "idling.alpha.openshift.io/idled-at"
)

// serviceObject is a Service as the index keeps it.
type serviceObject struct {
	identity
	uid types.UID
	// bare is the service, whose endpoints do not count. It is nil for a Service that no
	// proxy serves: headless, an ExternalName, or one without an address yet.
	bare *service.Service
	// built says that bare is, or may be, a snapshot's, and does not change any more. Until then the index may
	// complete it.
	built bool
	// proxy is the value of labelProxyName; named says that there is one.
	proxy string
	named bool
	// balanced says that the Service chooses its own balance.
	balanced bool
	// idledAt is the time of annotationIdledAt, zero without it.
	idledAt time.Time
	// reportedLeftOut says that the size of this version was reported.
	reportedLeftOut bool
}

// convertService turns a Service into the model's, without endpoints.
func convertService(s *corev1.Service) *serviceObject {
	object := &serviceObject{identity: identify(&s.ObjectMeta), uid: s.UID}
	object.proxy, object.named = s.Labels[labelProxyName]
	p := problemsOf("Service", &s.ObjectMeta)
	object.idledAt = idledAt(s.Annotations, p)
	if !watched(s) {
		unserved(s, p)
		object.problems = p.all()
		return object
	}
	bare := &service.Service{Name: object.key, Created: s.CreationTimestamp.UTC()}
	bare.ClusterIPs = clusterIPs(&s.Spec, p)
	bare.ExternalIPs = externalIPs(&s.Spec, p)
	bare.LoadBalancerIPs = loadBalancerIPs(s, p)
	bare.Ports = servicePorts(s.Spec.Ports, p)
	bare.InternalPolicy = internalPolicy(&s.Spec, p)
	bare.ExternalPolicy = externalPolicy(&s.Spec, p)
	bare.AffinityTimeout = affinityTimeout(&s.Spec, p)
	bare.HealthCheckNodePort = healthCheckNodePort(&s.Spec, bare, p)
	bare.Options, object.balanced = options(&s.ObjectMeta, bare.AffinityTimeout > 0, p)
	bare.Sources = sources(&s.Spec, bare, p)
	setRanges(bare, &s.ObjectMeta, p)
	restrict(bare, p)
	object.bare, object.problems = bare, p.all()
	return object
}

// idledAt returns when OpenShift has idled the Service. The unidling controller does nothing for a Service whose time
// is no time.
func idledAt(annotations map[string]string, p *problemList) time.Time {
	text, idled := annotations[annotationIdledAt]
	if !idled {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		p.addValue("metadata.annotations["+annotationIdledAt+"]", beginning(text), "not a time (RFC 3339), so OpenShift "+
			"does not start the Service's pods when clients connect")
		return time.Time{}
	}
	return at
}

func watched(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName &&
		s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// clusterIPs returns the service's addresses in the order of its families. An absent clusterIPs means clusterIP, and
// an absent ipFamilies the families of the addresses: so the API server fills them in when it reads a Service that is
// older than the fields (defaultOnReadService in pkg/registry/core/service/storage, Kubernetes 1.38). Its watches have
// been without them (kubernetes/kubernetes#143291).
func clusterIPs(spec *corev1.ServiceSpec, p *problemList) []netip.Addr {
	texts, families := plural(spec), spec.IPFamilies
	field := func(i int) string {
		if len(spec.ClusterIPs) == 0 {
			return "spec.clusterIP"
		}
		return item("spec.clusterIPs", i)
	}
	var addrs []netip.Addr
	for i, text := range texts {
		addr, err := parseAddrFor(asClusterIP, text)
		switch {
		case err != nil:
			p.add(field(i), err)
		case len(families) > 0 && i >= len(families):
			p.addValue(field(i), text, "spec.ipFamilies has no entry for it")
		case len(families) > 0 && family(addr) != families[i]:
			p.addValue(field(i), text, "spec.ipFamilies says "+string(families[i]))
		case slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is6() == addr.Is6() }):
			p.addValue(field(i), text, "a second address of its family")
		default:
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// plural returns clusterIPs, or clusterIP if they are absent.
func plural(spec *corev1.ServiceSpec) []string {
	if len(spec.ClusterIPs) == 0 {
		return []string{spec.ClusterIP}
	}
	return spec.ClusterIPs
}

func externalIPs(spec *corev1.ServiceSpec, p *problemList) []netip.Addr {
	addrs := addressList{spec: spec, field: "spec.externalIPs"}
	for i, text := range spec.ExternalIPs {
		addrs.add(i, text, p)
	}
	return addrs.list
}

// addressList collects external addresses without duplicates. It takes only the
// families of the service's cluster IPs: for kube-proxy, too, the service does not
// exist in another family.
type addressList struct {
	spec *corev1.ServiceSpec
	// The addresses are in the subfield of the items of field.
	field, subfield string
	list            []netip.Addr
	seen            map[netip.Addr]bool
}

// add adds the address of the i-th item.
func (l *addressList) add(i int, text string, p *problemList) {
	addr, err := parseAddrFor(asExternal, text)
	switch {
	case err != nil:
		p.add(item(l.field, i)+l.subfield, err)
	case !hasFamily(l.spec, family(addr)):
		p.addValue(item(l.field, i)+l.subfield, text, "the service has no "+string(family(addr))+" cluster IP")
	case !l.seen[addr]:
		if l.seen == nil {
			l.seen = map[netip.Addr]bool{}
		}
		l.seen[addr] = true
		l.list = append(l.list, addr)
	}
}

// internalPolicy is Cluster where the Service has none.
func internalPolicy(spec *corev1.ServiceSpec, p *problemList) service.TrafficPolicy {
	if spec.InternalTrafficPolicy == nil {
		return service.Cluster
	}
	return policy("spec.internalTrafficPolicy", string(*spec.InternalTrafficPolicy), p)
}

// externalPolicy is Cluster where the service has no external traffic: a ClusterIP
// service without external IPs may have kept a policy from earlier.
func externalPolicy(spec *corev1.ServiceSpec, p *problemList) service.TrafficPolicy {
	if spec.ExternalTrafficPolicy == "" {
		return service.Cluster
	}
	external := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(spec.ExternalIPs) > 0
	return policy("spec.externalTrafficPolicy", string(spec.ExternalTrafficPolicy), p) && service.TrafficPolicy(external)
}

func policy(field, text string, p *problemList) service.TrafficPolicy {
	switch text {
	case "Cluster":
		return service.Cluster
	case "Local":
		return service.Local
	}
	p.addValue(field, text, "not Cluster or Local; Cluster is in force")
	return service.Cluster
}

// hasFamily reads the spec, not the parsed addresses: a service with a bad cluster
// IP keeps its external addresses.
func hasFamily(spec *corev1.ServiceSpec, f corev1.IPFamily) bool {
	if len(spec.IPFamilies) > 0 {
		return slices.Contains(spec.IPFamilies, f)
	}
	return slices.ContainsFunc(plural(spec), func(text string) bool {
		addr, err := parseAddr(text)
		return err != nil || family(addr) == f
	})
}

func servicePorts(ports []corev1.ServicePort, p *problemList) []service.Port {
	list := make([]service.Port, 0, len(ports))
	type number struct {
		protocol service.Protocol
		port     uint16
	}
	numbers, nodePorts := map[number]bool{}, map[number]bool{}
	for i := range ports {
		port, ok := servicePort(&ports[i], i, p)
		if !ok {
			continue
		}
		key := number{port.Protocol, port.Port}
		if numbers[key] {
			p.addValue(item("spec.ports", i), strconv.Itoa(int(port.Port))+"/"+port.Protocol.String(),
				"an earlier port has the same number and protocol")
			continue
		}
		numbers[key] = true
		if key.port = port.NodePort; key.port != 0 && nodePorts[key] {
			p.addValue(item("spec.ports", i)+".nodePort", strconv.Itoa(int(port.NodePort)),
				"an earlier port has the same node port")
			port.NodePort = 0
		}
		nodePorts[key] = true
		list = append(list, port)
	}
	return list
}

// servicePort reads the i-th port. It returns false for a port that cannot be used.
func servicePort(sp *corev1.ServicePort, i int, p *problemList) (service.Port, bool) {
	port := service.Port{Name: intern(sp.Name)}
	ok := true
	check := func(subfield string, err error) {
		if err != nil {
			p.add(item("spec.ports", i)+subfield, err)
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
		// The type does not matter: the API server keeps the number only where it
		// is in use.
		if port.NodePort, err = parsePort(sp.NodePort); err != nil {
			p.add(item("spec.ports", i)+".nodePort", err)
		}
	}
	return port, ok
}

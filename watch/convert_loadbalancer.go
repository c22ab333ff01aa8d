package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// loadBalancerIPs returns the addresses of those load balancers that deliver packets
// with their own address as destination (KEP-1860).
func loadBalancerIPs(s *corev1.Service, p *problemList) []netip.Addr {
	addrs := addressList{spec: &s.Spec, field: "status.loadBalancer.ingress", subfield: ".ip"}
	for i, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IP != "" && (ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP) {
			addrs.add(i, ingress.IP, p)
		}
	}
	return addrs.list
}

// sources returns nil where the Service lists no range; a blank one does not count. A
// bad range admits no client and still closes the addresses, since a user who lists
// ranges wants to exclude the rest. kube-proxy instead leaves a family open for which
// there is no range. If the ranges are those to deny, a bad one, or none, denies nobody.
func sources(spec *corev1.ServiceSpec, bare *service.Service, p *problemList) *service.Sources {
	const field = "spec.loadBalancerSourceRanges"
	var ranges []netip.Prefix
	given := false
	for i, text := range spec.LoadBalancerSourceRanges {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		given = true
		r, err := parseCIDR(text)
		if err != nil {
			p.add(item(field, i), err)
			continue
		}
		ranges = append(ranges, r)
	}
	if !given {
		return nil
	}
	if bare.Options.SourcesPolicy == service.DenySources {
		left, ok := service.AllBut(ranges)
		if !ok {
			p.add(field, fmt.Errorf("%s denies these ranges, and what they leave is more than %d ranges: the load balancer's "+
				"addresses are closed to all clients", service.SourcesPolicyAnnotation, service.MaxSourcesLeft))
		}
		return left
	}
	list := service.NewSources(ranges)
	for _, f := range ip.Families() {
		if closed(list, f) && slices.ContainsFunc(bare.LoadBalancerIPs, f.Has) {
			p.add(field, fmt.Errorf("no valid %s range: the load balancer's %s addresses are closed to all clients", f.Name(),
				f.Name()))
		}
	}
	return list
}

// closed says that the ranges have no address of the family.
func closed(s *service.Sources, f ip.Family) bool {
	some, all := s.Of(f)
	return len(some) == 0 && !all
}

// restrict applies the annotation source-ranges to the load balancer's addresses, too. It reports the families that are
// closed although the annotation has some ranges, as sources does: somebody may have forgotten them.
func restrict(bare *service.Service, p *problemList) {
	const field = "metadata.annotations[" + service.OptionPrefix + "source-ranges]"
	direct, balanced := bare.Options.SourceRanges, bare.Sources
	if len(bare.LoadBalancerIPs) > 0 {
		bare.Sources = balanced.And(direct)
	}
	if direct == nil || len(direct.Ranges()) == 0 {
		return
	}
	for _, f := range ip.Families() {
		switch {
		case !bare.InFamily(f):
		case closed(direct, f):
			p.add(field, fmt.Errorf("no valid %s range: external addresses and node ports of %s are closed to all clients",
				f.Name(), f.Name()))
		case closed(bare.Sources, f) && !closed(balanced, f) && slices.ContainsFunc(bare.LoadBalancerIPs, f.Has):
			p.add(field, fmt.Errorf("no %s address is in spec.loadBalancerSourceRanges too: the load balancer's %s addresses "+
				"are closed to all clients", f.Name(), f.Name()))
		}
	}
}

// affinityTimeout is 0 without session affinity. A time-out that is missing or below a
// second becomes the API's default, and one above a day (the API's limit) a day.
func affinityTimeout(spec *corev1.ServiceSpec, p *problemList) time.Duration {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		p.addValue("spec.sessionAffinity", string(spec.SessionAffinity), "not None or ClientIP; None is in force")
		return 0
	}
	const most = corev1.DefaultClientIPServiceAffinitySeconds * 8 // 86,400 (API documentation of ClientIPConfig)
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		const field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
		given := *c.ClientIP.TimeoutSeconds
		switch {
		case given < 1:
			p.addValue(field, strconv.Itoa(int(given)), fmt.Sprintf("not in 1 to %d; %d is in force", most, seconds))
		case given > most:
			p.addValue(field, strconv.Itoa(int(given)), fmt.Sprintf("not in 1 to %d; %d is in force", most, most))
			seconds = most
		default:
			seconds = given
		}
	}
	return time.Duration(seconds) * time.Second
}

// healthCheckNodePort is 0 for none. The field counts only for load balancers with
// policy Local: other Services may have kept it from earlier.
func healthCheckNodePort(spec *corev1.ServiceSpec, bare *service.Service, p *problemList) uint16 {
	if spec.Type != corev1.ServiceTypeLoadBalancer || bare.ExternalPolicy != service.Local {
		return 0
	}
	const field = "spec.healthCheckNodePort"
	port, err := parsePort(spec.HealthCheckNodePort)
	switch {
	case err != nil:
		p.add(field, err)
	case slices.ContainsFunc(bare.Ports, func(o service.Port) bool {
		return o.Protocol == service.TCP && o.NodePort == port
	}):
		p.addValue(field, strconv.Itoa(int(port)), "a port of the Service has the same node port")
		return 0
	}
	return port
}

package main

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/test/cmd/soak/script"
	"nftproxy/test/lib/testnet"
)

// The clients of questions.
const (
	fromPod     = "pod"
	fromNode    = "node"
	fromOutside = "outside"
)

func schemaOf(version, kind string) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(version, kind)
}

// expect tells the book what the objects say by now, before the API server is told. The
// proxy gets Services and slices by two watches, so until the tables are settled it may have
// those of one time with these of another.
func (w *world) expect() {
	now, latest := time.Now(), w.objects.clone()
	w.book.Expect(w.expectations(latest), now)
	for _, o := range w.unsettled {
		w.book.Alongside(w.expectations(objects{services: latest.services, slices: o.slices}), now)
		w.book.Alongside(w.expectations(objects{services: o.services, slices: latest.slices}), now)
	}
	w.unsettled = append(w.unsettled, latest)
}

// expectations are the fates of all questions. They are worked out of the objects alone,
// by what Kubernetes says of Services, and share nothing with the proxy's own code.
func (w *world) expectations(o objects) map[Question]Expectation {
	all := map[Question]Expectation{}
	for n := 1; n <= script.Addresses; n++ {
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			for _, family := range ip.Families() {
				port, node := uint16(tcpPort), w.NodeAddrs.V4()
				if protocol == testnet.UDP {
					port = udpPort
				}
				if family == ip.V6 {
					node = w.NodeAddrs.V6()
				}
				cluster := netip.AddrPortFrom(clusterIP(n, family), port)
				all[Question{Client: fromPod, Protocol: protocol, To: cluster}] = w.ofClusterIP(o, cluster, protocol,
					fromPod)
				all[Question{Client: fromNode, Protocol: protocol, To: cluster}] = w.ofClusterIP(o, cluster, protocol,
					fromNode)
				at := netip.AddrPortFrom(node, nodePort(n, protocol))
				all[Question{Client: fromOutside, Protocol: protocol, To: at}] = w.ofNodePort(o, at, protocol)
			}
		}
	}
	return all
}

func (w *world) ofClusterIP(o objects, to netip.AddrPort, protocol, client string) Expectation {
	for _, s := range o.services {
		if !slices.Contains(s.Spec.ClusterIPs, to.Addr().String()) {
			continue
		}
		port := portOf(s, protocol)
		if port == nil {
			return refusal(protocol)
		}
		local := s.Spec.InternalTrafficPolicy != nil &&
			*s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
		e := w.ofEndpoints(o, s, port, ip.Of(to.Addr()), local)
		if client == fromPod {
			e.Source = Kept
			if w.choice.Get("masquerade-all") == "yes" {
				e.Source = Masqueraded
			}
		}
		return e
	}
	return Expectation{}
}

func (w *world) ofNodePort(o objects, to netip.AddrPort, protocol string) Expectation {
	for _, s := range o.services {
		port := portOf(s, protocol)
		if port == nil || uint16(port.NodePort) != to.Port() || !inFamily(s, ip.Of(to.Addr())) {
			continue
		}
		local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		e := w.ofEndpoints(o, s, port, ip.Of(to.Addr()), local)
		e.Source = Masqueraded
		switch {
		case local && len(e.Pods) == 0 && s.Annotations[failoverKey] == service.FailoverCluster.String():
			e = w.ofEndpoints(o, s, port, ip.Of(to.Addr()), false)
			e.Source = Masqueraded
		case local:
			e.Source = Kept
		}
		return e
	}
	return Expectation{}
}

func inFamily(s *corev1.Service, family ip.Family) bool {
	return slices.ContainsFunc(s.Spec.ClusterIPs, func(a string) bool { return family.Has(netip.MustParseAddr(a)) })
}

func portOf(s *corev1.Service, protocol string) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; strings.EqualFold(string(p.Protocol), protocol) {
			return p
		}
	}
	return nil
}

// refusal is the fate of what the rules refuse. For UDP it cannot be seen each time: the
// kernel limits the rate of ICMP errors.
func refusal(protocol string) Expectation {
	if protocol == testnet.UDP {
		return Expectation{Fate: Unserved}
	}
	return Expectation{Fate: Refused}
}

// ofEndpoints is the fate of connections to a Service port of one family. With local, only
// endpoints on the node get some.
func (w *world) ofEndpoints(o objects, s *corev1.Service, port *corev1.ServicePort, family ip.Family,
	local bool) Expectation {
	protocol := strings.ToLower(string(port.Protocol))
	e := Expectation{Local: local, Service: s.Name, Departed: s.Annotations[departedKey]}
	var ready, terminating []string
	usable := 0 // on any node
	slice := o.sliceOf(s, family)
	for _, endpoint := range slice.Endpoints {
		// The slice's port counts: a Service that moved may have another one by now.
		id := podID(w.podAt(endpoint.Addresses[0]), uint16(*slice.Ports[0].Port))
		e.Known = append(e.Known, id)
		c := endpoint.Conditions
		if *c.Serving {
			e.Serving = append(e.Serving, id)
		}
		if *c.Ready || *c.Serving && *c.Terminating {
			usable++
		}
		switch {
		case local && *endpoint.NodeName != nodeName:
		case *c.Ready:
			ready = append(ready, id)
		case *c.Serving && *c.Terminating:
			terminating = append(terminating, id)
		}
	}
	if e.Pods = ready; len(ready) == 0 {
		e.Pods = terminating
	}
	for _, list := range [][]string{e.Pods, e.Known, e.Serving} {
		slices.Sort(list)
	}
	switch {
	case len(e.Pods) > 0:
		e.Fate = Served
	case usable == 0:
		e.Fate = refusal(protocol).Fate
	}
	if a := s.Spec.SessionAffinityConfig; a != nil {
		e.Affinity = time.Duration(*a.ClientIP.TimeoutSeconds) * time.Second
	}
	return e
}

func (o objects) sliceOf(s *corev1.Service, family ip.Family) *discoveryv1.EndpointSlice {
	name := s.Name + "-4"
	if family == ip.V6 {
		name = s.Name + "-6"
	}
	if slice := o.slices[name]; slice != nil {
		return slice
	}
	return &discoveryv1.EndpointSlice{}
}

// podAt is the pod with an address.
func (w *world) podAt(address string) string {
	a := netip.MustParseAddr(address)
	for _, name := range script.Pods() {
		if slices.Contains(w.Pod(name).Addrs, a) {
			return name
		}
	}
	return "?"
}

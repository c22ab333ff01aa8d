package servicetest

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The kinds of check, in the order of the report.
const (
	testPods         = "pod without a Service"
	testClusterIP    = "cluster IP"
	testName         = "DNS name"
	testHairpin      = "a pod's own Service"
	testNodePort     = "node port"
	testExternalIP   = "external IP"
	testLoadBalancer = "load balancer"
	testGiven        = "load balancer, policy Local"
	testHealth       = "health check node port"
	testRanges       = "load balancer source ranges"
	testSCTP         = "SCTP"
	testOutside      = "node port from outside"
	testLocal        = "externalTrafficPolicy Local"
	testInternal     = "internalTrafficPolicy Local"
	testAffinity     = "sessionAffinity ClientIP"
	testEmpty        = "no endpoints"
	testEnds         = "an endpoint ends, under load"
	testJoins        = "a new endpoint"
	testLast         = "only ending endpoints, under load"
	testFamilies     = "both families"
)

// inOrder are all kinds.
func inOrder() []string {
	return []string{testPods, testClusterIP, testName, testHairpin, testNodePort, testExternalIP, testLoadBalancer,
		testGiven, testHealth, testRanges, testSCTP, testOutside, testLocal, testInternal, testAffinity, testEmpty, testEnds,
		testJoins, testLast, testFamilies}
}

// check is one client that connects to one address some times.
type check struct {
	test  string
	from  party
	to    target
	want  want
	tries int
}

// target is an address and what it is.
type target struct {
	address, protocol string
	// what is the Service and the way into it, for people.
	what string
	// path is what is asked of the server, hostname unless it is given.
	path string
}

func (t target) String() string {
	text := fmt.Sprintf("%s (%s/%s)", t.what, t.address, t.protocol)
	if t.path != "" {
		text += ", asked for " + t.path
	}
	return text
}

// tcp is the protocol whose answers say who gave them: agnhost connect, which is for the others, does not print them.
const tcp = "tcp"

func (c *check) connection() *Connection {
	return &Connection{Pod: c.from.pod, Address: c.to.address, Protocol: c.to.protocol}
}

// want is what should happen. The zero value wants an answer by anybody.
type want struct {
	// servers are who may answer; nil for anybody. all says that each of them has to, in one of the tries.
	servers []string
	all     bool
	// same says that one server has to answer all tries.
	same bool
	// refused wants a failure at once, and silent that nobody answers, with a refusal or without one. unavailable wants
	// the status 503 of HTTP.
	refused, silent, unavailable bool
	// not are the addresses that a server should not see as the client's.
	not []netip.Prefix
}

// The failures that want knows, by the words of agnhost connect. REFUSED is any that comes at once, be it a reset or
// an ICMP message: what it is depends on the service proxy.
const (
	refusedWord = "REFUSED"
	timeoutWord = "TIMEOUT"

	unavailableWord = "HTTP status 503"
)

// try is what came of one connection: an answer or a failure.
type try struct{ answer, failure string }

// judge says what is wrong with the tries; empty if they went as they should.
func (w want) judge(tries []try) string {
	if len(tries) == 0 {
		return "nothing was tried"
	}
	answered := map[string]bool{}
	for i, t := range tries {
		switch {
		case w.silent && t.failure == "":
			return fmt.Sprintf("%s answered, and nobody should", orSomebody(t.answer))
		case w.silent:
		case w.unavailable && t.failure == "":
			return "it says that the node has endpoints, and it has none"
		case w.unavailable && t.failure == unavailableWord:
		case w.refused && t.failure == refusedWord:
		case w.refused && t.failure == "":
			return fmt.Sprintf("%s answered, and it should be refused", orSomebody(t.answer))
		case w.refused:
			return inWords(t.failure) + ", and it should be refused at once"
		case t.failure != "" && i > 0:
			return fmt.Sprintf("connection %d: %s", i+1, inWords(t.failure))
		case t.failure != "":
			return inWords(t.failure)
		case w.servers != nil && !slices.Contains(w.servers, t.answer):
			return fmt.Sprintf("%s answered, and only %s should", orSomebody(t.answer), strings.Join(w.servers, " and "))
		case containsAddr(w.not, t.answer):
			return fmt.Sprintf("the server saw the client as %s, an address of the node or its pods' network", t.answer)
		}
		answered[t.answer] = true
	}
	if w.same && len(answered) > 1 {
		return fmt.Sprintf("%d servers answered one client", len(answered))
	}
	for _, s := range w.servers {
		if w.all && !answered[s] {
			return fmt.Sprintf("%s did not answer any of %d connections", s, len(tries))
		}
	}
	return ""
}

func containsAddr(prefixes []netip.Prefix, text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

func orSomebody(answer string) string {
	if answer == "" {
		return "somebody"
	}
	return answer
}

func inWords(failure string) string {
	switch failure {
	case refusedWord:
		return "refused, or no way there"
	case timeoutWord:
		return "no answer within 3 s"
	}
	return failure
}

// spread is how many connections reach each of some servers with a probability of all but one in a million, if each is
// chosen with the same probability.
func spread(servers int) int {
	if servers < 2 {
		return 2
	}
	k := float64(servers)
	return int(math.Ceil(math.Log(k*1e6) / -math.Log(1-1/k)))
}

// checks are all that does not change the objects.
func (s *stage) checks() (all []*check) {
	add := func(test string, from party, to target, w want, tries int) {
		if to.protocol != tcp {
			w, tries = want{refused: w.refused, silent: w.silent}, min(tries, 3)
		}
		all = append(all, &check{test, from, to, w, tries})
	}
	for _, from := range s.clients {
		s.fromInside(add, from)
	}
	first := s.servers[0]
	for _, to := range s.clusterIPs(serviceOwn, first) {
		add(testHairpin, first, to, want{servers: []string{first.pod.Name}}, 2)
	}
	if s.outside {
		s.fromOutside(add)
	}
	return all
}

// adder adds a check.
type adder func(test string, from party, to target, w want, tries int)

// everybody wants an answer by each server, and enough is the number of tries for that.
func (s *stage) everybody() (w want, enough int) {
	return want{servers: s.names(s.servers), all: true}, spread(len(s.servers))
}

// fromInside adds the checks of a client in the cluster.
func (s *stage) fromInside(add adder, from party) {
	everybody, enough := s.everybody()
	for _, server := range s.servers {
		for _, ip := range server.pod.Status.PodIPs {
			if from.reaches(ip.IP) {
				add(testPods, from, target{address: join(ip.IP, httpPort), protocol: tcp, what: "pod " + server.pod.Name},
					want{servers: []string{server.pod.Name}}, 2)
			}
		}
	}
	for _, way := range []struct {
		test, service string
		want          want
		tries         int
	}{
		{testClusterIP, serviceAll, everybody, enough},
		{testInternal, serviceNear, s.near(from), 2},
		{testAffinity, serviceSticky, want{servers: everybody.servers, same: true}, 12},
		{testEmpty, serviceEmpty, want{refused: true}, 1},
	} {
		for _, to := range s.clusterIPs(way.service, from) {
			add(way.test, from, to, way.want, way.tries)
		}
	}
	if !from.pod.Spec.HostNetwork {
		name := fmt.Sprintf("%s.%s:%d", serviceAll, s.namespace, servicePort)
		add(testName, from, target{address: name, protocol: tcp, what: "svc/" + serviceAll + " by name"}, want{}, 2)
	}
	for i := range s.nodes {
		for _, to := range s.nodePorts(serviceAll, &s.nodes[i]) {
			if from.reaches(to.address) {
				add(testNodePort, from, to, everybody, enough)
			}
		}
	}
	s.localFromInside(add, from)
	for _, to := range s.external(from) {
		add(testExternalIP, from, to, everybody, enough)
	}
	for _, to := range s.balanced(serviceBalanced, from) {
		add(testLoadBalancer, from, to, everybody, enough)
	}
	// The policy Local of an address of a load balancer does not concern clients in the cluster.
	for _, to := range s.balanced(serviceGiven, from) {
		add(testGiven, from, to, want{servers: s.names(s.servers[:1])}, 2)
	}
	for _, to := range s.balanced(serviceRanges, from) {
		switch { // The node may choose among its addresses for its processes.
		case from.pod.Spec.HostNetwork:
		case from.pod.Name == s.admitted().pod.Name:
			add(testRanges, from, to, everybody, enough)
		default:
			add(testRanges, from, to, want{silent: true}, 1)
		}
	}
	s.healthChecks(add, from)
	for _, to := range s.clusterIPs(serviceSCTP, from) {
		add(testSCTP, from, to, want{}, enough)
	}
	for i := range s.nodes {
		for _, to := range s.nodePorts(serviceSCTP, &s.nodes[i]) {
			if from.reaches(to.address) {
				add(testSCTP, from, to, want{}, enough)
			}
		}
	}
}

// admitted is the client that the Service with source ranges is for.
func (s *stage) admitted() party {
	return s.clients[slices.IndexFunc(s.clients, func(p party) bool { return !p.pod.Spec.HostNetwork })]
}

// healthChecks adds what a load balancer asks each node: whether it has an endpoint of the Service with one endpoint.
func (s *stage) healthChecks(add adder, from party) {
	svc := s.services[serviceGiven]
	if svc == nil || svc.Spec.HealthCheckNodePort == 0 {
		return
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		for _, to := range s.nodePorts(serviceGiven, n) {
			host, _, _ := net.SplitHostPort(to.address)
			to = targetOf(svc, host, svc.Spec.HealthCheckNodePort, corev1.ProtocolTCP, "health check node port of "+n.Name)
			if to.path = "healthz"; from.reaches(host) {
				add(testHealth, from, to, want{unavailable: n.Name != s.servers[0].node}, 2)
			}
		}
	}
}

// localFromInside adds what clients in the cluster may see of externalTrafficPolicy Local, whatever the service proxy:
// they are served by the endpoint's node, which does not masquerade other nodes.
func (s *stage) localFromInside(add adder, from party) {
	first := s.servers[0]
	other := from.node != first.node
	if other && !from.pod.Spec.HostNetwork {
		return // A network of pods may masquerade it.
	}
	for _, to := range s.nodePorts(serviceLocal, s.nodeOf(first)) {
		if !from.reaches(to.address) {
			continue
		}
		add(testLocal, from, to, want{servers: []string{first.pod.Name}}, 2)
		if to.path = "clientip"; other {
			add(testLocal, from, to, want{not: addressesOf(s.nodeOf(first))}, 2)
		}
	}
}

// fromOutside adds the checks whose client is this process.
func (s *stage) fromOutside(add adder) {
	everybody, enough := s.everybody()
	here, first := party{}, s.servers[0]
	for i := range s.nodes {
		n := &s.nodes[i]
		for _, to := range s.nodePorts(serviceAll, n) {
			add(testOutside, here, to, everybody, enough)
		}
		for _, to := range s.nodePorts(serviceLocal, n) {
			if n.Name != first.node {
				add(testLocal, here, to, want{silent: true}, 1)
				continue
			}
			add(testLocal, here, to, want{servers: []string{first.pod.Name}}, 2)
			to.path = "clientip"
			add(testLocal, here, to, want{not: addressesOf(n)}, 2)
		}
	}
	for _, to := range s.balanced(serviceBalanced, here) {
		add(testLoadBalancer, here, to, everybody, enough)
	}
}

// near is what a client gets of a Service with one endpoint and internalTrafficPolicy Local.
func (s *stage) near(from party) want {
	if from.node != s.servers[0].node {
		return want{silent: true}
	}
	return want{servers: []string{s.servers[0].pod.Name}}
}

func (s *stage) names(parties []party) (names []string) {
	for _, p := range parties {
		names = append(names, p.pod.Name)
	}
	return names
}

// clusterIPs are the ports of a Service at those of its cluster IPs whose family the client has.
func (s *stage) clusterIPs(service string, from party) (all []target) {
	svc := s.services[service]
	if svc == nil {
		return nil
	}
	for _, ip := range svc.Spec.ClusterIPs {
		for _, p := range svc.Spec.Ports {
			if from.reaches(ip) {
				all = append(all, targetOf(svc, ip, p.Port, p.Protocol, "cluster IP"))
			}
		}
	}
	return all
}

// nodePorts are the node ports of a Service at the first internal address of each of its families: kube-proxy in its
// newest mode serves no other.
func (s *stage) nodePorts(service string, n *corev1.Node) (all []target) {
	svc := s.services[service]
	if svc == nil {
		return nil
	}
	for _, family := range svc.Spec.IPFamilies {
		i := slices.IndexFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
			return a.Type == corev1.NodeInternalIP && isOf(a.Address, []corev1.IPFamily{family})
		})
		if i < 0 {
			continue
		}
		for _, p := range svc.Spec.Ports {
			if p.NodePort != 0 {
				all = append(all, targetOf(svc, n.Status.Addresses[i].Address, p.NodePort, p.Protocol, "node port of "+n.Name))
			}
		}
	}
	return all
}

// external are the external IPs of the Service that has them.
func (s *stage) external(from party) (all []target) {
	svc := s.services[serviceExternal]
	if svc == nil {
		return nil
	}
	for _, ip := range svc.Spec.ExternalIPs {
		if from.reaches(ip) && isOf(ip, svc.Spec.IPFamilies) {
			all = append(all, targetOf(svc, ip, servicePort, corev1.ProtocolTCP, "external IP"))
		}
	}
	return all
}

// balanced are the addresses of a Service with a load balancer. Names, and addresses that the service proxy does not
// serve, are for clients outside: a load balancer need not answer its own nodes.
func (s *stage) balanced(service string, from party) (all []target) {
	svc := s.services[service]
	if svc == nil {
		return nil
	}
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		served := ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP
		switch host := cmp.Or(ingress.IP, ingress.Hostname); {
		case from.pod != nil && (ingress.IP == "" || !served || !from.reaches(ingress.IP)):
		case ingress.IP != "" && !isOf(ingress.IP, svc.Spec.IPFamilies):
		default:
			all = append(all, targetOf(svc, host, servicePort, corev1.ProtocolTCP, "load balancer"))
		}
	}
	return all
}

func (s *stage) nodeOf(p party) *corev1.Node {
	return &s.nodes[slices.IndexFunc(s.nodes, func(n corev1.Node) bool { return n.Name == p.node })]
}

// addressesOf are the addresses of a node and of its pods: with one of these as the source, it has masqueraded.
func addressesOf(n *corev1.Node) (all []netip.Prefix) {
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func targetOf(svc *corev1.Service, ip string, port int32, protocol corev1.Protocol, way string) target {
	return target{address: join(ip, port), protocol: strings.ToLower(string(protocol)),
		what: "svc/" + svc.Name + ", " + way}
}

func join(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// isOf says whether an address has one of the families.
func isOf(address string, families []corev1.IPFamily) bool {
	a, err := netip.ParseAddr(address)
	family := corev1.IPv6Protocol
	if a.Is4() {
		family = corev1.IPv4Protocol
	}
	return err == nil && slices.Contains(families, family)
}

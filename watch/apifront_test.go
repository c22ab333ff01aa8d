package watch

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// front is a Service of one port, with one slice of endpoints that are ready unless
// "unready" or "ending" (it serves, and terminates) follows after a comma.
type front struct {
	name                   string
	created                int64
	clusterIP              string
	externalIPs, ingress   []string
	ranges                 []string
	port, nodePort, endsAt int32
	endpoints              []string
	local                  bool
}

func (f front) objects() (*corev1.Service, *discoveryv1.EndpointSlice) {
	namespace, name, _ := strings.Cut(f.name, "/")
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Unix(f.created, 0)},
		Spec: corev1.ServiceSpec{
			ClusterIP: f.clusterIP, ExternalIPs: f.externalIPs, LoadBalancerSourceRanges: f.ranges,
			Ports: []corev1.ServicePort{{Port: f.port, NodePort: f.nodePort}},
		},
	}
	if f.local {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	}
	for _, ip := range f.ingress {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &f.endsAt}},
	}
	if strings.Contains(f.clusterIP, ":") {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, text := range f.endpoints {
		address, state, _ := strings.Cut(text, ",")
		ready, ending := state == "", state == "ending"
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &[]bool{ready || ending}[0],
				Terminating: &ending}})
	}
	return s, slice
}

func (f front) set(ix *index) {
	s, slice := f.objects()
	ix.setService(convertService(s))
	ix.setSlice(convertSlice(slice))
}

// TestAPIServerBehindService: the address by which the proxy reaches the API server is a
// Service's if all of its ready endpoints are API servers, whatever the way it gets the
// address. It is nobody else's, however old.
func TestAPIServerBehindService(t *testing.T) {
	kubernetes := front{name: "default/kubernetes", clusterIP: "10.96.0.1", port: 443, endsAt: 6443,
		endpoints: []string{"10.0.0.5", "10.0.0.6"}}
	kubernetes6 := front{name: "default/kubernetes", clusterIP: "fd00:96::1", port: 443, endsAt: 6443,
		endpoints: []string{"fd00::5"}}
	api := front{name: "kube-system/api", created: 9, clusterIP: "10.96.0.9", ingress: []string{"172.31.0.100"},
		port: 6443, endsAt: 6443, endpoints: []string{"10.0.0.5", "10.0.0.6"}}
	changed := func(change func(*front)) front {
		f := api
		change(&f)
		return f
	}
	external := changed(func(f *front) { f.ingress, f.externalIPs = nil, []string{"172.31.0.100"} })
	stranger := front{name: "tenant/grab", created: 1, clusterIP: "10.96.0.8", externalIPs: []string{"172.31.0.100"},
		port: 6443, endsAt: 6443, endpoints: []string{"10.244.0.8"}}
	const node = "192.168.0.2"
	for name, test := range map[string]struct {
		kubernetes front
		dialed     string
		services   []front
		served     service.Name // the Service that has the address; empty for none
	}{
		"load balancer": {kubernetes, "172.31.0.100:6443", []front{api}, "kube-system/api"},
		"externalIPs":   {kubernetes, "172.31.0.100:6443", []front{external}, "kube-system/api"},
		"one of them is unready": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.endpoints = []string{"10.0.0.5", "10.0.0.7,unready"} })}, "kube-system/api"},
		"mixed": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.endpoints = []string{"10.0.0.5", "10.244.0.8"} })}, ""},
		"none is ready": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.endpoints = []string{"10.0.0.5,unready"} })}, ""},
		"the last one ends": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.endpoints = []string{"10.0.0.5,ending"} })}, "kube-system/api"},
		"a stranger's ends": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.endpoints = []string{"10.244.0.8,ending"} })}, ""},
		"an old one ends": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.endpoints = []string{"10.0.0.5", "10.0.0.7,ending"} })}, "kube-system/api"},
		"a local one ends": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.local, f.endpoints = true, []string{"10.0.0.5", "10.244.0.8,ending"} })}, ""},
		"another port": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.endsAt = 22 })}, ""},
		"a stranger":        {kubernetes, "172.31.0.100:6443", []front{stranger}, ""},
		"beside a stranger": {kubernetes, "172.31.0.100:6443", []front{stranger, api}, "kube-system/api"},
		"externalIPs beside an older stranger": {kubernetes, "172.31.0.100:6443", []front{stranger, external},
			"kube-system/api"},
		"an API server's own address": {kubernetes, "10.0.0.5:6443",
			[]front{changed(func(f *front) { f.ingress, f.endpoints = []string{"10.0.0.5"}, []string{"10.0.0.6"} })}, ""},
		"source ranges with the node": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.ranges = []string{"192.168.0.0/24"} })}, "kube-system/api"},
		"source ranges without the node": {kubernetes, "172.31.0.100:6443",
			[]front{changed(func(f *front) { f.ranges = []string{"203.0.113.0/24"} })}, ""},
		"an address of the node": {kubernetes, node + ":6443",
			[]front{changed(func(f *front) { f.ingress = []string{node} })}, "kube-system/api"},
		"node port of the node": {kubernetes, node + ":30443",
			[]front{changed(func(f *front) { f.ingress, f.nodePort = nil, 30443 })}, "kube-system/api"},
		"a stranger's node port": {kubernetes, node + ":30443", []front{{name: "tenant/grab", clusterIP: "10.96.0.8",
			port: 80, nodePort: 30443, endsAt: 80, endpoints: []string{"10.244.0.8"}}}, ""},
		"IPv6": {kubernetes6, "[fd00:31::64]:6443", []front{{name: "kube-system/api", clusterIP: "fd00:96::9",
			ingress: []string{"fd00:31::64"}, port: 6443, endsAt: 6443, endpoints: []string{"fd00::5"}}}, "kube-system/api"},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
			w.SetHostAddresses([]netip.Addr{netip.MustParseAddr(node)}, nil)
			w.index.setNode(convertNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}, Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: node}},
			}}))
			dialed := netip.MustParseAddrPort(test.dialed)
			w.AddAPIServer(dialed)
			for _, f := range test.services {
				f.set(w.index)
			}
			if got := served(w.index.flush(), dialed); got != "" {
				t.Errorf("before the API servers are known, it is served by %s", got)
			}
			test.kubernetes.set(w.index)
			if got := served(w.index.flush(), dialed); got != test.served {
				t.Errorf("served by %q, want %q\n%s", got, test.served, w.index.flush())
			}
			// The API servers restart: they leave the list, and the Service stays.
			none := test.kubernetes
			none.endpoints = nil
			none.set(w.index)
			if got := served(w.index.flush(), dialed); got != test.served && test.dialed != "10.0.0.5:6443" {
				t.Errorf("while the list is empty, served by %q, want %q", got, test.served)
			}
		})
	}
}

// served returns the Service that has the address and port by the snapshot.
func served(s service.Snapshot, at netip.AddrPort) service.Name {
	for name, one := range s.Services.All() {
		for i := range one.Ports {
			p := &one.Ports[i]
			c := service.Claim{Addr: at.Addr(), Protocol: p.Protocol, Port: at.Port()}
			if p.Port == at.Port() && slices.Contains(one.Addresses(), at.Addr()) && !s.Conflicts.At(name).Has(c) {
				return name
			}
			if c := service.NodePortClaim(ip.Of(at.Addr()), p); p.NodePort == at.Port() && !s.Conflicts.At(name).Has(c) {
				return name
			}
		}
	}
	return ""
}

// TestAPIServerBehindServiceFollows: the Service loses the address when another endpoint
// comes, and gets it back.
func TestAPIServerBehindServiceFollows(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
	dialed := netip.MustParseAddrPort("172.31.0.100:6443")
	w.AddAPIServer(dialed)
	front{name: "default/kubernetes", clusterIP: "10.96.0.1", port: 443, endsAt: 6443,
		endpoints: []string{"10.0.0.5"}}.set(w.index)
	api := front{name: "kube-system/api", clusterIP: "10.96.0.9", ingress: []string{"172.31.0.100"}, port: 6443,
		endsAt: 6443}
	for _, step := range []struct{ endpoints, served string }{
		{"10.0.0.5", "kube-system/api"}, {"10.0.0.5 10.244.0.1", ""}, {"10.244.0.1", ""}, {"10.0.0.5", "kube-system/api"},
	} {
		api.endpoints = strings.Fields(step.endpoints)
		api.set(w.index)
		if got := served(w.index.flush(), dialed); got != service.Name(step.served) {
			t.Errorf("with %s it is served by %q", step.endpoints, got)
		}
	}
}

// TestBroadcastAddresses: a Service does not get the broadcast address of a network that
// the node is on, and gets it when the node has left the network.
func TestBroadcastAddresses(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
	own, broadcast := netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.255")
	w.SetHostAddresses([]netip.Addr{own}, nil, broadcast)
	front{name: "tenant/grab", clusterIP: "10.96.0.8", ingress: []string{"192.168.0.255"}, port: 80,
		endsAt: 80}.set(w.index)
	at := netip.AddrPortFrom(broadcast, 80)
	if got := served(w.index.flush(), at); got != "" {
		t.Errorf("served by %s", got)
	}
	const want = "Service tenant/grab: not served: 192.168.0.255:80/tcp: the broadcast address of a network that the " +
		"node is on"
	if got := texts(w.index.takeProblems()); got != want {
		t.Errorf("reported:\n%s\nwant:\n%s", got, want)
	}
	w.SetHostAddresses([]netip.Addr{own}, nil)
	if got := served(w.index.flush(), at); got != "tenant/grab" {
		t.Errorf("outside of the network, served by %q", got)
	}
	w.SetHostAddresses([]netip.Addr{own, broadcast}, nil, broadcast)
	if got := served(w.index.flush(), at); got != "tenant/grab" {
		t.Errorf("as an address of the node, served by %q", got)
	}
}

// TestPodRanges: a Service gets no externalIP in a range of pods, unless an interface of the
// node has the address, or the range is the nodes' as well. A load balancer's address may
// be in the cluster's range.
func TestPodRanges(t *testing.T) {
	const clusters, nodes = "10.244.9.9", "10.244.1.9"
	for name, test := range map[string]struct {
		clusterCIDR, node, externalIP, ingress string
		served                                 service.Name
	}{
		"externalIP of the cluster's range":    {"10.244.0.0/16", "192.168.0.2", clusters, "", ""},
		"externalIP of the node's range":       {"", "192.168.0.2", nodes, "", ""},
		"externalIP of no range":               {"", "192.168.0.2", clusters, "", "tenant/web"},
		"the bridge's address":                 {"10.244.0.0/16", "192.168.0.2", "10.244.1.1", "", "tenant/web"},
		"load balancer of the cluster's range": {"10.244.0.0/16", "192.168.0.2", "", clusters, "tenant/web"},
		"load balancer of the node's range":    {"10.244.0.0/16", "192.168.0.2", "", nodes, ""},
		"a range with the node":                {"10.244.0.0/16", "10.244.0.2", clusters, "", "tenant/web"},
		"a node's range with the node":         {"", "10.244.1.2", "", nodes, "tenant/web"},
		"a range of all addresses":             {"0.0.0.0/0", "192.168.0.2", clusters, "", "tenant/web"},
	} {
		t.Run(name, func(t *testing.T) {
			var settings service.Settings
			if test.clusterCIDR != "" {
				settings.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix(test.clusterCIDR)}
			}
			w := NewWatcher(Options{Node: "node-0", Settings: settings}, service.NewMailbox())
			w.SetHostAddresses([]netip.Addr{netip.MustParseAddr("10.244.1.1")}, nil)
			w.index.setNode(convertNode(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "node-0"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
				Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: test.node}}},
			}))
			f := front{name: "tenant/web", clusterIP: "10.96.0.8", port: 80, endsAt: 80}
			address := test.externalIP + test.ingress
			if test.externalIP != "" {
				f.externalIPs = []string{test.externalIP}
			} else {
				f.ingress = []string{test.ingress}
			}
			f.set(w.index)
			if got := served(w.index.flush(), netip.AddrPortFrom(netip.MustParseAddr(address), 80)); got != test.served {
				t.Errorf("served by %q, want %q", got, test.served)
			}
			// With other settings no range of the cluster is known.
			w.SetSettings(&service.Settings{})
			if test.externalIP == clusters {
				if got := served(w.index.flush(), netip.AddrPortFrom(netip.MustParseAddr(clusters), 80)); got != "tenant/web" {
					t.Errorf("without a range, served by %q", got)
				}
			}
		})
	}
}

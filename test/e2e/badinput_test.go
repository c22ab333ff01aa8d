package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestBadInput creates objects with faults in the API server. Each either works, or the log
// names the object and the field, and another service works all the time.
func TestBadInput(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	good := n.create(service("good", "good"))
	n.runPod("good-1", "good")
	backend := n.addServer("backend")
	n.addCrowd()
	p := n.startProxy()
	goodWorks := func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(client, protocol, address(good, protocol, family), "good-1")
		})
	}
	p.until("the good service works", goodWorks)

	for _, test := range []struct {
		name string
		// make makes the objects and returns the service to ask, by TCP.
		make func(n *node, backend netip.Addr) *corev1.Service
		// says are words of one line of the log; none if nothing is wrong.
		says []string
		// answers is the name of the server that answers at the cluster IP; nobody means
		// that the connection is refused.
		answers string
	}{
		{"a service with an external address that does not parse", seedBadExternal,
			[]string{"Service", "/bad-external", `spec.externalIPs[1]: "203.0.113.300": not an IP address`}, "backend"},
		{"a service with a load balancer's address that does not parse", seedBadIngress,
			[]string{"Service", "/bad-ingress", `status.loadBalancer.ingress[0].ip: "none": not an IP address`}, "backend"},
		{"an external address twice", twiceExternal, nil, "backend"},
		{"an external address of an older service", takenExternal,
			[]string{"Service", "/younger", "203.0.113.7", "belongs to Service", "/older"}, "backend"},
		{"names of 63 characters", longNames, nil, "backend"},
		{"a slice of 1,000 endpoints", crowded, nil, "crowd"},
		{"a slice of type FQDN", fqdn,
			[]string{"EndpointSlice", "/fqdn-1", `addressType: "FQDN": not IPv4 or IPv6`}, ""},
		{"a slice without ports", noPorts, nil, ""},
		{"a slice whose port has no number", noNumber,
			[]string{"EndpointSlice", "/no-number-1", "ports[0]"}, ""},
		{"a slice whose port has no name", noName, nil, "backend"},
		{"a slice of no service, which the proxy does not ask for", noOwner, nil, ""},
		{"a slice that names an empty service", emptyOwner,
			[]string{"EndpointSlice", "/empty-owner-1", "no kubernetes.io/service-name: it belongs to no Service"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := p.Mark()
			made := test.make(n, backend.Addrs.V4())
			if len(test.says) > 0 {
				l := p.awaitText(at, test.says...)
				t.Log(l.Err)
				if l.Level != "WARN" {
					t.Errorf("level %s, want WARN", l.Level)
				}
			}
			p.until("the service's own traffic", func() error {
				to := netip.AddrPortFrom(netip.MustParseAddr(made.Spec.ClusterIP), httpPort)
				if test.answers != "" {
					return n.reaches(client, testnet.TCP, to, test.answers)
				}
				_, err := n.refused(client, testnet.TCP, to)
				return err
			})
			if err := goodWorks(); err != nil {
				t.Errorf("the good service: %v", err)
			}
		})
	}
	n.checkExternal(client)
	// Slices come in order: it would have come before the last one.
	lines, _ := p.Logged(0)
	for _, l := range lines {
		if strings.Contains(l.Text, "/no-owner-1") {
			t.Errorf("the API server sends the slice of no service: %s", l.Text)
		}
	}
}

// checkExternal asks the external addresses that are good.
func (n *node) checkExternal(client *testnet.Namespace) {
	n.t.Helper()
	for name, address := range map[string]string{
		"beside one that does not parse": "203.0.113.5", "listed twice": "203.0.113.6", "claimed by two": "203.0.113.7",
	} {
		if err := n.reaches(client, testnet.TCP, netip.AddrPortFrom(netip.MustParseAddr(address), httpPort),
			"backend"); err != nil {
			n.t.Errorf("an external address %s: %v", name, err)
		}
	}
}

// simple is an IPv4 service with one TCP port and no selector.
func simple(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "http", Protocol: corev1.ProtocolTCP, Port: httpPort, TargetPort: intstr.FromInt32(podPort)},
		}},
	}
}

// seed stores a service that the API server would refuse, and a slice for it.
func (n *node) seed(s *corev1.Service, clusterIP string, backend netip.Addr) *corev1.Service {
	n.t.Helper()
	s.Namespace, s.Spec.ClusterIPs = n.namespace, []string{clusterIP}
	n.must(n.plane.cluster.Seed(n.ctx, s))
	n.publish(slice(s.Name+"-1", s, backend))
	made, err := n.plane.client.CoreV1().Services(n.namespace).Get(n.ctx, s.Name, metav1.GetOptions{})
	n.must(err)
	return made
}

func seedBadExternal(n *node, backend netip.Addr) *corev1.Service {
	s := simple("bad-external")
	s.Spec.ExternalIPs = []string{"203.0.113.5", "203.0.113.300"}
	return n.seed(s, "10.111.0.1", backend)
}

func seedBadIngress(n *node, backend netip.Addr) *corev1.Service {
	s := simple("bad-ingress")
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "none"}}
	return n.seed(s, "10.111.0.2", backend)
}

func twiceExternal(n *node, backend netip.Addr) *corev1.Service {
	s := simple("twice")
	s.Spec.ExternalIPs = []string{"203.0.113.6", "203.0.113.6"}
	n.publish(slice("twice-1", s, backend))
	return n.create(s)
}

func takenExternal(n *node, backend netip.Addr) *corev1.Service {
	for _, name := range []string{"older", "younger"} {
		s := simple(name)
		s.Spec.ExternalIPs = []string{"203.0.113.7"}
		n.publish(slice(name+"-1", s, backend))
		s = n.create(s)
		if name == "younger" {
			return s
		}
	}
	return nil
}

func longNames(n *node, backend netip.Addr) *corev1.Service {
	long := func(s string) string { return s + strings.Repeat("x", 63-len(s)) }
	namespace := long(fmt.Sprintf("namespace-%d-", n.plane.Nodes()))
	n.must(n.plane.cluster.CreateNamespace(n.ctx, namespace))
	inside := *n
	inside.namespace = namespace
	n.t.Cleanup(inside.clean)
	s := simple(long("service-"))
	s.Spec.Ports[0].Name = long("port-")
	inside.publish(slice(long("slice-"), s, backend))
	return inside.create(s)
}

// The crowd is a pod with very many addresses.
const (
	crowdRange = "10.250.0.0/22"
	crowdSize  = 1000
)

func (n *node) addCrowd() {
	n.t.Helper()
	pod, err := n.AddPod("crowd")
	n.must(err)
	_, err = pod.NS.Serve(testnet.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), podPort), "crowd")
	n.must(err)
	_, all, err := net.ParseCIDR(crowdRange)
	n.must(err)
	lo, err := pod.NS.Handle().LinkByName("lo")
	n.must(err, pod.NS.Handle().RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	}))
	link, err := n.Node.Handle().LinkByName(pod.HostInterface)
	n.must(err, n.Node.Handle().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all,
		Scope: netlink.SCOPE_LINK}))
}

func crowded(n *node, _ netip.Addr) *corev1.Service {
	s := simple("crowded")
	var addrs []netip.Addr
	a := netip.MustParsePrefix(crowdRange).Addr()
	for range crowdSize {
		a = a.Next()
		addrs = append(addrs, a)
	}
	n.publish(slice("crowded-1", s, addrs...))
	return n.create(s)
}

func fqdn(n *node, _ netip.Addr) *corev1.Service {
	s := simple("fqdn")
	made := slice("fqdn-1", s)
	made.AddressType = discoveryv1.AddressTypeFQDN
	made.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"backend.example.com"}}}
	n.publish(made)
	return n.create(s)
}

func noPorts(n *node, backend netip.Addr) *corev1.Service {
	s := simple("no-ports")
	made := slice("no-ports-1", s, backend)
	made.Ports = []discoveryv1.EndpointPort{}
	n.publish(made)
	return n.create(s)
}

func noNumber(n *node, backend netip.Addr) *corev1.Service {
	s := simple("no-number")
	made := slice("no-number-1", s, backend)
	made.Ports[0].Port = nil
	n.publish(made)
	return n.create(s)
}

func noName(n *node, backend netip.Addr) *corev1.Service {
	s := simple("no-name")
	s.Spec.Ports[0].Name = ""
	made := slice("no-name-1", s, backend)
	made.Ports[0].Name = nil
	n.publish(made)
	return n.create(s)
}

func emptyOwner(n *node, backend netip.Addr) *corev1.Service {
	s := simple("empty-owner")
	made := slice("empty-owner-1", s, backend)
	made.Labels[discoveryv1.LabelServiceName] = ""
	n.publish(made)
	return n.create(s)
}

func noOwner(n *node, backend netip.Addr) *corev1.Service {
	s := simple("no-owner")
	made := slice("no-owner-1", s, backend)
	delete(made.Labels, discoveryv1.LabelServiceName)
	made.Labels["kubernetes.io/endpoint-selector-name"] = s.Name // KEP-6116
	n.publish(made)
	return n.create(s)
}

// manifest is what the directory of TestBadManifests holds at first.
const manifest = `
apiVersion: v1
kind: Service
metadata: {name: good, namespace: shop}
spec: {clusterIP: 10.96.1.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: good-1, namespace: shop, labels: {kubernetes.io/service-name: good}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [BACKEND]}]
`

// TestBadManifests does the same with files, where no API server has looked at
// them before.
func TestBadManifests(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	backend := n.addServer("backend")
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		text = strings.ReplaceAll(text, "BACKEND", backend.Addrs.V4().String())
		n.must(os.WriteFile(filepath.Join(dir, name+".new"), []byte(text), 0o600),
			os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)))
	}
	write("good.yaml", manifest)
	p := n.startProxy("--kubeconfig=", "--nftproxy-manifests="+dir)
	answered := func(address string) func() error {
		return func() error {
			return n.reaches(client, testnet.TCP, netip.MustParseAddrPort(address), "backend")
		}
	}
	p.until("the good service works", answered("10.96.1.1:80"))

	for _, test := range []struct {
		name, text string
		says       []string
	}{
		{"address", "kind: Service\napiVersion: v1\nmetadata: {name: bad, namespace: shop}\nspec: {clusterIP: 10.96.1.999, " +
			"ports: [{port: 80}]}",
			[]string{"address.yaml", "Service shop/bad", "spec.clusterIP", `"10.96.1.999": not an IP address`}},
		{"syntax", "# one\n---\nkind: Service\napiVersion: v1\nmetadata: {name: half, namespace: shop\nspec: [",
			[]string{"syntax.yaml", "document 2", "line 5"}},
		{"type", "kind: Service\napiVersion: v1\nmetadata: {name: typed, namespace: shop}\nspec: {clusterIP: 10.96.1.3, " +
			"ports: [{port: eighty}]}",
			[]string{"type.yaml", "Service shop/typed", "spec.ports"}},
		{"port", "kind: Service\napiVersion: v1\nmetadata: {name: port, namespace: shop}\nspec: {clusterIP: 10.96.1.4, " +
			"ports: [{port: 70000}]}",
			[]string{"port.yaml", "Service shop/port", `spec.ports[0].port: "70000": not in 1 to 65535`}},
		{"taken", "kind: Service\napiVersion: v1\nmetadata: {name: zz-taken, namespace: shop}\nspec: {clusterIP: " +
			"10.96.1.1, ports: [{port: 80}]}",
			[]string{"Service shop/zz-taken", "10.96.1.1", "belongs to", "shop/good"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := p.Mark()
			write(test.name+".yaml", test.text)
			l := p.awaitText(at, test.says...)
			t.Log(l.Err)
			if err := answered("10.96.1.1:80")(); err != nil {
				t.Errorf("the good service: %v", err)
			}
		})
	}

	// The last good state stays in force, and the next good one counts.
	at := p.Mark()
	write("good.yaml", manifest+"\n---\nkind: [")
	p.awaitText(at, "good.yaml", "document 3")
	n.must(answered("10.96.1.1:80")())
	at = p.Mark()
	write("good.yaml", "{broken\n---\n"+strings.ReplaceAll(manifest, "10.96.1.1", "10.96.1.2"))
	p.awaitText(at, "good.yaml", "document 1")
	p.until("the other document's change counts", answered("10.96.1.2:80"))
}

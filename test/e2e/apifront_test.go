package e2e

import (
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestAPIServerBehindService: the kubeconfig has the address of a load balancer whose
// Service leads to the API server, and no other host answers there. The proxy starts
// while an earlier run's rules lead there, keeps them, and hears of changes.
func TestAPIServerBehindService(t *testing.T) {
	n := newNode(t)
	server, front := n.apiEndpoint(), netip.MustParseAddrPort("172.31.0.100:6443")
	n.routeLike(front.Addr(), server.Addr())
	spec := simple("api")
	spec.Spec.Type = corev1.ServiceTypeLoadBalancer
	spec.Spec.Ports[0].Port, spec.Spec.Ports[0].TargetPort = int32(front.Port()), intstr.FromInt32(int32(server.Port()))
	api := n.create(spec)
	n.publish(slice("api-1", api, server.Addr()))
	api.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: front.Addr().String()}}
	_, err := n.plane.client.CoreV1().Services(n.namespace).UpdateStatus(n.ctx, api, metav1.UpdateOptions{})
	n.must(err)
	leads := func() error {
		conn, err := n.Node.Dial(n.ctx, "tcp", front.String())
		if err == nil {
			conn.Close()
		}
		return err
	}
	first := n.startProxy()
	first.until("the load balancer's address leads to the API server", leads)
	first.stop()

	second := n.startProxy("--kubeconfig=" + n.kubeconfigBy(front))
	if err := leads(); err != nil {
		t.Errorf("after the first program: %v", err)
	}
	client := n.addClient()
	web := n.create(service("web", ""))
	n.publish(slice("web-1", web, n.addServer("web-1").Addrs[0]))
	second.until("a later Service is served", func() error {
		return n.reaches(client, testnet.TCP, address(web, testnet.TCP, ip.V4), "web-1")
	})
	if err := leads(); err != nil {
		t.Errorf("after a change: %v", err)
	}
}

// routeLike gives an address the route of another one: without rules, nobody answers there.
func (n *node) routeLike(to, like netip.Addr) {
	n.t.Helper()
	routes, err := n.Node.Handle().RouteGet(like.AsSlice())
	n.must(err)
	dst := &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())}
	n.must(n.Node.Handle().RouteAdd(&netlink.Route{LinkIndex: routes[0].LinkIndex, Gw: routes[0].Gw, Dst: dst}))
}

// apiEndpoint is the endpoint of the Service default/kubernetes.
func (n *node) apiEndpoint() netip.AddrPort {
	n.t.Helper()
	list, err := n.plane.client.DiscoveryV1().EndpointSlices("default").List(n.ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	n.must(err)
	for _, s := range list.Items {
		if s.AddressType == discoveryv1.AddressTypeIPv4 && len(s.Endpoints) > 0 {
			return netip.AddrPortFrom(netip.MustParseAddr(s.Endpoints[0].Addresses[0]), uint16(*s.Ports[0].Port))
		}
	}
	n.t.Fatal("default/kubernetes has no endpoints")
	return netip.AddrPort{}
}

// kubeconfigBy writes the administrator's kubeconfig with another address of the API
// server.
func (n *node) kubeconfigBy(at netip.AddrPort) string {
	n.t.Helper()
	config, err := clientcmd.LoadFromFile(n.plane.cluster.AdminKubeconfig())
	n.must(err)
	for _, c := range config.Clusters {
		server, err := url.Parse(c.Server)
		n.must(err)
		c.Server, c.TLSServerName = "https://"+at.String(), server.Hostname()
	}
	path := filepath.Join(n.t.TempDir(), "kubeconfig")
	n.must(clientcmd.WriteToFile(*config, path))
	return path
}

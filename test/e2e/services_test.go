package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestService follows a service through its life: created, scaled, without
// endpoints, deleted.
func TestService(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	web := n.create(service("web", "web"))
	p := n.startProxy()

	var slowest time.Duration
	allRefused := func() error {
		slowest = 0
		return everywhere(func(protocol string, family ip.Family) error {
			for _, from := range []*testnet.Namespace{client, n.Node} {
				took, err := n.refused(from, protocol, address(web, protocol, family))
				if err != nil {
					return err
				}
				slowest = max(slowest, took)
			}
			return nil
		})
	}
	p.until("a service without endpoints refuses", allRefused)
	t.Logf("slowest of 12 refusals: %v", slowest)

	reached := func(want ...string) func() error {
		return func() error {
			return everywhere(func(protocol string, family ip.Family) error {
				return errors.Join(
					n.reaches(client, protocol, address(web, protocol, family), want...),
					n.reaches(n.Node, protocol, address(web, protocol, family), want...))
			})
		}
	}
	n.runPod("web-1", "web")
	p.until("one pod serves", reached("web-1"))
	n.runPod("web-2", "web")
	n.runPod("web-3", "web")
	p.until("three pods serve", reached("web-1", "web-2", "web-3"))
	n.deletePod("web-2")
	p.until("two pods serve", reached("web-1", "web-3"))

	unknown := func(protocol string, family ip.Family) error {
		to := netip.AddrPortFrom(address(web, protocol, family).Addr(), 4711)
		_, err := n.refused(client, protocol, to)
		return err
	}
	if err := everywhere(unknown); err != nil {
		t.Errorf("a port that the service does not have: %v", err)
	}

	n.deletePod("web-1")
	n.deletePod("web-3")
	p.until("the last pod has gone", allRefused)
	n.runPod("web-4", "web")
	p.until("a pod has come back", reached("web-4"))

	n.must(n.plane.client.CoreV1().Services(n.namespace).Delete(n.ctx, web.Name, metav1.DeleteOptions{}))
	gone := func() error {
		answer, err := client.Ask(n.ctx, testnet.TCP, address(web, testnet.TCP, ip.V4), 200*time.Millisecond)
		if err == nil && answer.Outcome != testnet.TimedOut {
			err = fmt.Errorf("%s", answer.Outcome)
		}
		return err
	}
	p.until("the deleted service is nobody's address", gone)
}

// TestPeers checks the client's address that the servers see. The proxy knows pods by the
// cluster CIDR.
func TestPeers(t *testing.T) { testPeers(t) }

// TestPeersByInterface is TestPeers where the proxy knows pods by their interface.
func TestPeersByInterface(t *testing.T) {
	testPeers(t, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth")
}

func testPeers(t *testing.T, flags ...string) {
	n := newNode(t)
	client := n.addClient()
	for _, a := range n.NodeAddrs { // a client outside that knows the way to services
		n.must(n.Outside.AddRoute(serviceRange(ip.Of(a)), a))
	}
	spec := service("web", "web")
	spec.Spec.Type = corev1.ServiceTypeNodePort
	web := n.create(spec)
	spec = service("local", "web")
	spec.Spec.Type, spec.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	local := n.create(spec)
	pod := n.runPod("web-1", "web")
	p := n.startProxy(flags...)
	p.until("the pod serves", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return errors.Join(n.reaches(client, protocol, address(web, protocol, family), "web-1"),
				n.reaches(client, protocol, address(local, protocol, family), "web-1"))
		})
	})

	for _, test := range []struct {
		name     string
		from     *testnet.Namespace
		nodePort bool
		want     testnet.Addrs
		service  *corev1.Service // web where none is named
	}{
		{"from a pod: as it is", client, false, n.Pod("client").Addrs, nil},
		{"hairpin: masqueraded", pod.NS, false, n.NodeAddrs, nil},
		{"from the node: masqueraded", n.Node, false, n.NodeAddrs, nil},
		{"from outside: masqueraded", n.Outside, false, n.NodeAddrs, nil},
		{"node port from outside: masqueraded", n.Outside, true, n.NodeAddrs, nil},
		{"node port from a pod: masqueraded", client, true, n.NodeAddrs, nil},
		{"node port from the node: masqueraded", n.Node, true, n.NodeAddrs, nil},
		{"node port, hairpin: masqueraded", pod.NS, true, n.NodeAddrs, nil},
		{"policy Local, node port from outside: as it is", n.Outside, true, n.OutsideAddrs, local},
		{"policy Local, node port from a pod: as it is", client, true, n.Pod("client").Addrs, local},
		{"policy Local, node port from the node: masqueraded", n.Node, true, n.NodeAddrs, local},
		{"policy Local, node port, hairpin: masqueraded", pod.NS, true, n.NodeAddrs, local},
		{"policy Local, cluster IP from outside: masqueraded", n.Outside, false, n.NodeAddrs, local},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := cmp.Or(test.service, web)
			err := everywhere(func(protocol string, family ip.Family) error {
				to := address(s, protocol, family)
				if test.nodePort {
					to = netip.AddrPortFrom(of(n.NodeAddrs, family), nodePort(s, protocol))
				}
				got, err := n.peer(test.from, protocol, to)
				if err == nil && got != of(test.want, family) {
					err = fmt.Errorf("%s to %v: the server saw %v, want %v", protocol, to, got, of(test.want, family))
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}

	n.deletePod("web-1")
	p.until("a node port without endpoints refuses", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			_, err := n.refused(n.Outside, protocol, netip.AddrPortFrom(of(n.NodeAddrs, family), nodePort(web, protocol)))
			return err
		})
	})
}

// TestAPIServerService reaches the API server through its own service, as pods do.
func TestAPIServerService(t *testing.T) {
	n := newNode(t)
	p := n.startProxy()
	api, err := n.plane.client.CoreV1().Services("default").Get(n.ctx, "kubernetes", metav1.GetOptions{})
	n.must(err)
	// The API server makes its EndpointSlice some time after it is ready.
	p.until("the API server answers", func() error {
		conn, err := n.Node.Dial(n.ctx, "tcp", netip.AddrPortFrom(clusterIPs(api)[0], 443).String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func serviceRange(family ip.Family) netip.Prefix {
	if family == ip.V6 {
		return netip.MustParsePrefix("fd00:10:96::/108")
	}
	return netip.MustParsePrefix("10.96.0.0/12")
}

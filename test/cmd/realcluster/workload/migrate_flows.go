package workload

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"nftproxy/test/lib/testnet"
)

// loyalClient is a client of a Service with session affinity.
type loyalClient struct {
	name   string
	server string // the last one
	moves  atomic.Int64
	// known is moves at the last look.
	known int64
}

// addFlows adds what only a migration has: session affinity, a pod that reaches itself by a Service, pings of nodes,
// and, where kube-proxy serves them, node ports at 127.0.0.1. Neither kube-proxy's nftables mode nor its iptables mode
// answers pings of cluster IPs.
func (t *migration) addFlows(ctx context.Context, l *Load) error {
	iptables, err := t.iptablesMode(ctx)
	if err != nil {
		return err
	}
	pods, err := t.Clients(ctx)
	if err != nil {
		return err
	}
	loyal, err := t.makeService(ctx, "loyal", map[string]string{"app": "web"}, corev1.ServiceAffinityClientIP)
	if err != nil {
		return err
	}
	self, err := t.makeService(ctx, "self", nil, corev1.ServiceAffinityNone)
	if err != nil {
		return err
	}
	first := t.Nodes()[0]
	if err := t.publishSelf(ctx, first, pods[first], !iptables); err != nil {
		return err
	}
	for _, a := range self {
		t.addAsk(l, "pod on "+first+" to itself", pods[first][0], a)
	}
	for _, node := range t.Nodes() {
		for _, a := range loyal {
			t.addLoyal(l, node, pods[node][0], a)
		}
		for _, a := range t.Addrs(node) {
			l.add(betweenAllAsks, "ping of "+a.String(), func(ctx context.Context) error {
				answer, err := t.Outside.Ask(ctx, testnet.ICMP, netip.AddrPortFrom(a, 0), requestTimeout)
				if err == nil && answer.Outcome != testnet.Answered {
					err = fmt.Errorf("%s", answer.Outcome)
				}
				return err
			})
		}
		if iptables {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), t.Port)
			l.add(betweenAllAsks, node+" to "+to.String(), func(ctx context.Context) error {
				_, err := get(ctx, t.NetworkOf(node), to, "/hostname")
				return err
			})
		}
	}
	return nil
}

// iptablesMode says whether the ConfigMap kube-proxy has this mode.
func (t *migration) iptablesMode(ctx context.Context) (bool, error) {
	object, err := t.Client.CoreV1().ConfigMaps(kubeSystem).Get(ctx, kubeProxy, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read kube-proxy's mode: %w", err)
	}
	var config struct{ Mode string }
	if err := yaml.Unmarshal([]byte(object.Data["config.conf"]), &config); err != nil {
		return false, fmt.Errorf("read kube-proxy's mode: %w", err)
	}
	return config.Mode == "iptables" || config.Mode == "", nil
}

// makeService makes a Service with port 80 for port 8080 of its pods, and returns its cluster IPs.
func (t *migration) makeService(ctx context.Context, name string, selector map[string]string,
	affinity corev1.ServiceAffinity) ([]netip.Addr, error) {
	policy := corev1.IPFamilyPolicyPreferDualStack
	made, err := t.Client.CoreV1().Services(Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &policy, Selector: selector, SessionAffinity: affinity,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(podPort)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make Service %s: %w", name, err)
	}
	var addrs []netip.Addr
	for _, text := range made.Spec.ClusterIPs {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("cluster IP of Service %s: %w", name, err)
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// publishSelf makes a pod the endpoint of the Service self, by slices as people write them, without nodeName;
// kube-proxy's nftables mode has a pod reach itself only with it.
func (t *migration) publishSelf(ctx context.Context, node string, addrs []netip.Addr, withNode bool) error {
	for _, a := range addrs {
		family := discoveryv1.AddressTypeIPv4
		if a.Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		endpoint := discoveryv1.Endpoint{Addresses: []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
		if withNode {
			endpoint.NodeName = &node
		}
		_, err := t.Client.DiscoveryV1().EndpointSlices(Namespace).Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: "self-" + strings.ToLower(string(family)), Labels: map[string]string{discoveryv1.LabelServiceName: "self"},
			},
			AddressType: family, Endpoints: []discoveryv1.Endpoint{endpoint},
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(podPort))}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make a slice of the Service self: %w", err)
		}
	}
	return nil
}

// addAsk adds a client that is a pod.
func (t *migration) addAsk(l *Load, name string, pod, to netip.Addr) {
	l.add(betweenAllAsks, fmt.Sprintf("%s by %v", name, to), func(ctx context.Context) error {
		_, err := t.Ask(ctx, pod, "http", to.String(), 80, 1)
		return err
	})
}

func (t *migration) addLoyal(l *Load, node string, pod, to netip.Addr) {
	c := &loyalClient{name: fmt.Sprintf("pod on %s to %v, with session affinity", node, to)}
	t.loyal = append(t.loyal, c)
	l.add(betweenAllAsks, c.name, func(ctx context.Context) error {
		answers, err := t.Ask(ctx, pod, "http", to.String(), 80, 1)
		if err != nil {
			return err
		}
		if c.server != "" && c.server != answers[0] {
			c.moves.Add(1)
		}
		c.server = answers[0]
		return nil
	})
}

// mostMoves is how often a step hands a Service over at most: oneService gives all but one back to kube-proxy, and
// takes them again.
const mostMoves = 2

// staysLoyal says whether a client with session affinity has changed its server in a step without reason: the proxy
// that begins to serve does not know whom the other one remembers.
func (t *migration) staysLoyal() error {
	for _, c := range t.loyal {
		now := c.moves.Load()
		if now > c.known+mostMoves {
			return fmt.Errorf("%s: its server changed %d times", c.name, now-c.known)
		}
		c.known = now
	}
	return nil
}

package workload

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/test/cmd/realcluster/cluster"
)

//go:embed manifests/alone.yaml
var aloneManifest string

// alone is a Service with policy Local and one endpoint, as pods ask for it.
type alone struct {
	*fixture
	// at is the node with the endpoint.
	at string
	// clients are the client pods by node, with an address of each family.
	clients map[string][]netip.Addr
	// addrs are load balancers' addresses, external IPs and cluster IPs of both families.
	addrs    []netip.Addr
	nodePort uint16
	// hidden has the families, by Is4, in which the pods' network itself gives pods the address of their node towards
	// other nodes, such as flannel's. To another node they are clients outside then: where it has no endpoint, it drops
	// their packets.
	hidden map[bool]bool
}

// localPolicyForPods: pods of every node reach a Service with policy Local at its addresses with their own, wherever
// its only endpoint is. The node ports of their own node serve them; those of another do so by its own endpoint, or
// refuse them at once.
func localPolicyForPods(ctx context.Context, f *fixture) (string, error) {
	a := &alone{fixture: f, hidden: map[bool]bool{}}
	if err := a.make(ctx); err != nil {
		return "", err
	}
	foreign, err := a.outsideOfNodeRanges(ctx)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, node := range f.Nodes() {
		for _, to := range a.addrs {
			errs = append(errs, a.keepsAddress(ctx, node, to))
		}
	}
	// By now each node has the Service: a refusal says something.
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	counts := map[string]int{}
	others := slices.DeleteFunc(f.Nodes(), func(n string) bool { return n == a.at })
	for _, node := range slices.Concat(others, []string{a.at}) {
		for _, other := range slices.Concat([]string{a.at}, others) { // first where something answers: see hidden
			for _, to := range f.Addrs(other) {
				outcome, err := a.askNodePort(ctx, node, other, to)
				counts[outcome]++
				errs = append(errs, err)
			}
		}
	}
	return fmt.Sprintf("pods of %d nodes, %d of them outside of the Node's podCIDRs, kept their addresses at %d "+
		"addresses; node ports: %v",
		len(a.clients), foreign, len(a.addrs), counts), errors.Join(errs...)
}

// make makes the Service with all its addresses, which are on no interface and in no range of the cluster's, and its
// endpoint.
func (a *alone) make(ctx context.Context) error {
	balancers, externals := []string{"192.0.2.10", "2001:db8:2::10"}, []string{"192.0.2.11", "2001:db8:2::11"}
	list := `["` + strings.Join(externals, `", "`) + `"]`
	if err := a.Plane.Apply(ctx, strings.NewReplacer("NAMESPACE", Namespace, "EXTERNAL_IPS",
		list).Replace(aloneManifest)); err != nil {
		return err
	}
	services := a.Client.CoreV1().Services(Namespace)
	s, err := services.Get(ctx, "alone", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, b := range balancers {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: b})
	}
	if _, err := services.UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("give the load balancer its addresses: %w", err)
	}
	for _, ip := range slices.Concat(balancers, externals, s.Spec.ClusterIPs) {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		a.addrs = append(a.addrs, addr)
	}
	a.nodePort = uint16(s.Spec.Ports[0].NodePort)
	if err := a.AwaitDeployment(ctx, Namespace, "alone"); err != nil {
		return err
	}
	pods, err := a.Pods(ctx, "app=alone")
	if err != nil {
		return err
	}
	if len(pods) != 1 {
		return fmt.Errorf("%d pods, want one", len(pods))
	}
	a.at = pods[0].Spec.NodeName
	a.clients, err = a.Clients(ctx)
	return err
}

// outsideOfNodeRanges counts the nodes whose client has no address in the Node's podCIDRs.
func (a *alone) outsideOfNodeRanges(ctx context.Context) (int, error) {
	nodes, err := a.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	count := 0
	for _, n := range nodes.Items {
		inside := false
		for _, cidr := range n.Spec.PodCIDRs {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				return 0, err
			}
			inside = inside || slices.ContainsFunc(a.clients[n.Name], p.Contains)
		}
		if !inside {
			count++
		}
	}
	return count, nil
}

// keepsAddress asks at an address until the node serves it: each learns of it in its own time. The first answer counts.
func (a *alone) keepsAddress(ctx context.Context, node string, to netip.Addr) error {
	for {
		seen, err := a.seenClient(ctx, node, netip.AddrPortFrom(to, 80))
		if err == nil && seen != a.client(node, to) {
			return fmt.Errorf("the client of %s asks %v, and the endpoint on %s sees %v, not the client's %v", node, to, a.at,
				seen, a.client(node, to))
		}
		if err == nil || pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// askNodePort asks a node port of a node from a pod of one, and says what happened.
func (a *alone) askNodePort(ctx context.Context, node, other string, to netip.Addr) (outcome string, err error) {
	if node != other && other != a.at && a.hidden[to.Is4()] {
		return "not asked, since the pods' network masquerades", nil
	}
	seen, err := a.seenClient(ctx, node, netip.AddrPortFrom(to, a.nodePort))
	refused := err != nil && strings.Contains(err.Error(), "connection refused")
	own := seen == a.client(node, to)
	switch {
	case err != nil && !refused:
		return "failed", fmt.Errorf("to %s: %w", other, err)
	case refused && node != other && other != a.at:
		return "refused by another node without the endpoint", nil
	case refused:
		return "failed", fmt.Errorf("%s has the endpoint: to %s: %w", a.at, other, err)
	case own:
		return "served with the pod's address", nil
	case slices.Contains(a.Addrs(other), seen) && node == other:
		return "served with the address of the pod's own node", nil
	case slices.Contains(a.Addrs(node), seen) && other == a.at && a.Network() == cluster.ForeignNetwork:
		a.hidden[to.Is4()] = true
		return "masqueraded by the pods' network", nil
	}
	return "failed", fmt.Errorf("the client %v of %s asks %v of %s, and the endpoint on %s sees %v", a.client(node, to),
		node, to, other, a.at, seen)
}

// client is the address of a node's client in the family of another.
func (a *alone) client(node string, other netip.Addr) netip.Addr {
	i := slices.IndexFunc(a.clients[node], func(c netip.Addr) bool { return c.Is4() == other.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return a.clients[node][i]
}

// seenClient has a node's client ask the endpoint which address it comes from.
func (a *alone) seenClient(ctx context.Context, node string, to netip.AddrPort) (netip.Addr, error) {
	if len(a.clients[node]) == 0 {
		return netip.Addr{}, fmt.Errorf("%s has no client", node)
	}
	answers, err := a.askFor(ctx, "clientip", a.clients[node][0], "http", to.Addr().String(), to.Port(), 1)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the client of %s: %w", node, err)
	}
	seen, err := netip.ParseAddrPort(answers[0])
	return seen.Addr().Unmap(), err
}

package workload

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/test/cmd/realcluster/cluster"
)

//go:embed manifests/balanced.yaml
var balancedManifest string

// MoveOptions say why the address of a load balancer moves to another node, and under which load.
type MoveOptions struct {
	// Policy is the externalTrafficPolicy.
	Policy string
	// Lose is what the node that announces the address loses: one of Losses.
	Lose string
	// Eject, Rate and Kept are as in NodeLossOptions. Both families have a half of the clients each.
	Eject      string
	Rate, Kept int
	// Away is the time under load after the loss, and that without a network.
	Away time.Duration
}

// What a node can lose.
const (
	loseSpeaker   = "speaker"   // the pod of the program that announces, once; the DaemonSet makes a new one
	loseNetwork   = "network"   // its network
	loseEndpoints = "endpoints" // the endpoints of the Service, for good
)

// Losses are the values of MoveOptions.Lose.
func Losses() []string { return []string{loseSpeaker, loseNetwork, loseEndpoints} }

// balancer is the load balancer whose address moves.
type balancer struct {
	*Web
	service *corev1.Service
	addrs   []netip.Addr
}

// MoveAddress has the address of a load balancer move while clients outside send requests to it, on new connections and
// on kept ones. It writes the table of LoseNode, and when which address moved from where to where.
func MoveAddress(ctx context.Context, c *cluster.Cluster, o MoveOptions, out io.Writer) (err error) {
	if o.Rate < 2 {
		return fmt.Errorf("%d connections a second: want 2 at least", o.Rate)
	}
	web, err := Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	if err := web.setFlag(ctx, "nftproxy-eject", o.Eject); err != nil {
		return err
	}
	b := &balancer{Web: web}
	if err := b.make(ctx, o.Policy); err != nil {
		return err
	}
	if err := b.checkHealth(ctx, out); err != nil {
		return err
	}
	l := &lossLoad{web: web, every: time.Second / time.Duration(o.Rate), kept: o.Kept}
	for _, a := range b.addrs {
		name := "IPv4"
		if a.Is6() {
			name = "IPv6"
		}
		l.to = append(l.to, entrance{netip.AddrPortFrom(a, 80), name})
	}
	w, err := b.watchMoves()
	if err != nil {
		return err
	}
	stop := l.start(ctx)
	waited := pause(ctx, before)
	lost := w.nodeOf(b.addrs[0])
	began := time.Now()
	var repair func() error
	if waited == nil {
		repair, waited = b.lose(ctx, o.Lose, lost)
	}
	if waited == nil {
		waited = pause(ctx, o.Away)
	}
	moves, failed := w.stop(), stop()
	if repair != nil { // also after an interruption: the cluster goes on
		failed = errors.Join(failed, repair())
	}
	if err := errors.Join(waited, failed); err != nil {
		return err
	}
	for _, m := range moves {
		fmt.Fprintf(out, "# %v moved from %s to %s %v after %s lost its %s\n", m.addr, m.from, m.to,
			m.at.Sub(began).Round(time.Millisecond), lost, o.Lose)
	}
	if err := b.checkHealth(ctx, out); err != nil {
		return err
	}
	return errors.Join(l.report(out, began), l.reportAfter(out, moves, began))
}

// make makes the Service and returns once its addresses answer.
func (b *balancer) make(ctx context.Context, policy string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := b.Plane.Apply(ctx, strings.NewReplacer("NAMESPACE", Namespace, "POLICY",
		policy).Replace(balancedManifest)); err != nil {
		return err
	}
	list := cache.NewListWatchFromClient(b.Client.CoreV1().RESTClient(), "services", Namespace,
		fields.OneTermEqualSelector("metadata.name", "balanced"))
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Service{}, nil, func(e watch.Event) (bool, error) {
		s, ok := e.Object.(*corev1.Service)
		if ok {
			b.service = s
		}
		return ok && len(s.Status.LoadBalancer.Ingress) == 2, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the addresses of the load balancer: %w", err)
	}
	for _, i := range b.service.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err != nil {
			return fmt.Errorf("address of the load balancer: %w", err)
		}
		for _, err = b.Get(ctx, netip.AddrPortFrom(a, 80), "/hostname"); err != nil; _, err = b.Get(ctx,
			netip.AddrPortFrom(a, 80), "/hostname") {
			if pause(ctx, 100*time.Millisecond) != nil {
				return fmt.Errorf("wait for an answer of the load balancer: %w", err)
			}
		}
		b.addrs = append(b.addrs, a)
	}
	return nil
}

// lose takes something from a node. repair gives it back.
func (b *balancer) lose(ctx context.Context, what, node string) (repair func() error, err error) {
	nothing := func() error { return nil }
	onNode := "spec.nodeName=" + node
	switch what {
	case loseSpeaker:
		return nothing, b.Client.CoreV1().Pods("metallb-system").DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "component=speaker", FieldSelector: onNode})
	case loseEndpoints:
		if err := b.Kubectl(ctx, "cordon", node); err != nil {
			return nil, err
		}
		repair := func() error { return b.Kubectl(context.WithoutCancel(ctx), "uncordon", node) }
		return repair, b.Client.CoreV1().Pods(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "app=web", FieldSelector: onNode})
	case loseNetwork:
		return b.cutOff(ctx, node, false)
	}
	return nil, fmt.Errorf("a node can lose one of %s, not %q", strings.Join(Losses(), ", "), what)
}

// checkHealth asks the health check node port of each node, if the Service has one: it says whether the node has
// endpoints.
func (b *balancer) checkHealth(ctx context.Context, out io.Writer) error {
	port := uint16(b.service.Spec.HealthCheckNodePort)
	if port == 0 {
		return nil
	}
	on, err := b.endpointsByNode(ctx, "web")
	if err != nil {
		return err
	}
	for _, node := range b.Nodes() {
		_, err := b.Get(ctx, netip.AddrPortFrom(b.Addrs(node)[0], port), "/healthz")
		if (err == nil) != (on[node] > 0) {
			return fmt.Errorf("%s has %d endpoints, and its health check node port says: %w", node, on[node], err)
		}
	}
	fmt.Fprintf(out, "# endpoints by node: %v; the health check node port of each node says so\n", on)
	return nil
}

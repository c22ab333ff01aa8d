package workload

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nftproxy/test/cmd/realcluster/cluster"
)

//go:embed manifests/many.yaml
var manyManifest string

// NodeLossOptions say how a node is lost, and under which load.
type NodeLossOptions struct {
	// Eject is the value of --nftproxy-eject, which the command sets first; empty changes nothing (kube-proxy).
	Eject string
	// Rate is the number of new connections a second: half of them to a Service with 3 endpoints, half to one with 30.
	Rate int
	// Kept is the number of clients of each Service that keep their connection. Each sends a request a second.
	Kept int
	// Away is how long the node is without a network.
	Away time.Duration
	// APIServer says that no node reaches the API server meanwhile, as if it were on that node.
	APIServer bool
}

const (
	// requestPatience is how long a client waits for the answer.
	requestPatience = 5 * time.Second
	slowRequest     = time.Second
	keptPeriod      = time.Second
)

// LoseNode takes its network from a node while clients outside send requests to node ports of another node, on new
// connections and on kept ones. It writes a table (CSV): how many of the requests that began in each second after that
// were slow or failed. Lines with # say more.
func LoseNode(ctx context.Context, c *cluster.Cluster, o NodeLossOptions, out io.Writer) (err error) {
	nodes := c.Nodes()
	if len(nodes) < 2 || o.Rate < 2 {
		return fmt.Errorf("%d nodes and %d connections a second: want 2 and 2 at least", len(nodes), o.Rate)
	}
	web, err := Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	if err := web.setFlag(ctx, "nftproxy-eject", o.Eject); err != nil {
		return err
	}
	if err := web.Plane.Apply(ctx, strings.ReplaceAll(manyManifest, "NAMESPACE", Namespace)); err != nil {
		return err
	}
	if err := web.AwaitDeployment(ctx, Namespace, "many"); err != nil {
		return err
	}
	many, err := web.Client.CoreV1().Services(Namespace).Get(ctx, "many", metav1.GetOptions{})
	if err != nil {
		return err
	}
	entry, lost := nodes[0], nodes[len(nodes)-1]
	for _, app := range []string{"web", "many"} {
		on, err := web.endpointsByNode(ctx, app)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "# endpoints of %s: %v\n", app, on)
	}
	at := web.Addrs(entry)[0]
	to := []entrance{{netip.AddrPortFrom(at, web.Port), "3 endpoints"},
		{netip.AddrPortFrom(at, uint16(many.Spec.Ports[0].NodePort)), "30 endpoints"}}
	l := &lossLoad{web: web, to: to, every: time.Second / time.Duration(o.Rate), kept: o.Kept}
	stop := l.start(ctx)
	if err := pause(ctx, before); err != nil {
		return errors.Join(err, stop())
	}
	cut := time.Now()
	repair, err := web.cutOff(ctx, lost, o.APIServer)
	if err != nil {
		return errors.Join(err, stop())
	}
	unready := make(chan time.Duration, 1)
	looking, enough := context.WithTimeout(ctx, o.Away)
	go func() { unready <- web.awaitUnready(looking, lost, cut) }()
	waited := pause(ctx, o.Away)
	enough()
	failed := stop()
	// Also after an interruption: the cluster goes on.
	if err := errors.Join(waited, failed, repair()); err != nil {
		return err
	}
	if d := <-unready; d > 0 {
		fmt.Fprintf(out, "# the slices have no ready endpoint on %s since %v after the cut\n", lost,
			d.Round(100*time.Millisecond))
	}
	return l.report(out, cut)
}

// endpointsByNode counts the pods of an app that are not about to end.
func (w *Web) endpointsByNode(ctx context.Context, app string) (map[string]int, error) {
	pods, err := w.Pods(ctx, "app="+app)
	if err != nil {
		return nil, err
	}
	on := map[string]int{}
	for _, p := range pods {
		if p.DeletionTimestamp == nil {
			on[p.Spec.NodeName]++
		}
	}
	return on, nil
}

// cutOff takes its network from a node, and the API server from all nodes if it is to be there. repair gives it back,
// also after an interruption, and returns once the proxy is ready.
func (w *Web) cutOff(ctx context.Context, node string, server bool) (repair func() error, err error) {
	links := w.Outside.Handle()
	link, err := links.LinkByName(node)
	if err != nil {
		return nil, fmt.Errorf("look up the link of %s: %w", node, err)
	}
	back := func() error { return nil }
	if server {
		api, err := w.API()
		if err == nil {
			back, err = w.Outside.Cut(api)
		}
		if err != nil {
			return nil, fmt.Errorf("cut the API server off: %w", err)
		}
	}
	if err := links.LinkSetDown(link); err != nil {
		return nil, errors.Join(fmt.Errorf("cut %s off: %w", node, err), back())
	}
	return func() error {
		return errors.Join(back(), links.LinkSetUp(link), w.AwaitDaemonSet(context.WithoutCancel(ctx), "kube-system",
			w.Proxy()))
	}, nil
}

// awaitUnready returns how long after the cut the slices of the namespace have no ready endpoint on a node; 0 if the
// context ends before.
func (w *Web) awaitUnready(ctx context.Context, node string, cut time.Time) time.Duration {
	for {
		slices, err := w.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx, metav1.ListOptions{})
		ready := 0
		if err == nil {
			for _, s := range slices.Items {
				for _, e := range s.Endpoints {
					ready += boolInt(e.NodeName != nil && *e.NodeName == node && e.Conditions.Ready != nil && *e.Conditions.Ready)
				}
			}
		}
		if err == nil && ready == 0 {
			return time.Since(cut)
		}
		if pause(ctx, 500*time.Millisecond) != nil {
			return 0
		}
	}
}

// setFlag gives nftproxy a flag, and waits until it runs with it everywhere. An empty value leaves all as it is.
func (w *Web) setFlag(ctx context.Context, name, value string) error {
	if value == "" {
		return nil
	}
	flag := "--" + name + "="
	sets := w.Client.AppsV1().DaemonSets("kube-system")
	set, err := sets.Get(ctx, w.Proxy(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	args := slices.DeleteFunc(set.Spec.Template.Spec.Containers[0].Args, func(a string) bool {
		return strings.HasPrefix(a, flag)
	})
	patch := fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/containers/0/args","value":%s}]`,
		quoted(append(args, flag+value)))
	if _, err := sets.Patch(ctx, w.Proxy(), types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set %s%s: %w", flag, value, err)
	}
	return w.AwaitDaemonSet(ctx, "kube-system", w.Proxy())
}

// quoted is a list of texts in JSON.
func quoted(texts []string) string {
	for i, t := range texts {
		texts[i] = fmt.Sprintf("%q", t)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

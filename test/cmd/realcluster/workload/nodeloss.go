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
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nftproxy/test/cmd/realcluster/bringup"
)

//go:embed manifests/many.yaml
var manyManifest string

// NodeLossOptions say how a node is lost, and under which load.
type NodeLossOptions struct {
	// Eject is the value of --nftproxy-eject, which the command sets first; empty changes nothing (kube-proxy).
	Eject string
	// Rate is the number of new connections a second: half of them to a Service with 3 endpoints, half to one with 30.
	Rate int
	// Away is how long the node is without a network.
	Away time.Duration
}

const (
	// connectionPatience is how long a client waits for the answer.
	connectionPatience = 5 * time.Second
	slowConnection     = time.Second
)

// LoseNode takes its network from a node while clients outside connect to node ports of another node, and writes how many of
// the connections that began in each second after that were slow or failed.
func LoseNode(ctx context.Context, c *bringup.Cluster, o NodeLossOptions, out io.Writer) (err error) {
	nodes := c.Nodes()
	if len(nodes) < 3 || o.Rate < 2 {
		return fmt.Errorf("%d nodes and %d connections a second: want 3 and 2 at least", len(nodes), o.Rate)
	}
	web, err := Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	if err := web.setEject(ctx, o.Eject); err != nil {
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
		pods, err := web.Pods(ctx, "app="+app)
		if err != nil {
			return err
		}
		on := map[string]int{}
		for _, p := range pods {
			on[p.Spec.NodeName]++
		}
		fmt.Fprintf(out, "endpoints of %s: %v\n", app, on)
	}
	to := []netip.AddrPort{netip.AddrPortFrom(web.Addrs(entry)[0], web.Port), netip.AddrPortFrom(web.Addrs(entry)[0], uint16(many.Spec.Ports[0].NodePort))}
	l := &lossLoad{web: web, to: to, every: time.Second / time.Duration(o.Rate)}
	stop := l.start(ctx)
	if err := pause(ctx, before); err != nil {
		return errors.Join(err, stop())
	}
	link, err := c.Outside.Handle().LinkByName(lost)
	if err != nil {
		return errors.Join(fmt.Errorf("look up the link of %s: %w", lost, err), stop())
	}
	cut := time.Now()
	if err := c.Outside.Handle().LinkSetDown(link); err != nil {
		return errors.Join(fmt.Errorf("cut %s off: %w", lost, err), stop())
	}
	waited := pause(ctx, o.Away)
	failed := stop()
	// Also after an interruption: the cluster goes on.
	if err := errors.Join(waited, failed, c.Outside.Handle().LinkSetUp(link), c.AwaitDaemonSet(context.WithoutCancel(ctx), "kube-system", c.Proxy())); err != nil {
		return err
	}
	l.report(out, cut, lost)
	return nil
}

// setEject gives nftproxy the flag, and waits until it runs with it everywhere.
func (w *Web) setEject(ctx context.Context, mode string) error {
	if mode == "" {
		return nil
	}
	sets := w.Client.AppsV1().DaemonSets("kube-system")
	set, err := sets.Get(ctx, w.Proxy(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	args := slices.DeleteFunc(set.Spec.Template.Spec.Containers[0].Args, func(a string) bool { return strings.HasPrefix(a, "--nftproxy-eject=") })
	patch := fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/containers/0/args","value":%s}]`, quoted(append(args, "--nftproxy-eject="+mode)))
	if _, err := sets.Patch(ctx, w.Proxy(), types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set --nftproxy-eject=%s: %w", mode, err)
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

// lossLoad makes new connections at a rate, whatever becomes of those before.
type lossLoad struct {
	web   *Web
	to    []netip.AddrPort
	every time.Duration

	mu  sync.Mutex
	all []lossConnection
}

type lossConnection struct {
	service int
	began   time.Time
	took    time.Duration
	err     error
}

// start begins the load. stop ends it and waits for the last connection.
func (l *lossLoad) start(ctx context.Context) (stop func() error) {
	var group sync.WaitGroup
	done := make(chan struct{})
	group.Go(func() {
		ticker := time.NewTicker(l.every)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			group.Go(func() { l.connect(ctx, i%len(l.to)) })
		}
	})
	return func() error {
		close(done)
		group.Wait()
		return ctx.Err()
	}
}

func (l *lossLoad) connect(ctx context.Context, service int) {
	ctx, cancel := context.WithTimeout(ctx, connectionPatience)
	defer cancel()
	c := lossConnection{service: service, began: time.Now()}
	_, c.err = l.web.Get(ctx, l.to[service], "/hostname")
	c.took = time.Since(c.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, c)
}

// report writes a line for each second, and one for each Service. Second 0 has all connections before the cut.
func (l *lossLoad) report(out io.Writer, cut time.Time, lost string) {
	type row struct{ all, slow, failed int }
	services := []string{"3 endpoints", "30 endpoints"}
	rows, last := make([]map[int]*row, len(services)), make([]time.Duration, len(services))
	seconds := 0
	for i := range rows {
		rows[i] = map[int]*row{}
	}
	for _, c := range l.all {
		second := 0
		if !c.began.Before(cut) {
			second = int(c.began.Sub(cut)/time.Second) + 1
		}
		seconds = max(seconds, second)
		r := rows[c.service][second]
		if r == nil {
			r = &row{}
			rows[c.service][second] = r
		}
		r.all++
		r.failed += boolInt(c.err != nil)
		r.slow += boolInt(c.err == nil && c.took > slowConnection)
		if (c.err != nil || c.took > slowConnection) && second > 0 {
			last[c.service] = max(last[c.service], c.began.Sub(cut))
		}
	}
	for i, name := range services {
		sum := row{}
		for second := range seconds + 1 {
			if r := rows[i][second]; r != nil {
				fmt.Fprintf(out, "%s, second %d: %d connections, %d slow, %d failed\n", name, second, r.all, r.slow, r.failed)
				if second > 0 {
					sum = row{sum.all + r.all, sum.slow + r.slow, sum.failed + r.failed}
				}
			}
		}
		fmt.Fprintf(out, "%s, after %s was cut off: %d connections, %d slower than %v, %d failed within %v; the last of these began after %v\n",
			name, lost, sum.all, sum.slow, slowConnection, sum.failed, connectionPatience, last[i].Round(10*time.Millisecond))
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

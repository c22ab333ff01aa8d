package workload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkNodes: the page's check of a node runs on each, and finds nothing red.
func checkNodes(ctx context.Context, t *migration, s *section) (string, error) {
	if len(s.do) != 1 {
		return "", fmt.Errorf("the page has %d commands for the check, not one", len(s.do))
	}
	counts := map[string]int{}
	for _, node := range t.Nodes() {
		out, err := t.onNode(ctx, node, s.do[0], 1) // yellow: kube-proxy is there
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(out) {
			level, _, _ := strings.Cut(line, " ")
			counts[level]++
		}
		if counts["red"] > 0 || counts["green"] == 0 || !strings.Contains(out, kubeProxy) {
			return "", fmt.Errorf("%s: %s", node, out)
		}
	}
	return fmt.Sprintf("%d findings green, %d yellow, none red on %d nodes", counts["green"], counts["yellow"],
		len(t.Nodes())), nil
}

// The names of the proxies: DaemonSets, and columns of nftproxy proxies.
const (
	nftproxy   = "nftproxy"
	kubeProxy  = "kube-proxy"
	kubeSystem = "kube-system"
)

// The ports of both proxies' health servers, and of nftproxy's own for probes.
const (
	healthPort = 10256
	probePort  = 10266
)

// beside: nftproxy's pods become ready beside kube-proxy, which keeps its ports, and
// have rules for all that kube-proxy has.
func beside(ctx context.Context, t *migration, s *section) (string, error) {
	if _, err := t.shells(ctx, s.do...); err != nil {
		return "", err
	}
	if err := t.AwaitDaemonSet(ctx, kubeSystem, nftproxy); err != nil {
		return "", err
	}
	for _, node := range t.Nodes() {
		if who := t.healthServer(ctx, node); who != kubeProxy {
			return "", fmt.Errorf("%s answers on port %d of %s, not kube-proxy", who, healthPort, node)
		}
	}
	err := t.proxiesSay(ctx, "nftproxy has rules for every frontend of kube-proxy")
	return fmt.Sprintf("%d pods ready, kube-proxy has the health port", len(t.Nodes())), err
}

// cleanTooEarly: while nftproxy runs, the page's command for one node removes nothing,
// and says whose the rules are.
func cleanTooEarly(ctx context.Context, t *migration, s *section) (string, error) {
	node := t.Nodes()[0]
	out, err := t.onNode(ctx, node, s.do[1])
	if err == nil || !strings.Contains(out, "pod of nftproxy") {
		return "", fmt.Errorf("the command did not refuse, or named no pod: %v: %s", err, out)
	}
	tables, err := t.onNode(ctx, node, "nft list tables")
	if err == nil && !strings.Contains(tables, "ip nftproxy") {
		err = fmt.Errorf("%s has no table of nftproxy: %s", node, tables)
	}
	return "refused, and the pod is named", err
}

// proxiesSay runs the command of the page's beginning in each pod of nftproxy, and
// checks that each says something.
func (t *migration) proxiesSay(ctx context.Context, want string) error {
	out, err := t.shell(ctx, proxiesScript)
	if err != nil {
		return err
	}
	if n := strings.Count(out, want); n != len(t.Nodes()) {
		return fmt.Errorf("%d of %d pods say %q:\n%s", n, len(t.Nodes()), want, out)
	}
	return nil
}

// proxiesScript is the block at the beginning of the page, without the node's own
// command.
const proxiesScript = `for pod in $(kubectl -n kube-system get pods -l app.kubernetes.io/name=nftproxy -o name); do
  kubectl -n kube-system exec $pod -- /nftproxy proxies
done`

// healthServer says which proxy answers on the health port of a node: only nftproxy
// has /readyz there.
func (t *migration) healthServer(ctx context.Context, node string) string {
	to := netip.AddrPortFrom(t.Addrs(node)[0], healthPort)
	if _, err := t.Get(ctx, to, "/healthz"); err != nil {
		return "no proxy (" + err.Error() + ")"
	}
	if _, err := t.Get(ctx, to, "/readyz"); err == nil {
		return nftproxy
	}
	return kubeProxy
}

// awaitHealthServer waits until a proxy answers on the health port of each node.
func (t *migration) awaitHealthServer(ctx context.Context, who string) error {
	for _, node := range t.Nodes() {
		err := again(ctx, func() error {
			if found := t.healthServer(ctx, node); found != who {
				return fmt.Errorf("%s answers on port %d of %s, not %s", found, healthPort, node, who)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stopKubeProxy: no pod of kube-proxy is left, and nftproxy takes its ports.
func stopKubeProxy(ctx context.Context, t *migration, s *section) (string, error) {
	if _, err := t.shell(ctx, s.do[0]); err != nil {
		return "", err
	}
	if err := t.awaitNoPods(ctx, "k8s-app="+kubeProxy); err != nil {
		return "", err
	}
	return "no pod left, nftproxy has the health port", t.awaitHealthServer(ctx, nftproxy)
}

// awaitNoPods waits until kube-system has no pod with a label.
func (t *migration) awaitNoPods(ctx context.Context, selector string) error {
	return again(ctx, func() error {
		pods, err := t.Client.CoreV1().Pods(kubeSystem).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods with %s are left", len(pods.Items), selector)
		}
		return err
	})
}

// removeKubeProxyRules: the DaemonSet of the page cleans every node, and is gone.
func removeKubeProxyRules(ctx context.Context, t *migration, s *section) (string, error) {
	if _, err := t.shells(ctx, s.do...); err != nil {
		return "", err
	}
	if err := t.awaitNoPods(ctx, "app.kubernetes.io/name=kube-proxy-cleanup"); err != nil {
		return "", err
	}
	out, err := t.shell(ctx, proxiesScript)
	if err != nil {
		return "", err
	}
	clean := 0
	for line := range strings.Lines(out) {
		// The columns of a proxy without rules: 0 frontends, and a dash for the tables.
		fields := strings.Fields(line)
		if n := len(fields); n > 2 && fields[0] == kubeProxy && fields[n-2] == "0" && fields[n-1] == "-" {
			clean++
		}
	}
	if clean != len(t.Nodes()) {
		return "", fmt.Errorf("%d of %d nodes have no rules of kube-proxy:\n%s", clean, len(t.Nodes()), out)
	}
	return "no rules of kube-proxy on any node", nil
}

// oneService: with the page's argument nftproxy serves one labelled Service, which
// kube-proxy drops; then all is as before.
func oneService(ctx context.Context, t *migration, s *section) (string, error) {
	if len(s.do) != 2 || len(s.undo) != 1 {
		return "", fmt.Errorf("the page has %d commands and %d to undo them, not 2 and 1", len(s.do), len(s.undo))
	}
	// A Service that the load does not use: new connections may be refused for a moment.
	name := strings.NewReplacer("NAMESPACE", testNamespace, "NAME", "web-local")
	if _, err := t.shells(ctx, s.do[0], name.Replace(s.do[1])); err != nil {
		return "", err
	}
	answers := func() error {
		pods, err := t.Pods(ctx, "app=web")
		if err != nil {
			return err
		}
		for _, p := range pods {
			if _, err := t.Get(ctx, netip.AddrPortFrom(t.Addrs(p.Spec.NodeName)[0], t.LocalPort), "/hostname"); err != nil {
				return err
			}
		}
		return nil
	}
	only := func() error {
		return errors.Join(t.proxiesSay(ctx, "nftproxy lacks"), t.proxiesSay(ctx, "kube-proxy lacks 1 "))
	}
	if err := errors.Join(again(ctx, only), again(ctx, answers)); err != nil {
		return "", err
	}
	beside, err := t.page.section("Step 1")
	if err != nil {
		return "", err
	}
	if _, err := t.shells(ctx, append([]string{name.Replace(s.undo[0])}, beside.do...)...); err != nil {
		return "", err
	}
	if err := t.AwaitDaemonSet(ctx, kubeSystem, nftproxy); err != nil {
		return "", err
	}
	every := func() error { return t.proxiesSay(ctx, "nftproxy has rules for every frontend of kube-proxy") }
	return "nftproxy served the labelled Service and no other", errors.Join(again(ctx, every), again(ctx, answers))
}

package workload

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"nftproxy/test/cmd/realcluster/cluster"
)

// pluginSteps are the steps of kubectl nftproxy migrate that a node has lines for, by the proxy that it is to have.
func pluginSteps(to string) []string {
	if to == nftproxy {
		return []string{"check", "serve", "verify", "hand over", "clean up"}
	}
	return []string{"start kube-proxy", "await its rules", "hand over", "clean up"}
}

// MigrateByPlugin goes to nftproxy and back by kubectl nftproxy migrate, under the load of Migrate: first with an
// overlay for labelled nodes, where the plugin is killed in the middle of each of its steps and started again, then
// with one for all nodes. Afterwards kube-proxy's DaemonSet is what it was.
func MigrateByPlugin(ctx context.Context, c *cluster.Cluster, out io.Writer) (err error) {
	web, err := Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	t := &migration{Web: web}
	before, err := t.kubeProxyTemplate(ctx)
	if err != nil {
		return err
	}
	if t.load, err = web.AllLoad(ctx, func(l *Load) error { return t.addFlows(ctx, l) }); err != nil {
		return err
	}
	failed := t.byPlugin(ctx, before, out)
	seen, err := t.load.End()
	if err != nil {
		return errors.Join(failed, err)
	}
	fmt.Fprintf(out, "under load: %s\n", seen)
	return failed
}

func (t *migration) byPlugin(ctx context.Context, before string, out io.Writer) error {
	for _, way := range []struct {
		overlay string
		kill    bool
	}{{"deploy/overlays/trial", true}, {"deploy/overlays/kubeadm", false}} {
		if _, err := t.shell(ctx, "kubectl apply -k "+way.overlay); err != nil {
			return err
		}
		for _, to := range []string{nftproxy, kubeProxy} {
			if err := t.pluginTo(ctx, to, way.kill, out); err != nil {
				return fmt.Errorf("%s: %w", way.overlay, err)
			}
		}
		if _, err := t.shell(ctx, "kubectl delete -k "+way.overlay); err != nil {
			return err
		}
		if err := t.awaitNoPods(ctx, "app.kubernetes.io/name="+nftproxy); err != nil {
			return err
		}
		now, err := t.kubeProxyTemplate(ctx)
		if err != nil {
			return err
		}
		if now != before {
			return fmt.Errorf("%s: kube-proxy's DaemonSet was\n%s\nand is\n%s", way.overlay, before, now)
		}
	}
	labels, err := t.shell(ctx, "kubectl get nodes --show-labels")
	if err == nil && strings.Contains(labels, nftproxy) {
		err = fmt.Errorf("labels stay on nodes: %s", labels)
	}
	return errors.Join(err, t.nothingLeft(ctx))
}

// kubeProxyTemplate is what kube-proxy's DaemonSet makes pods of.
func (t *migration) kubeProxyTemplate(ctx context.Context) (string, error) {
	return t.shell(ctx, "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec}'")
}

// pluginTo goes one way, and counts what fails meanwhile.
func (t *migration) pluginTo(ctx context.Context, to string, kill bool, out io.Writer) error {
	began := time.Now()
	before, lostBefore := t.load.Seen()
	slow := t.load.Slow()
	var killed []string
	if kill {
		for _, step := range pluginSteps(to) {
			seen, err := t.killIn(ctx, to, step)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, seen)
			killed = append(killed, step)
		}
	}
	lines, err := t.plugin(ctx, to, nil)
	fmt.Fprint(out, lines)
	if err != nil {
		return err
	}
	if err := t.awaitHealthServer(ctx, to); err != nil {
		return err
	}
	if err := t.onlyRulesOf(ctx, to); err != nil {
		return err
	}
	requests, lost := t.load.Seen()
	if lost > lostBefore {
		for _, f := range t.load.Failures() {
			fmt.Fprintln(out, f.Error())
		}
		return fmt.Errorf("to %s: %d of %d requests failed", to, lost-lostBefore, requests-before)
	}
	fmt.Fprintf(out, "pass  to %s by the plugin, killed in: %s; 0 of %d requests failed, %d took longer than a second "+
		"(%v)\n", to, cmp.Or(strings.Join(killed, ", "), "no step"), requests-before, t.load.Slow()-slow,
		time.Since(began).Round(100*time.Millisecond))
	return nil
}

// onlyRulesOf looks for the tables of the other proxy on each node.
func (t *migration) onlyRulesOf(ctx context.Context, to string) error {
	for _, node := range t.Nodes() {
		tables, err := t.onNode(ctx, node, "nft list tables; nft list ruleset | grep -c 'chain KUBE-S' || true")
		if err != nil {
			return err
		}
		ours, theirs := strings.Contains(tables, "ip nftproxy"), strings.Contains(tables, kubeProxy) ||
			!strings.HasSuffix(strings.TrimSpace(tables), "\n0")
		if ours != (to == nftproxy) || theirs != (to == kubeProxy) {
			return fmt.Errorf("on %s, which is to have %s: rules of nftproxy %t, of kube-proxy %t: %s", node, to, ours, theirs,
				tables)
		}
	}
	return nil
}

// intoStep is how long after the end of the last step the plugin is killed. Each takes longer.
const intoStep = 300 * time.Millisecond

// settled lets end what the killed plugin began, and its Lease: the dry run is to say what the next run begins with.
// The run to the end, after all kills, waits for the Lease.
const settled = `kubectl -n kube-system rollout status daemonset nftproxy
kubectl -n kube-system rollout status daemonset kube-proxy
kubectl -n kube-system delete lease nftproxy-migrate --ignore-not-found`

// killIn starts the plugin and kills it in the middle of a step.
func (t *migration) killIn(ctx context.Context, to, step string) (string, error) {
	if _, err := t.shell(ctx, settled); err != nil {
		return "", err
	}
	due, err := t.due(ctx, to)
	if err != nil {
		return "", err
	}
	// The plugin begins with the node that has the fewest steps left.
	slices.SortStableFunc(due, func(a, b []string) int { return len(a) - len(b) })
	first := due[0]
	i := slices.Index(first, step)
	if i < 0 {
		return "", fmt.Errorf("kill in %s: the first node has only %s before it", step, strings.Join(first, ", "))
	}
	k := &killing{after: "all nodes: probe: ", times: 1} // what is said before the first step
	if i > 0 {
		k = &killing{after: ": " + first[i-1] + ": ", times: 1}
		if first[i-1] == "check" {
			k.times = len(due)
		}
	}
	lines, err := t.plugin(ctx, to, k)
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.Exited() {
		return "", fmt.Errorf("the plugin was not killed in %s, %v:\n%s", step, err, lines)
	}
	last := ""
	for line := range strings.Lines(lines) {
		if !strings.HasPrefix(line, "DaemonSet ") { // A change of one is the beginning of a step.
			last = strings.TrimSpace(line)
		}
	}
	if !strings.Contains(last, k.after) {
		return "", fmt.Errorf("the plugin was to be killed in %s, and had passed it:\n%s", step, lines)
	}
	const most = 100
	return fmt.Sprintf("      killed in %s, after the line: %s", step, last[:min(most, len(last))]), nil
}

// due returns the steps of each node that --dry-run tells of.
func (t *migration) due(ctx context.Context, to string) (all [][]string, err error) {
	out, err := t.shell(ctx, pluginPath+" migrate --to "+to+" --dry-run")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "DaemonSet ") {
			continue // about all nodes
		}
		steps := strings.Split(strings.TrimSpace(line[strings.LastIndex(line, ": ")+2:]), ", ")
		all = append(all, slices.DeleteFunc(steps, func(s string) bool { return s == "probe" }))
	}
	if len(all) != len(t.Nodes()) {
		return nil, fmt.Errorf("the dry run has not a line for each node:\n%s", out)
	}
	return all, nil
}

// killing says when to kill the plugin: some time after so many lines with a text.
type killing struct {
	after string
	times int
}

// plugin runs the plugin where an operator would, and returns its lines.
func (t *migration) plugin(ctx context.Context, to string, k *killing) (string, error) {
	path, err := filepath.Abs(pluginPath)
	if err != nil {
		return "", err
	}
	args := []string{"migrate", "--to", to, "--at-once", "2", "--kubeconfig", t.Plane.AdminKubeconfig()}
	if args = append(args, "--image", agnhostImage); k != nil {
		args = append(args, "--probe=false") // The kills are in the other steps.
	}
	cmd := exec.CommandContext(ctx, path, args...)
	w := &killer{killing: k}
	w.kill = func() { _ = cmd.Process.Kill() } // It may have ended.
	cmd.Stdout, cmd.Stderr = w, w
	err = t.Outside.Run(cmd)
	return w.text(), err
}

// killer collects lines, and kills after some.
type killer struct {
	killing *killing
	kill    func()

	mu   sync.Mutex
	seen bytes.Buffer
}

func (w *killer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := w.killing; k != nil {
		before := bytes.Count(w.seen.Bytes(), []byte(k.after))
		if before < k.times && before+bytes.Count(p, []byte(k.after)) >= k.times {
			time.AfterFunc(intoStep, w.kill)
		}
	}
	return w.seen.Write(p)
}

func (w *killer) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.String()
}

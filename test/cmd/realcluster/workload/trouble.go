package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"

	"nftproxy/test/cmd/realcluster/cluster"
)

// trouble is something that is wrong in a cluster, which kubectl nftproxy test has to find and name.
type trouble struct {
	name string
	// put brings it about and returns how to end it.
	put func(context.Context, *ailing) (end ending, err error)
	// test is a kind of check that fails, and says are parts of the explanation of one of these failures.
	test string
	says []string
}

// ending ends a trouble.
type ending func(context.Context) error

// ailing is the cluster, its first two nodes, and the ranges of their pods and of cluster IPs in IPv4.
type ailing struct {
	*cluster.Cluster
	nodes    [2]string
	pods     [2]string
	services string
}

func troubles() []trouble {
	return []trouble{
		{"a firewall on the client's node drops what goes to pods of another node",
			func(ctx context.Context, a *ailing) (ending, error) {
				return a.table(ctx, 0, "type filter hook forward priority 0", "ip daddr "+a.pods[1]+" drop")
			}, "cluster IP", []string{"On the client's node", "inet other has rules that drop or reject packets"}},
		{"a firewall on the endpoint's node drops what it does not know",
			func(ctx context.Context, a *ailing) (ending, error) {
				return a.table(ctx, 1, "type filter hook forward priority 0; policy drop", "ip saddr "+a.pods[1]+" accept")
			}, "cluster IP", []string{"of the endpoint", "inet other drops what no rule accepts"}},
		{"a firewall drops packets to node ports", func(ctx context.Context, a *ailing) (ending, error) {
			return a.table(ctx, 1, "type filter hook prerouting priority -300", "tcp dport 30000-32767 drop")
		}, "node port", []string{"inet other has rules that drop or reject packets"}},
		{"another program translates cluster IPs first", func(ctx context.Context, a *ailing) (ending, error) {
			return a.table(ctx, 0, "type nat hook prerouting priority -110", "ip daddr "+a.services+" dnat ip to 192.0.2.1")
		}, "cluster IP", []string{"inet other has rules that change addresses, perhaps before nftproxy's"}},
		{"packets to cluster IPs are not tracked", func(ctx context.Context, a *ailing) (ending, error) {
			return a.table(ctx, 0, "type filter hook prerouting priority -300", "ip daddr "+a.services+" notrack")
		}, "cluster IP", []string{"inet other has rules that take packets out of connection tracking"}},
		{"a node has no route to the pods of another one", func(ctx context.Context, a *ailing) (ending, error) {
			return a.rule(ctx, 0, a.pods[1]+" priority 100 unreachable")
		}, "cluster IP", []string{"the node has no route to", "for the packet from"}},
		{"a node has no route back to the clients", func(ctx context.Context, a *ailing) (ending, error) {
			return a.rule(ctx, 1, a.pods[0]+" priority 100 unreachable")
		}, "cluster IP", []string{"of the endpoint", "the node has no route to the client"}},
		{"the next hop to the pods of another node is away", func(ctx context.Context, a *ailing) (ending, error) {
			return a.shell(ctx, 0, "ip route add default via 172.30.0.250 dev eth0 onlink table 100; ip rule add to "+a.pods[1]+
				" priority 100 lookup 100", "ip rule del priority 100; ip route flush table 100")
		}, "cluster IP", []string{"no host has 172.30.0.250, the next hop to"}},
		{"nftproxy hangs on a node", func(ctx context.Context, a *ailing) (ending, error) {
			return a.shell(ctx, 0, signalScript+" STOP", signalScript+" CONT")
		}, "cluster IP", []string{"the tables differ from the API server"}},
		{"another Service has the external IP", func(ctx context.Context, a *ailing) (ending, error) {
			_, end, err := otherService(ctx, a)
			return end, err
		}, "external IP", []string{"trouble/first", "is older"}},
		{"the cluster has no DNS", noDNS, "DNS name", []string{"look at the cluster's DNS"}},
	}
}

// signalScript sends the signal that follows to nftproxy's process, whose container is the only one with that name.
const signalScript = `signal() { for p in /proc/[0-9]*; do
  if [ "$(cat $p/comm 2>/dev/null)" = nftproxy ]; then kill -$1 ${p#/proc/}; fi
done; }; signal`

// shell runs a script on a node, and another one at the end.
func (a *ailing) shell(ctx context.Context, node int, script, end string) (ending, error) {
	run := func(ctx context.Context, script string) error {
		cmd, err := a.Shell(ctx, a.nodes[node], script)
		if err != nil {
			return err
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("on %s: %s: %w: %s", a.nodes[node], script, err, out)
		}
		return nil
	}
	return func(ctx context.Context) error { return run(ctx, end) }, run(ctx, script)
}

// table makes a table of another program with one chain and one rule.
func (a *ailing) table(ctx context.Context, node int, chain, rule string) (ending, error) {
	return a.shell(ctx, node, fmt.Sprintf("nft 'table inet other { chain other { %s; %s; }; }'", chain, rule),
		"nft delete table inet other")
}

// rule adds a rule of routing of priority 100.
func (a *ailing) rule(ctx context.Context, node int, to string) (ending, error) {
	return a.shell(ctx, node, "ip rule add to "+to, "ip rule del priority 100")
}

// otherService makes a Service without endpoints, in a namespace of its own and older than what comes next. Its
// external IP is one that the Services of kubectl nftproxy test have, too.
func otherService(ctx context.Context, a *ailing) (*corev1.Service, ending, error) {
	const name = "trouble"
	namespaces := a.Client.CoreV1().Namespaces()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := namespaces.Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, err
	}
	first, err := a.Client.CoreV1().Services(name).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "first"},
		Spec: corev1.ServiceSpec{ExternalIPs: []string{"198.51.100.77"}, Selector: map[string]string{"app": "none"},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}}}}, metav1.CreateOptions{})
	if err == nil {
		// Its age counts in seconds.
		err = again(ctx, func() error {
			n, err := namespaces.Get(ctx, name, metav1.GetOptions{})
			if err == nil && time.Since(n.CreationTimestamp.Time) < 2*time.Second {
				err = errors.New("it is not older than what comes next")
			}
			return err
		})
	}
	return first, func(ctx context.Context) error {
		return errors.Join(namespaces.Delete(ctx, name, metav1.DeleteOptions{}), again(ctx, func() error {
			if _, err := namespaces.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(errors.New("the namespace is still there"), err)
			}
			return nil
		}))
	}, err
}

// noDNS scales CoreDNS down, and up again.
func noDNS(ctx context.Context, a *ailing) (ending, error) {
	scale := func(ctx context.Context, replicas int32) error {
		deployments := a.Client.AppsV1().Deployments(kubeSystem)
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			_, err := deployments.UpdateScale(ctx, "coredns", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "coredns",
				Namespace: kubeSystem}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
			return err
		})
	}
	before, err := a.Client.AppsV1().Deployments(kubeSystem).GetScale(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
			return errors.Join(scale(ctx, before.Spec.Replicas), a.AwaitDeployment(ctx, kubeSystem, "coredns"))
		}, errors.Join(scale(ctx, 0), again(ctx, func() error {
			pods, err := a.Client.CoreV1().Pods(kubeSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
			if err == nil && len(pods.Items) > 0 {
				err = fmt.Errorf("%d pods of CoreDNS are left", len(pods.Items))
			}
			return err
		}))
}

// agnhostImage is the image of the test's pods: the cluster reaches no registry.
const agnhostImage = "registry.k8s.io/e2e-test-images/agnhost:cluster"

// Trouble has kubectl nftproxy test find nothing wrong in the cluster, and then, if nftproxy is its proxy, puts one
// trouble after the other in, which it has to find and name. It writes a line for each. The error says how many were
// not named.
func Trouble(ctx context.Context, c *cluster.Cluster, out io.Writer) error {
	a, err := newAiling(ctx, c)
	if err != nil {
		return err
	}
	failed := 0
	report := func(name string, run func() (string, error)) {
		began := time.Now()
		seen, err := run()
		verdict := "pass"
		if err != nil {
			failed++
			verdict, seen = "FAIL", err.Error()
		}
		fmt.Fprintf(out, "%s  %s: %s (%v)\n", verdict, name, seen, time.Since(began).Round(100*time.Millisecond))
	}
	report("no trouble", func() (string, error) { return a.well(ctx) })
	if c.Proxy() == nftproxy {
		for _, t := range troubles() {
			report(t.name, func() (string, error) { return a.find(ctx, t) })
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d failures", failed)
	}
	return nil
}

func newAiling(ctx context.Context, c *cluster.Cluster) (*ailing, error) {
	if len(c.Nodes()) < 2 {
		return nil, errors.New("the cluster has one node, and two are needed")
	}
	a := &ailing{Cluster: c, nodes: [2]string(c.Nodes()[:2])}
	for i, name := range a.nodes {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		a.pods[i] = n.Spec.PodCIDR
	}
	ranges, err := c.Client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	a.services = ranges.Spec.CIDRs[0]
	return a, nil
}

// failures are what failed of each kind of check, with its explanation.
func failures(results []testResult) map[string][]string {
	failed := map[string][]string{}
	for _, r := range results {
		if r.State == "FAIL" {
			failed[r.Test] = append(failed[r.Test], r.From+", "+r.To+": "+r.Detail+"\n"+strings.Join(r.Explanation, "\n"))
		}
	}
	return failed
}

// well: nothing fails, of all that there is to try.
func (a *ailing) well(ctx context.Context) (string, error) {
	results, err := a.test(ctx)
	if err != nil {
		return "", err
	}
	var left []string
	for _, r := range results {
		if r.State == "not tried" {
			left = append(left, r.Test+" ("+r.Detail+")")
		}
	}
	if failed := failures(results); len(failed) > 0 {
		return "", fmt.Errorf("failures: %q", failed)
	}
	return fmt.Sprintf("%d checks, not tried: %s", len(results), strings.Join(left, ", ")), nil
}

// find puts a trouble in, and looks for it in what the test says.
func (a *ailing) find(ctx context.Context, t trouble) (seen string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	end, err := t.put(ctx, a)
	if end != nil {
		defer func() {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
			defer cancel()
			err = errors.Join(err, end(ending))
		}()
	}
	if err != nil {
		return "", err
	}
	results, err := a.test(ctx, "--light")
	if err != nil {
		return "", err
	}
	failed := failures(results)
	named := func(text string) bool {
		return !slices.ContainsFunc(t.says, func(s string) bool { return !strings.Contains(text, s) })
	}
	switch {
	case len(failed[t.test]) == 0:
		return "", fmt.Errorf("%s did not fail; failures: %q", t.test, failed)
	case !slices.ContainsFunc(failed[t.test], named):
		return "", fmt.Errorf("no explanation says %q:\n%s", t.says, strings.Join(failed[t.test], "\n"))
	}
	return fmt.Sprintf("%s fails, and it says %q", t.test, t.says), nil
}

type testResult struct {
	Test, From, To, State, Detail string
	Explanation                   []string
}

// test runs kubectl nftproxy test.
func (a *ailing) test(ctx context.Context, args ...string) ([]testResult, error) {
	path, err := filepath.Abs(pluginPath)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"--kubeconfig", a.Plane.AdminKubeconfig(), "test", "-o", "json",
		"--image", agnhostImage, "--node", a.nodes[0], "--node", a.nodes[1]}, args...)...)
	// It removes what it made.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = timeout
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	exit := (*exec.ExitError)(nil)
	if err := a.Outside.Run(cmd); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return nil, fmt.Errorf("kubectl nftproxy test: %w: %s%s", err, out.String(), errs.String())
	}
	var list struct{ Items []testResult }
	if err := json.Unmarshal([]byte(out.String()), &list); err != nil || len(list.Items) == 0 {
		return nil, fmt.Errorf("kubectl nftproxy test: %w: %s", errors.Join(err, errors.New("no results")), errs.String())
	}
	return list.Items, nil
}

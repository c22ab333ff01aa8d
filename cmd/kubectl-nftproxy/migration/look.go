package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// kubeSystem is where kube-proxy's DaemonSet is.
const kubeSystem = "kube-system"

// node is a node as it is at one moment.
type node struct {
	cluster.Node
	// set is nftproxy's DaemonSet for the node.
	set *appsv1.DaemonSet
	// ours and theirs say whether the DaemonSets of nftproxy and kube-proxy are for the node, with its labels.
	ours, theirs bool
	// kubeProxy are the pods of kube-proxy that have not ended.
	kubeProxy []corev1.Pod
	// rules is what the node's nftproxy says of the rules in the kernel; nil if it could not be asked.
	rules *proxies
	// unasked is why it could not.
	unasked error
	// due names the steps that are to be done.
	due []string
	// gone says that the Node has been removed.
	gone bool
	// failed says that a step was not right.
	failed bool
}

// proxies is what nftproxy proxies prints, with the fields that are read here.
type proxies struct {
	Proxies []struct {
		Name      string   `json:"name"`
		Rules     []string `json:"rules"`
		Frontends int      `json:"frontends"`
		Lacks     []string `json:"lacks"`
	} `json:"proxies"`
	// Felix is Calico's agent; nil if there is none, or nftproxy is too old to tell.
	Felix *struct {
		After string `json:"after"`
	} `json:"felix"`
}

// rulesOf returns the tables of a proxy, how many frontends it has there, and which of the other's it lacks.
func (p *proxies) rulesOf(name string) (tables []string, frontends int, lacks []string) {
	for _, q := range p.Proxies {
		if q.Name == name {
			return q.Rules, q.Frontends, q.Lacks
		}
	}
	return nil, 0, nil
}

// serves says why nftproxy does not serve the node; nil if its pod is ready.
func (n *node) serves() error {
	switch {
	case n.Pod == nil:
		return errors.New("there is no pod of nftproxy")
	case n.Pod.DeletionTimestamp != nil:
		return fmt.Errorf("nftproxy's pod %s ends", n.Pod.Name)
	}
	return podReady(n.Pod)
}

// kubeProxyServes says why kube-proxy does not serve the node; nil if a pod of it is ready.
func (n *node) kubeProxyServes() error {
	for i := range n.kubeProxy {
		if p := &n.kubeProxy[i]; p.DeletionTimestamp == nil {
			return podReady(p)
		}
	}
	return errors.New("there is no pod of kube-proxy")
}

// well says why a node is not to be changed now.
func (n *node) well() error {
	if n.Object.DeletionTimestamp != nil {
		return errors.New("the node is being deleted")
	}
	return notReady(n.Object)
}

// has says which proxies a node has.
func (n *node) has() string {
	var list []string
	if n.Pod != nil {
		list = append(list, cmp.Or(prefixed(Nftproxy+", not ready: ", n.serves()), Nftproxy))
	}
	if len(n.kubeProxy) > 0 {
		list = append(list, cmp.Or(prefixed(KubeProxy+", not ready: ", n.kubeProxyServes()), KubeProxy))
	} else if n.rules != nil {
		if tables, _, _ := n.rules.rulesOf(KubeProxy); len(tables) > 0 {
			list = append(list, "rules that kube-proxy left")
		}
	}
	if err := n.well(); err != nil {
		list = append(list, err.Error())
	}
	return cmp.Or(strings.Join(list, " and "), "no proxy")
}

func prefixed(prefix string, err error) string {
	if err == nil {
		return ""
	}
	return prefix + err.Error()
}

// podReady says why a pod is not ready; nil if it is.
func podReady(p *corev1.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	why := string(p.Status.Phase)
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch w, t := s.State.Waiting, s.State.Terminated; {
		case w != nil && w.Reason != "":
			why = strings.TrimSpace(w.Reason + " " + w.Message)
		case t != nil:
			why = fmt.Sprintf("%s ended with exit status %d", s.Name, t.ExitCode)
		}
	}
	why = strings.TrimSpace(why + " " + p.Status.Message)
	return fmt.Errorf("the pod %s is not ready: %s", p.Name, cmp.Or(why, "Unknown"))
}

// view is the cluster at one moment.
type view struct {
	// nodes are those to migrate, by name, and found is how many these are.
	nodes []*node
	found int
	// spared have kube-proxy, and nftproxy's DaemonSet is not for them.
	spared []string
	// foreign have neither proxy, and kube-proxy's DaemonSet is not for them: another program may be their proxy.
	foreign []string
	// sets are nftproxy's DaemonSets, and theirs is kube-proxy's.
	sets   []appsv1.DaemonSet
	theirs *appsv1.DaemonSet
}

// look finds the nodes to migrate, and what each of them has.
func (m *migration) look(ctx context.Context) (*view, error) {
	sets, theirs, err := m.daemonSets(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := m.of.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: m.selector()})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	ours, err := m.podsByNode(ctx, m.of.Namespace, cluster.Selector)
	if err != nil {
		return nil, err
	}
	kubeProxies, err := m.podsByNode(ctx, kubeSystem, metav1.FormatLabelSelector(theirs.Spec.Selector))
	if err != nil {
		return nil, err
	}
	v := &view{sets: sets, theirs: theirs}
	for i := range objects.Items {
		n := &node{Node: cluster.Node{Name: objects.Items[i].Name, Object: &objects.Items[i]}}
		n.fill(sets, theirs, ours[n.Name], kubeProxies[n.Name])
		fits := cluster.IsFor(opened(theirs), n.Object)
		switch {
		case m.To == KubeProxy && n.Pod != nil && !fits:
			return nil, &StoppedError{n.Name, stepStart, errors.New("the node has nftproxy, and kube-proxy's DaemonSet " +
				"is not for it, by its node selector, affinity or tolerations: change these, or leave the node out by --nodes")}
		case n.set != nil && (fits || m.To == Nftproxy && (n.Pod != nil || len(n.kubeProxy) > 0)):
			v.nodes = append(v.nodes, n)
		case n.set != nil && m.To == Nftproxy:
			v.foreign = append(v.foreign, n.Name)
		case n.theirs && n.set == nil:
			v.spared = append(v.spared, n.Name)
		}
	}
	if v.found = len(v.nodes); v.found == 0 {
		return nil, &ObstacleError{[]string{
			"there is no node to migrate: the DaemonSets of both proxies are for none that --nodes chooses"}}
	}
	slices.SortFunc(v.nodes, func(a, b *node) int { return strings.Compare(a.Name, b.Name) })
	return v, m.askRules(ctx, v.nodes)
}

// fill sets what a node has, by the pods on it.
func (n *node) fill(sets []appsv1.DaemonSet, theirs *appsv1.DaemonSet, ours, kubeProxies []corev1.Pod) {
	// Once the pod has ended that was there in spite of a taint, the node is still to be cleaned.
	known := n.set != nil
	n.Pod, n.set, n.ours, n.kubeProxy = cluster.PodOf(ours, sets), nil, false, nil
	for i := range sets {
		all := everywhere(&sets[i])
		if n.set == nil && (has(all, n.Object, ours) || known && keeps(all, n.Object)) {
			n.set = &sets[i]
		}
		n.ours = n.ours || has(&sets[i], n.Object, ours)
	}
	n.theirs = has(theirs, n.Object, kubeProxies)
	for _, p := range kubeProxies {
		if metav1.IsControlledBy(&p, theirs) && !ended(&p) {
			n.kubeProxy = append(n.kubeProxy, p)
		}
	}
}

// daemonSets returns nftproxy's DaemonSets and kube-proxy's.
func (m *migration) daemonSets(ctx context.Context) ([]appsv1.DaemonSet, *appsv1.DaemonSet, error) {
	sets, err := m.of.DaemonSets(ctx)
	if err != nil {
		return nil, nil, err
	}
	theirs, err := m.of.Client.AppsV1().DaemonSets(kubeSystem).Get(ctx, KubeProxy, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the DaemonSet %s/%s: %w", kubeSystem, KubeProxy, err)
	}
	return sets, theirs, nil
}

func (m *migration) podsByNode(ctx context.Context, namespace, selector string) (map[string][]corev1.Pod, error) {
	pods, err := m.of.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
	}
	byNode := map[string][]corev1.Pod{}
	for _, p := range pods.Items {
		byNode[p.Spec.NodeName] = append(byNode[p.Spec.NodeName], p)
	}
	return byNode, nil
}

// askRules asks each node with an nftproxy for the rules in its kernel, if the direction needs them, and sets what is
// due.
func (m *migration) askRules(ctx context.Context, nodes []*node) error {
	var asked []cluster.Node
	for _, n := range nodes {
		if m.To == Nftproxy && n.serves() == nil {
			asked = append(asked, n.Node)
		}
	}
	type answer struct {
		rules *proxies
		err   error // What cannot be told is to be done again.
	}
	read := func(ctx context.Context, n *cluster.Node) (a answer) {
		text, err := m.of.Ask(ctx, n, append([]string{"proxies", "-o", "json"}, n.Tables()...)...)
		a.rules, a.err = parseProxies(text, err)
		return a
	}
	answers, err := cluster.Each(ctx, asked, cluster.DefaultRound(nil), read)
	if err != nil {
		return err
	}
	byName := map[string]answer{}
	for i := range asked {
		byName[asked[i].Name] = answers[i]
	}
	for _, n := range nodes {
		n.rules, n.unasked = byName[n.Name].rules, byName[n.Name].err
		n.due = n.dueForth()
		if m.To == KubeProxy {
			n.due = n.dueBack()
		}
	}
	return nil
}

func parseProxies(text []byte, err error) (*proxies, error) {
	if err != nil {
		return nil, err
	}
	p := &proxies{}
	if err := json.Unmarshal(text, p); err != nil || len(p.Proxies) == 0 {
		return nil, fmt.Errorf("nftproxy proxies has printed what cannot be read: %q (%w)", shortened(string(text)), err)
	}
	return p, nil
}

// shortened is another program's output for a line: bounded, and without line breaks.
func shortened(text string) string {
	const most = 2000
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// refresh reads again what a node has.
func (m *migration) refresh(ctx context.Context, n *node) error {
	object, err := m.of.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Node: %w", err)
	}
	if object.UID != n.Object.UID {
		return errReplaced
	}
	sets, theirs, err := m.daemonSets(ctx)
	if err != nil {
		return err
	}
	on := func(namespace string, selector string) ([]corev1.Pod, error) {
		pods, err := m.of.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector,
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String()})
		if err != nil {
			return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
		}
		return pods.Items, nil
	}
	ours, err := on(m.of.Namespace, cluster.Selector)
	if err != nil {
		return err
	}
	kubeProxies, err := on(kubeSystem, metav1.FormatLabelSelector(theirs.Spec.Selector))
	if err != nil {
		return err
	}
	n.Object = object
	n.fill(sets, theirs, ours, kubeProxies)
	if n.set == nil {
		return errors.New("nftproxy's DaemonSet is not for the node any more")
	}
	return nil
}

// againError says that a look is to be repeated.
type againError struct{ error }

// again is what a look returns if it is to be repeated, as long as there is patience.
func again(err error) error { return againError{err} }

// await looks at a node again and again, until a look returns another error than again's, or none. It returns this
// error, or why it would have looked again.
func (m *migration) await(ctx context.Context, n *node, look func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, m.Period, m.Patience, true, func(ctx context.Context) (bool, error) {
		err := m.refresh(ctx, n)
		if err == nil {
			err = look(ctx)
		} else if !errors.Is(err, errReplaced) && !m.left(ctx, n) {
			err = again(err)
		}
		repeat := againError{}
		if errors.As(err, &repeat) {
			// The end of the patience says nothing of the node.
			if ctx.Err() == nil || last == nil {
				last = repeat.error
			}
			return false, nil
		}
		return true, err
	})
	if last != nil && wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("%w (after %s)", last, m.Patience.Round(time.Second))
	}
	return err
}

// awaitThat waits until a condition of the node holds.
func (m *migration) awaitThat(ctx context.Context, n *node, not func() error) error {
	return m.await(ctx, n, func(context.Context) error {
		if err := not(); err != nil {
			return again(err)
		}
		return nil
	})
}

// ask runs a command in the node's nftproxy. A pod that starts, or is replaced meanwhile, is asked again.
func (m *migration) ask(ctx context.Context, n *node, args ...string) (text []byte, err error) {
	const killed = 128 // and above: by a signal
	err = m.await(ctx, n, func(ctx context.Context) (err error) {
		if n.Pod == nil {
			return again(n.serves())
		}
		text, err = m.of.Ask(ctx, &n.Node, args...)
		if exit := (*cluster.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.Status >= killed) {
			return again(err)
		}
		return err
	})
	return text, err
}

// selector is --nodes as the API server takes it.
func (m *migration) selector() string {
	if m.Nodes == nil {
		return ""
	}
	return m.Nodes.String()
}

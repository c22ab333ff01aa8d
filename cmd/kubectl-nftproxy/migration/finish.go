package migration

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// stepFinish is after all nodes: what new nodes get.
const stepFinish = "finish"

// finish says which proxy new nodes get. A node that joins before that may have had the other one for a moment, so the
// nodes are looked at once more, and conclude is called when all of them are right.
func (m *migration) finish(ctx context.Context, v *view) (conclude func(context.Context, *view) error, err error) {
	switch {
	case m.chosen():
		return m.finishChosen, nil
	case m.To == KubeProxy:
		return m.finishBack(ctx)
	}
	return m.finishForth(ctx, v)
}

// finishChosen says what a migration of some nodes leaves.
func (m *migration) finishChosen(ctx context.Context, v *view) error {
	sets, err := m.of.DaemonSets(ctx)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d nodes have %s; the others and new nodes are as before", v.found, m.To)
	for i := range sets {
		if s := &sets[i]; onTrial(s) && s.Annotations[triedAnnotation] != "" {
			text = fmt.Sprintf("%d nodes have %s, and the others are as before. New nodes get kube-proxy, and the DaemonSet %s "+
				"has the update strategy OnDelete, until you run the command without --nodes, with either proxy. If you update "+
				"nftproxy before, delete its pods one after the other", v.found, m.To, s.Name)
		}
	}
	m.say("chosen nodes", stepFinish, text)
	return nil
}

// stayRight says that a node that was taken through all steps is not right any more. One that joined is taken later.
func (m *migration) stayRight(v *view, taken map[types.UID]bool) error {
	for _, n := range v.nodes {
		if i := slices.IndexFunc(n.due, func(s string) bool {
			return s == stepServe || s == stepStart || s == stepHand
		}); i >= 0 && taken[n.Object.UID] {
			return &StoppedError{n.Name, n.due[i], fmt.Errorf("the node was right and now has %s: something else changes the "+
				"DaemonSets or labels", n.has())}
		}
	}
	return nil
}

// chosen says that --nodes chooses some nodes.
func (m *migration) chosen() bool { return m.Nodes != nil && !m.Nodes.Empty() }

// finishForth closes kube-proxy's DaemonSet, if new nodes get nftproxy.
//
// A node selector that somebody else gave nftproxy's DaemonSet stays: Helm, or whoever has the manifests, would put
// it back one day, and then new nodes had no proxy. Until it is gone from there, new nodes get kube-proxy.
func (m *migration) finishForth(ctx context.Context, v *view) (func(context.Context, *view) error, error) {
	sets, err := m.of.DaemonSets(ctx)
	if err != nil {
		return nil, err
	}
	limited := false
	for i := range sets {
		s := &sets[i]
		if onTrial(s) && s.Annotations[triedAnnotation] != "" {
			if err := m.changeSet(ctx, s.Namespace, s.Name, untried, hold{}); err != nil {
				return nil, err
			}
			if err := m.awaitRollout(ctx, s.Namespace, s.Name); err != nil {
				return nil, err
			}
			continue
		}
		limited = limited || onTrial(s)
	}
	if sets, err = m.of.DaemonSets(ctx); err != nil {
		return nil, err
	}
	others, stop := ". New ones get kube-proxy", hold{key: stopLabel, off: stopValue}
	change := gatedWith(sets)
	switch why := narrower(sets, opened(v.theirs)); {
	case limited:
		others += ", for nftproxy's DaemonSet is for nodes with the label " + trialLabel + " only. Take this node selector " +
			"from your overlay or from the values of Helm, apply it, and run the same command again"
	case len(v.spared) > 0:
		others += ", for some nodes keep it"
	case why != nil:
		others += fmt.Sprintf(" and, if its DaemonSet is for them, nftproxy too, for a node may join that only kube-proxy "+
			"is for: %v. Run the same command again when nodes have joined, or make nftproxy's DaemonSet as wide as "+
			"kube-proxy's before", why)
	default:
		others = ", and so will new ones. kube-proxy's DaemonSet stays, without pods. If something applies it again, as " +
			"kubeadm upgrade does, run the same command again"
		change, stop = closed, hold{}
	}
	// It may have been closed when nftproxy's DaemonSet was wider.
	if isClosed(change(v.theirs)) || isClosed(v.theirs) {
		err = m.changeKubeProxy(ctx, change, stop)
	}
	return func(ctx context.Context, v *view) error {
		if isClosed(v.theirs) {
			if err := m.unlabelAll(ctx, stopLabel); err != nil {
				return err
			}
		}
		m.saySpared(v)
		m.say("new nodes", stepFinish, fmt.Sprintf("%d nodes have nftproxy%s", v.found, others))
		return nil
	}, err
}

// finishBack leaves kube-proxy's DaemonSet as it was before the migration.
func (m *migration) finishBack(ctx context.Context) (func(context.Context, *view) error, error) {
	if err := m.openKubeProxy(ctx); err != nil {
		return nil, err
	}
	sets, err := m.of.DaemonSets(ctx)
	for i := 0; i < len(sets) && err == nil; i++ {
		err = m.changeSet(ctx, sets[i].Namespace, sets[i].Name, replacing, hold{})
	}
	return func(ctx context.Context, _ *view) error {
		if err := m.awaitNoPod(ctx, sets); err != nil {
			return err
		}
		m.say("all nodes", stepFinish, "they have kube-proxy, whose DaemonSet is as before. Now uninstall nftproxy, which "+
			"has no pod: helm uninstall nftproxy --namespace "+m.of.Namespace+", or kubectl delete -k with your overlay")
		return nil
	}, err
}

// awaitNoPod waits until nftproxy has no pod on any node, which would lose its proxy when nftproxy is uninstalled.
func (m *migration) awaitNoPod(ctx context.Context, sets []appsv1.DaemonSet) error {
	var left error
	err := wait.PollUntilContextTimeout(ctx, m.Period, m.Patience, true, func(ctx context.Context) (bool, error) {
		byNode, err := m.podsByNode(ctx, m.of.Namespace, cluster.Selector)
		if err != nil {
			return false, err
		}
		for node, pods := range byNode {
			if p := cluster.PodOf(pods, sets); p != nil {
				left = &StoppedError{node, stepFinish, fmt.Errorf("nftproxy still has the pod %s", p.Name)}
				return false, nil
			}
		}
		return true, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return left
	}
	return err
}

// kubeProxyIsOff says whether a migration left kube-proxy switched off for some nodes. kube-proxy's DaemonSet has to
// be one that can be changed.
func (m *migration) kubeProxyIsOff(ctx context.Context) (bool, error) {
	unfit, err := m.unfitKubeProxy(ctx, nil)
	if err != nil {
		return false, err
	}
	if len(unfit) > 0 {
		return false, &ObstacleError{unfit}
	}
	s, err := m.of.Client.AppsV1().DaemonSets(kubeSystem).Get(ctx, KubeProxy, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read the DaemonSet %s/%s: %w", kubeSystem, KubeProxy, err)
	}
	if equality.Semantic.DeepEqual(opened(s), s) {
		return false, nil
	}
	// The user may have forgotten to say where nftproxy is, and may have no right to look there.
	sets, err := m.of.Client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{LabelSelector: cluster.Selector})
	if err == nil && len(sets.Items) > 0 {
		return false, &ObstacleError{[]string{fmt.Sprintf("nftproxy is in another namespace: say --proxy-namespace %s",
			sets.Items[0].Namespace)}}
	}
	return true, nil
}

// reopen has kube-proxy run on all nodes where nftproxy's DaemonSets were removed before the way back: these nodes
// have no proxy, only the rules that nftproxy left.
func (m *migration) reopen(ctx context.Context) error {
	if err := m.removeLeftPods(ctx); err != nil {
		return err
	}
	if err := m.openKubeProxy(ctx); err != nil {
		return err
	}
	if err := m.unlabelAll(ctx, trialLabel); err != nil {
		return err
	}
	m.say("all nodes", stepFinish, "kube-proxy runs, and its DaemonSet is as before. nftproxy has no DaemonSet any more. "+
		"Now remove the rules that it left, which become outdated: deploy/cleanup/nftproxy (docs/migrate.md, step 6)")
	return nil
}

// openKubeProxy leaves kube-proxy's DaemonSet as it was before the migration. The labels go before the pods are
// awaited: after a run that was killed in between, nothing says any more that they are to go.
func (m *migration) openKubeProxy(ctx context.Context) error {
	if err := m.changeSet(ctx, kubeSystem, KubeProxy, opened, hold{}); err != nil {
		return err
	}
	if err := m.unlabelAll(ctx, stopLabel); err != nil {
		return err
	}
	return m.awaitRollout(ctx, kubeSystem, KubeProxy)
}

// unlabelAll takes a label from all nodes that have it.
func (m *migration) unlabelAll(ctx context.Context, key string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { // A node may be made anew.
		nodes, err := m.of.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: key})
		if err != nil {
			return fmt.Errorf("list Nodes: %w", err)
		}
		return m.labelAll(ctx, nodes.Items, key, func(*corev1.Node) string { return "" })
	})
}

// triedAnnotation is on DaemonSets of nftproxy that have the node selector of the trial from this package. Nobody
// else knows of it, and so nobody puts it back.
const triedAnnotation = "nftproxy.io/trial-for-migration"

// untried takes the node selector of the trial away.
func untried(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	s = everywhere(replacing(s)).DeepCopy()
	delete(s.Annotations, triedAnnotation)
	return s
}

// replacing gives a DaemonSet of nftproxy the strategy that it had before tried.
func replacing(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	s = s.DeepCopy()
	if was := s.Annotations[triedAnnotation]; was != "" {
		s.Spec.UpdateStrategy.Type = appsv1.DaemonSetUpdateStrategyType(was)
	}
	return s
}

package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/util/retry"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// Nodes with this label have no kube-proxy, while its DaemonSet has the expression of gated.
const (
	stopLabel = "nftproxy.io/kube-proxy"
	stopValue = "stopped"
)

// trialLabel is the one of deploy/overlays/trial.
const trialLabel = "nftproxy.io/trial"

// The node selector of docs/migrate.md, by which no node has a kube-proxy.
const (
	nowhereKey   = "non-existing"
	nowhereValue = "true"
)

// opened is kube-proxy's DaemonSet without what this package and docs/migrate.md add to it.
func opened(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	s = s.DeepCopy()
	spec := &s.Spec.Template.Spec
	if isClosed(s) {
		delete(spec.NodeSelector, nowhereKey)
	}
	required := requiredTerms(spec)
	if required == nil {
		return s
	}
	terms, stopBefore := required.NodeSelectorTerms[:0], false
	for _, term := range required.NodeSelectorTerms {
		had := len(term.MatchExpressions)
		stop := slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return isExpression(&e, stopLabel, stopValue)
		})
		term.MatchExpressions = slices.DeleteFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return isExpression(&e, stopLabel, stopValue) || isExpression(&e, trialLabel, "true")
		})
		// A term that had no other expression was made for it. One that never had any chooses no node, and stays.
		// The second term of gatedOnTrial is its first one, but for the label.
		second := stopBefore && !stop && had > len(term.MatchExpressions) && len(terms) > 0 &&
			equality.Semantic.DeepEqual(terms[len(terms)-1], term)
		if had == 0 || !second && len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			terms = append(terms, term)
		}
		stopBefore = stop
	}
	required.NodeSelectorTerms = terms
	dropEmptyAffinity(spec)
	return s
}

func isExpression(e *corev1.NodeSelectorRequirement, key, value string) bool {
	return e.Key == key && e.Operator == corev1.NodeSelectorOpNotIn && slices.Equal(e.Values, []string{value})
}

func requiredTerms(spec *corev1.PodSpec) *corev1.NodeSelector {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// dropEmptyAffinity takes away what an affinity without terms would leave.
func dropEmptyAffinity(spec *corev1.PodSpec) {
	if required := requiredTerms(spec); required == nil || len(required.NodeSelectorTerms) > 0 {
		return
	}
	spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	if equality.Semantic.DeepEqual(spec.Affinity.NodeAffinity, &corev1.NodeAffinity{}) {
		spec.Affinity.NodeAffinity = nil
	}
	if equality.Semantic.DeepEqual(spec.Affinity, &corev1.Affinity{}) {
		spec.Affinity = nil
	}
}

// gated is kube-proxy's DaemonSet for the nodes without stopLabel. One of the terms of an affinity is enough for a
// node, so each gets the expression.
func gated(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	s = opened(s)
	spec := &s.Spec.Template.Spec
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	not := corev1.NodeSelectorRequirement{Key: stopLabel, Operator: corev1.NodeSelectorOpNotIn,
		Values: []string{stopValue}}
	required := requiredTerms(spec)
	if required == nil {
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{not}}}}
		return s
	}
	for i := range required.NodeSelectorTerms {
		// A term without expressions chooses no node, and would choose some.
		if t := &required.NodeSelectorTerms[i]; len(t.MatchExpressions)+len(t.MatchFields) > 0 {
			t.MatchExpressions = append(t.MatchExpressions, not)
		}
	}
	return s
}

// gatedOnTrial is kube-proxy's DaemonSet for the nodes without stopLabel, and for those without the label of the trial,
// which have no nftproxy while its DaemonSet is on trial: whoever takes one of the labels away starts kube-proxy.
func gatedOnTrial(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	s = gated(s)
	required := requiredTerms(&s.Spec.Template.Spec)
	var terms []corev1.NodeSelectorTerm
	for _, first := range required.NodeSelectorTerms {
		terms = append(terms, first)
		if last := len(first.MatchExpressions) - 1; last >= 0 {
			second := *first.DeepCopy()
			second.MatchExpressions[last].Key, second.MatchExpressions[last].Values = trialLabel, []string{"true"}
			terms = append(terms, second)
		}
	}
	required.NodeSelectorTerms = terms
	return s
}

// gatedWith is how kube-proxy's DaemonSet is gated beside nftproxy's DaemonSets. Where it is gated and these are put on
// trial, on the way back, it stays as it is: a change restarts all its pods.
func gatedWith(sets []appsv1.DaemonSet) func(*appsv1.DaemonSet) *appsv1.DaemonSet {
	everywhere := slices.ContainsFunc(sets, func(s appsv1.DaemonSet) bool { return !onTrial(&s) })
	return func(s *appsv1.DaemonSet) *appsv1.DaemonSet {
		if g := gated(s); everywhere || equality.Semantic.DeepEqual(s, g) {
			return g
		}
		return gatedOnTrial(s)
	}
}

// closed is kube-proxy's DaemonSet for no node, as docs/migrate.md makes it.
func closed(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	s = opened(s)
	spec := &s.Spec.Template.Spec
	if spec.NodeSelector == nil {
		spec.NodeSelector = map[string]string{}
	}
	spec.NodeSelector[nowhereKey] = nowhereValue
	return s
}

// isClosed says whether kube-proxy's DaemonSet is for no node.
func isClosed(s *appsv1.DaemonSet) bool {
	return s.Spec.Template.Spec.NodeSelector[nowhereKey] == nowhereValue
}

// onTrial says whether a DaemonSet of nftproxy is for nodes with the label of the trial only.
func onTrial(s *appsv1.DaemonSet) bool {
	return s.Spec.Template.Spec.NodeSelector[trialLabel] == "true"
}

// everywhere is a DaemonSet of nftproxy for all nodes, labelled for the trial or not.
func everywhere(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	if !onTrial(s) {
		return s
	}
	s = s.DeepCopy()
	delete(s.Spec.Template.Spec.NodeSelector, trialLabel)
	return s
}

// tried is a DaemonSet of nftproxy for nodes with the label only. Its pods are not replaced for that, which would end
// what nftproxy serves itself: node ports on localhost. The annotation keeps the strategy that it had.
func tried(s *appsv1.DaemonSet) *appsv1.DaemonSet {
	if onTrial(s) {
		return s
	}
	s = s.DeepCopy()
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[triedAnnotation] = string(s.Spec.UpdateStrategy.Type)
	s.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	if s.Spec.Template.Spec.NodeSelector == nil {
		s.Spec.Template.Spec.NodeSelector = map[string]string{}
	}
	s.Spec.Template.Spec.NodeSelector[trialLabel] = "true"
	return s
}

// gateKubeProxy makes kube-proxy a matter of stopLabel, node by node. It runs on the same nodes afterwards.
func (m *migration) gateKubeProxy(ctx context.Context, at []*node) error {
	if !slices.ContainsFunc(at, func(n *node) bool { return n.theirs != (m.To == KubeProxy) }) {
		return nil
	}
	sets, err := m.of.DaemonSets(ctx)
	if err != nil {
		return err
	}
	return m.changeKubeProxy(ctx, gatedWith(sets), hold{key: stopLabel, off: stopValue})
}

// gateOurs makes nftproxy a matter of the label of the trial. It runs on the same nodes afterwards.
func (m *migration) gateOurs(ctx context.Context, _ []*node) error {
	sets, err := m.of.DaemonSets(ctx)
	for i := 0; i < len(sets) && err == nil; i++ {
		err = m.changeSet(ctx, sets[i].Namespace, sets[i].Name, tried, hold{key: trialLabel, on: "true"})
	}
	return err
}

// hold is the label that keeps a changed DaemonSet on the nodes where it is: off is its value where it is not, and on
// where it is; "" is no label. Without a key, the nodes change.
type hold struct{ key, off, on string }

// changeSet changes a DaemonSet, after the nodes have got the label.
func (m *migration) changeSet(ctx context.Context, namespace, name string,
	change func(*appsv1.DaemonSet) *appsv1.DaemonSet, h hold) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		was, err := m.of.Client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the DaemonSet %s/%s: %w", namespace, name, err)
		}
		will := change(was)
		if equality.Semantic.DeepEqual(was, will) {
			return nil
		}
		if err := m.holdNodes(ctx, was, will, h); err != nil {
			return err
		}
		return m.patchSet(ctx, was, will)
	})
}

func (m *migration) holdNodes(ctx context.Context, was, will *appsv1.DaemonSet, h hold) error {
	if h.key == "" {
		return nil
	}
	nodes, err := m.of.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	pods, err := m.podsByNode(ctx, was.Namespace, metav1.FormatLabelSelector(was.Spec.Selector))
	if err != nil {
		return err
	}
	return m.labelAll(ctx, nodes.Items, h.key, func(n *corev1.Node) string {
		switch is, would := has(was, n, pods[n.Name]), has(will, n, pods[n.Name]); {
		case is && !would:
			return h.on
		case !is && would:
			return h.off
		}
		return n.Labels[h.key]
	})
}

// has says whether a DaemonSet has a pod on a node, or will have one. A taint that came after a pod, and that its
// DaemonSet does not tolerate, lets the pod stay.
func has(s *appsv1.DaemonSet, n *corev1.Node, pods []corev1.Pod) bool {
	if cluster.IsFor(s, n) {
		return true
	}
	p := cluster.PodOf(pods, []appsv1.DaemonSet{*s})
	return p != nil && p.DeletionTimestamp == nil && keeps(s, n)
}

// keeps says whether a DaemonSet lets a pod stay on a node.
func keeps(s *appsv1.DaemonSet, n *corev1.Node) bool {
	s = s.DeepCopy()
	s.Spec.Template.Spec.Tolerations = append(s.Spec.Template.Spec.Tolerations,
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	return cluster.IsFor(s, n)
}

// patchSet writes what differs between two states of a DaemonSet, unless somebody else has changed it. Fields that
// this program does not know stay as they are.
func (m *migration) patchSet(ctx context.Context, was, will *appsv1.DaemonSet) error {
	before := was.DeepCopy()
	before.ResourceVersion = "" // The patch has it, as the condition.
	from, err := json.Marshal(before)
	if err != nil {
		return err
	}
	to, err := json.Marshal(will)
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(from, to, &appsv1.DaemonSet{})
	if err != nil {
		return fmt.Errorf("change the DaemonSet %s/%s: %w", was.Namespace, was.Name, err)
	}
	_, err = m.of.Client.AppsV1().DaemonSets(was.Namespace).Patch(ctx, was.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("change the DaemonSet %s/%s: %w", was.Namespace, was.Name, err)
	}
	return nil
}

const fieldManager = "kubectl-nftproxy"

// labelsAtOnce is how many Nodes are labelled at the same time.
const labelsAtOnce = 16

// labelAll gives each node the label that it should have.
func (m *migration) labelAll(ctx context.Context, nodes []corev1.Node, key string,
	value func(*corev1.Node) string) error {
	var group errgroup.Group
	group.SetLimit(labelsAtOnce)
	for i := range nodes {
		n := &nodes[i]
		group.Go(func() error {
			err := m.label(ctx, n, key, value(n))
			if apierrors.IsNotFound(err) {
				return nil // It has left the cluster.
			}
			return err
		})
	}
	return group.Wait()
}

// label sets a label of a Node; "" takes it away.
func (m *migration) label(ctx context.Context, n *corev1.Node, key, value string) error {
	if n.Labels[key] == value {
		return nil
	}
	change := map[string]any{key: value}
	if value == "" {
		change[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "labels": change}})
	if err != nil {
		return err
	}
	_, err = m.of.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("label the Node %s with %s: %w", n.Name, key, err)
	}
	return nil
}

// narrower says why none of nftproxy's DaemonSets is for each node that kube-proxy's is for, whichever joins; nil if
// one is.
func narrower(sets []appsv1.DaemonSet, theirs *appsv1.DaemonSet) (why error) {
	for i := range sets {
		if why = narrow(&sets[i], &theirs.Spec.Template.Spec); why == nil {
			return nil
		}
	}
	return why
}

func narrow(s *appsv1.DaemonSet, theirs *corev1.PodSpec) error {
	ours := &everywhere(s).Spec.Template.Spec
	for key, value := range ours.NodeSelector {
		// Both proxies run on Linux only, whether kube-proxy's DaemonSet says so, and by which field.
		if value != theirs.NodeSelector[key] && !(key == corev1.LabelOSStable && value == string(corev1.Linux)) {
			return fmt.Errorf("the DaemonSet %s has the node selector %s=%s", s.Name, key, value)
		}
	}
	if ours.Affinity != nil && !equality.Semantic.DeepEqual(ours.Affinity, theirs.Affinity) {
		return fmt.Errorf("the DaemonSet %s has an affinity of its own", s.Name)
	}
	for _, t := range theirs.Tolerations {
		if !slices.ContainsFunc(ours.Tolerations, func(o corev1.Toleration) bool { return covers(&o, &t) }) {
			return fmt.Errorf("the DaemonSet %s lacks kube-proxy's toleration of the taint %q", s.Name,
				cmp.Or(t.Key, "any"))
		}
	}
	return nil
}

// covers says whether a toleration is for each taint that another one is for, and for as long.
func covers(o, t *corev1.Toleration) bool {
	exists := o.Operator == corev1.TolerationOpExists
	return (o.Key == t.Key || o.Key == "" && exists) && (exists || o.Operator == t.Operator && o.Value == t.Value) &&
		(o.Effect == "" || o.Effect == t.Effect) &&
		(o.TolerationSeconds == nil || equality.Semantic.DeepEqual(o.TolerationSeconds, t.TolerationSeconds))
}

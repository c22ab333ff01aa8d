package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// Plan says what Run would do, and changes nothing.
func Plan(ctx context.Context, of *cluster.Cluster, o Options) error {
	m := newMigration(of, o)
	if err := m.obstacles(ctx); err != nil {
		return err
	}
	_, err := m.of.DaemonSets(ctx)
	if errors.Is(err, cluster.ErrNotInstalled) {
		m.say("DaemonSet "+KubeProxy, stepStart, "on all nodes, for nftproxy has no DaemonSet any more")
		return nil
	}
	if err := m.sayWhoUndoes(ctx); err != nil {
		return err
	}
	v, err := m.look(ctx)
	if err != nil {
		return err
	}
	if err := m.sayChanges(ctx, v); err != nil {
		return err
	}
	for _, n := range v.nodes {
		due := slices.DeleteFunc(slices.Clone(n.due), func(s string) bool { return s == stepProbe && m.Probe == nil })
		has := n.has()
		if n.unasked != nil {
			has += " (its rules are not known: " + n.unasked.Error() + ")"
		}
		m.say(n.Name, "has "+has, cmp.Or(strings.Join(due, ", "), "nothing to do"))
	}
	m.saySpared(v)
	return nil
}

// changesSay begins a line about what changes for more than one node.
const changesSay = "changes"

// sayChanges says what changes for the whole cluster.
func (m *migration) sayChanges(ctx context.Context, v *view) error {
	isDue := func(step string) bool {
		return slices.ContainsFunc(v.nodes, func(n *node) bool { return slices.Contains(n.due, step) })
	}
	sets, theirs, err := m.daemonSets(ctx)
	if err != nil {
		return err
	}
	hand := isDue(stepHand)
	if will := gatedWith(sets)(theirs); (m.To == Nftproxy && hand || isDue(stepStart)) && changed(theirs, will) {
		m.say(nameOf(theirs), changesSay, "it is for nodes without the label "+stopLabel+"="+stopValue+" only, by its "+
			"affinity; "+restarts(will))
	}
	for i := 0; i < len(sets) && m.To == KubeProxy && hand; i++ {
		if will := tried(&sets[i]); changed(&sets[i], will) {
			m.say(nameOf(will), changesSay, "it is for nodes with the label "+trialLabel+" only, by its node selector; "+
				restarts(will))
		}
	}
	limited := slices.ContainsFunc(sets, func(s appsv1.DaemonSet) bool {
		return onTrial(&s) && s.Annotations[triedAnnotation] == ""
	})
	switch open := opened(theirs); {
	case m.chosen():
	case m.To == KubeProxy && changed(theirs, open):
		m.say(nameOf(theirs), changesSay, "at the end it is as before the migration; "+restarts(open))
	case m.To == Nftproxy && !limited && len(v.spared) == 0 && narrower(sets, open) == nil &&
		changed(theirs, closed(theirs)):
		m.say(nameOf(theirs), changesSay, "at the end it is for no node, by the node selector "+nowhereKey+"="+nowhereValue)
	}
	return nil
}

func nameOf(s *appsv1.DaemonSet) string { return "DaemonSet " + s.Namespace + "/" + s.Name }

// changed says whether the nodes that a DaemonSet is for are chosen in another way.
func changed(was, will *appsv1.DaemonSet) bool {
	a, b := &was.Spec.Template.Spec, &will.Spec.Template.Spec
	return !equality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector) ||
		!equality.Semantic.DeepEqual(a.Affinity, b.Affinity)
}

// restarts says what a change of its template does to the pods of a DaemonSet.
func restarts(s *appsv1.DaemonSet) string {
	if s.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return "no pod is restarted"
	}
	return "its controller restarts the pods of all its nodes, a few at a time"
}

// sayWhoUndoes names programs that apply the DaemonSets, and may apply them again meanwhile.
func (m *migration) sayWhoUndoes(ctx context.Context) error {
	sets, theirs, err := m.daemonSets(ctx)
	if err != nil {
		return err
	}
	for _, s := range append(slices.Clone(sets), *theirs) {
		if by := appliedBy(&s); by != "" {
			m.say(nameOf(&s), "may be undone", by+" applies it, and may undo the changes: pause it until the migration has "+
				"ended, and put the changes that stay into what it applies")
		}
	}
	return nil
}

// appliedBy says which program has left its mark on a DaemonSet; "" if none that is known.
func appliedBy(s *appsv1.DaemonSet) string {
	for _, p := range []struct{ key, program string }{
		{"argocd.argoproj.io/tracking-id", "Argo CD (application %s)"},
		{"kustomize.toolkit.fluxcd.io/name", "Flux (flux suspend kustomization %s)"},
		{"helm.toolkit.fluxcd.io/name", "Flux (flux suspend helmrelease %s)"},
	} {
		if value := cmp.Or(s.Annotations[p.key], s.Labels[p.key]); value != "" {
			if p.key == "argocd.argoproj.io/tracking-id" {
				value, _, _ = strings.Cut(value, ":")
			}
			return fmt.Sprintf(p.program, value)
		}
	}
	return ""
}

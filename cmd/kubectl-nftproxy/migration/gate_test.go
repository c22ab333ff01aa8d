package migration

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// TestGated: kube-proxy's DaemonSet is for the nodes without the label that it was for before, whatever affinity and
// node selector it has, and is the same when it is opened again.
func TestGated(t *testing.T) {
	zone := func(values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: values}}}
	}
	named := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-c"}}}}
	byHand := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: trialLabel, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"true"}}}}
	preferred := []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: zone("a")}}
	for name, c := range map[string]struct {
		affinity *corev1.NodeAffinity
		selector map[string]string
		// opened is what is there when all is over, if that is not what was there before.
		opened bool
	}{
		"none":        {},
		"one term":    {affinity: terms(zone("a"))},
		"two terms":   {affinity: terms(zone("a"), zone("b", "c"))},
		"a field":     {affinity: terms(named)},
		"same terms":  {affinity: terms(zone("a"), zone("a"))},
		"empty term":  {affinity: terms(corev1.NodeSelectorTerm{}, zone("b"))},
		"empty terms": {affinity: terms(corev1.NodeSelectorTerm{})},
		"preferred":   {affinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: preferred}},
		"selector":    {selector: map[string]string{"zone": "a"}},
		"by hand":     {affinity: terms(byHand), opened: true},
		"nowhere":     {selector: map[string]string{nowhereKey: nowhereValue, "zone": "a"}, opened: true},
	} {
		s := &appsv1.DaemonSet{}
		s.Spec.Template.Spec.NodeSelector = c.selector
		if c.affinity != nil {
			s.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: c.affinity}
		}
		before := s.DeepCopy()
		g := gated(s)
		for _, z := range []string{"a", "b", "c", "d"} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "zone-" + z, Labels: map[string]string{"zone": z}}}
			if !c.opened && cluster.IsFor(g, n) != cluster.IsFor(s, n) {
				t.Errorf("%s: gated, it is for node %s: %t", name, z, cluster.IsFor(g, n))
			}
			n.Labels[stopLabel] = stopValue
			if cluster.IsFor(g, n) || cluster.IsFor(closed(g), n) {
				t.Errorf("%s: it is for node %s with the label", name, z)
			}
		}
		onTrial := gatedOnTrial(s)
		for _, z := range []string{"a", "b", "c", "d"} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "zone-" + z, Labels: map[string]string{"zone": z}}}
			for _, n.Labels[stopLabel] = range []string{"", stopValue} {
				for _, n.Labels[trialLabel] = range []string{"", "true"} {
					want := cluster.IsFor(opened(s), n) && (n.Labels[stopLabel] == "" || n.Labels[trialLabel] == "")
					if cluster.IsFor(onTrial, n) != want {
						t.Errorf("%s: gated on trial, want %t for %v", name, want, n.Labels)
					}
				}
			}
		}
		for _, twice := range []*appsv1.DaemonSet{gatedOnTrial(onTrial), gatedOnTrial(g)} {
			if diff := cmp.Diff(onTrial, twice, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: gated on trial twice (-once +twice): %s", name, diff)
			}
		}
		if diff := cmp.Diff(opened(s), opened(closed(onTrial)), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: opened again after the trial: %s", name, diff)
		}
		if diff := cmp.Diff(g, gated(g), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: gated twice (-once +twice): %s", name, diff)
		}
		if diff := cmp.Diff(opened(s), opened(closed(g)), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: opened again: %s", name, diff)
		}
		if diff := cmp.Diff(before, opened(g), cmpopts.EquateEmpty()); (diff != "") != c.opened {
			t.Errorf("%s: opened (-before +after): %s", name, diff)
		}
		if diff := cmp.Diff(before, s); diff != "" {
			t.Errorf("%s: the DaemonSet itself was changed: %s", name, diff)
		}
	}
}

func terms(list ...corev1.NodeSelectorTerm) *corev1.NodeAffinity {
	required := &corev1.NodeSelector{NodeSelectorTerms: list}
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}
}

// TestNarrower: new nodes get nftproxy only if its DaemonSet is for each node that kube-proxy's is for.
func TestNarrower(t *testing.T) {
	type toleration = corev1.Toleration
	all := []toleration{{Operator: corev1.TolerationOpExists}}
	one := []toleration{{Key: "k", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoSchedule}}
	linux := map[string]string{corev1.LabelOSStable: "linux"}
	inZone := []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}
	zone := &corev1.Affinity{NodeAffinity: terms(corev1.NodeSelectorTerm{MatchExpressions: inZone})}
	pool := func(name string) corev1.PodSpec { return corev1.PodSpec{NodeSelector: map[string]string{"pool": name}} }
	tolerating := func(list ...toleration) corev1.PodSpec { return corev1.PodSpec{Tolerations: list} }
	anyEffect, brief := one[0], all[0]
	anyEffect.Effect, brief.TolerationSeconds = "", new(int64(1))
	for name, c := range map[string]struct {
		ours, theirs corev1.PodSpec
		narrow       bool
	}{
		"the same":             {ours: tolerating(all...), theirs: tolerating(all...)},
		"wider":                {ours: tolerating(all...), theirs: corev1.PodSpec{Tolerations: one, Affinity: zone}},
		"wider by a label":     {ours: corev1.PodSpec{}, theirs: pool("a")},
		"Linux":                {ours: corev1.PodSpec{NodeSelector: linux}},
		"a label":              {ours: pool("a"), narrow: true},
		"another value":        {ours: pool("a"), theirs: pool("b"), narrow: true},
		"an affinity":          {ours: corev1.PodSpec{Affinity: zone}, narrow: true},
		"the same affinity":    {ours: corev1.PodSpec{Affinity: zone}, theirs: corev1.PodSpec{Affinity: zone}},
		"no tolerations":       {theirs: tolerating(all...), narrow: true},
		"one toleration":       {ours: tolerating(one...), theirs: tolerating(all...), narrow: true},
		"the same toleration":  {ours: tolerating(one...), theirs: tolerating(one...)},
		"one effect":           {ours: tolerating(one...), theirs: tolerating(anyEffect), narrow: true},
		"any effect":           {ours: tolerating(anyEffect), theirs: tolerating(one...)},
		"tolerated for a time": {ours: tolerating(brief), theirs: tolerating(all...), narrow: true},
	} {
		sets := make([]appsv1.DaemonSet, 1)
		sets[0].Spec.Template.Spec = c.ours
		theirs := &appsv1.DaemonSet{}
		theirs.Spec.Template.Spec = c.theirs
		if err := narrower(sets, theirs); (err != nil) != c.narrow {
			t.Errorf("%s: %v, want narrower: %t", name, err, c.narrow)
		}
	}
}

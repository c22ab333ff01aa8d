package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// ObstacleError says why the migration cannot begin. Nothing has been changed.
type ObstacleError struct{ Obstacles []string }

func (e *ObstacleError) Error() string { return strings.Join(e.Obstacles, "; ") }

// obstacles says all that stands in the way, before anything is changed.
func (m *migration) obstacles(ctx context.Context) error {
	if key := m.ownLabel(); key != "" {
		return &ObstacleError{[]string{"the migration sets the label " + key + ": choose the nodes by another one"}}
	}
	missing, err := m.missingRights(ctx)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return &ObstacleError{[]string{"you have no right to " + strings.Join(missing, ", ") +
			" (deploy/plugin/rbac.yaml has the role nftproxy-migrate)"}}
	}
	sets, err := m.of.DaemonSets(ctx)
	if errors.Is(err, cluster.ErrNotInstalled) {
		hint := "install nftproxy for labelled nodes first, by the overlay deploy/overlays/trial or the chart's value " +
			"nodeSelector (docs/migrate.md)"
		if m.To == KubeProxy {
			off, err := m.kubeProxyIsOff(ctx)
			if off || err != nil {
				return err
			}
			hint = "there is nothing to go back from; deploy/cleanup/nftproxy removes what nftproxy left"
		}
		return &ObstacleError{[]string{err.Error() + ": " + hint}}
	}
	if err != nil {
		return err
	}
	var found []string
	for i := range sets {
		found = append(found, unfit(&sets[i])...)
	}
	theirs, err := m.unfitKubeProxy(ctx, sets)
	if err != nil {
		return err
	}
	if found = append(found, theirs...); len(found) > 0 {
		return &ObstacleError{found}
	}
	return nil
}

// ownLabel returns a label by which --nodes chooses, and which the migration changes; "" if there is none.
func (m *migration) ownLabel() string {
	if m.Nodes == nil {
		return ""
	}
	requirements, _ := m.Nodes.Requirements()
	for _, r := range requirements {
		if r.Key() == trialLabel || r.Key() == stopLabel {
			return r.Key()
		}
	}
	return ""
}

// unfit says why a DaemonSet of nftproxy cannot take kube-proxy's place.
func unfit(s *appsv1.DaemonSet) (list []string) {
	n := cluster.Node{Pod: &corev1.Pod{Spec: s.Spec.Template.Spec}}
	for flag, why := range map[string]string{
		"nftproxy-service-proxy-name": "serves labelled Services only: take the flag away first",
		"nftproxy-manifests":          "does not serve the Services of the API server",
	} {
		if n.Flag(flag) != "" {
			list = append(list, fmt.Sprintf("the DaemonSet %s has --%s and %s", s.Name, flag, why))
		}
	}
	if !slices.ContainsFunc(s.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == cluster.Container
	}) {
		list = append(list, fmt.Sprintf("the DaemonSet %s has no container %s", s.Name, cluster.Container))
	}
	return append(list, kept(s)...)
}

// kept says whether a controller keeps a DaemonSet as it is, and so would undo what is changed.
func kept(s *appsv1.DaemonSet) []string {
	by := ""
	if s.Labels["addonmanager.kubernetes.io/mode"] == "Reconcile" {
		by = "the addon manager"
	}
	if owner := metav1.GetControllerOf(s); owner != nil {
		by = owner.Kind + " " + owner.Name
	}
	if by == "" {
		return nil
	}
	return []string{fmt.Sprintf("%s keeps the DaemonSet %s as it is, and would undo the changes", by, s.Name)}
}

// unfitKubeProxy says why kube-proxy cannot be switched off, or on, node by node.
func (m *migration) unfitKubeProxy(ctx context.Context, sets []appsv1.DaemonSet) ([]string, error) {
	s, err := m.of.Client.AppsV1().DaemonSets(kubeSystem).Get(ctx, KubeProxy, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read the DaemonSet %s/%s: %w", kubeSystem, KubeProxy, err)
	}
	there := err == nil
	pods, err := m.of.Client.CoreV1().Pods(kubeSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", kubeSystem, err)
	}
	others := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return ended(&p) || there && metav1.IsControlledBy(&p, s) ||
			!slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == KubeProxy })
	})
	if !there {
		return []string{m.withoutKubeProxy(others)}, nil
	}
	found, err := m.otherKubeProxies(ctx, sets, others)
	return append(kept(s), found...), err
}

// withoutKubeProxy says what may be done where kube-proxy has no DaemonSet. pods are kube-proxy's all the same.
func (m *migration) withoutKubeProxy(pods []corev1.Pod) string {
	text := fmt.Sprintf("there is no DaemonSet %s/%s: ", kubeSystem, KubeProxy)
	if i := slices.IndexFunc(pods, isStatic); i >= 0 {
		text += fmt.Sprintf("it is a static pod of the nodes (%s), as in RKE2", pods[i].Name)
	} else {
		text += "it may be part of another program, as in k3s and k0s, a service of the host, have another name, or have " +
			"been deleted"
	}
	if m.To == KubeProxy {
		return text + "; make it first, on a cluster of kubeadm by kubeadm init phase addon kube-proxy, elsewhere by what " +
			"made it before"
	}
	text += "; switch it off as docs/install.md says (On another cluster)"
	if len(pods) == 0 {
		text += ". If it has been deleted, deploy/cleanup/kube-proxy removes the rules that it left"
	}
	return text
}

func isStatic(p corev1.Pod) bool {
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	return static
}

// ended says that a pod does nothing any more.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// otherKubeProxies names pods of kube-proxy that its DaemonSet did not make, on nodes that nftproxy is for: they would
// run on.
func (m *migration) otherKubeProxies(ctx context.Context, sets []appsv1.DaemonSet,
	pods []corev1.Pod) (list []string, err error) {
	if len(pods) == 0 {
		return nil, nil
	}
	nodes, err := m.of.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: m.selector()})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	for _, p := range pods {
		i := slices.IndexFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == p.Spec.NodeName })
		if i < 0 || !slices.ContainsFunc(sets, func(s appsv1.DaemonSet) bool {
			return cluster.IsFor(everywhere(&s), &nodes.Items[i])
		}) {
			continue
		}
		by := "nobody"
		if owner := metav1.GetControllerOf(&p); owner != nil {
			by = owner.Kind + " " + owner.Name
		}
		list = append(list, fmt.Sprintf("the pod %s/%s on %s is a kube-proxy of %s, not of the DaemonSet %s: it would run on",
			kubeSystem, p.Name, p.Spec.NodeName, by, KubeProxy))
	}
	const most = 5
	if more := len(list) - most; more > 0 {
		list = append(list[:most], fmt.Sprintf("and %d more such pods", more))
	}
	return list, nil
}

// rights lists what the migration does with the API server.
func (m *migration) rights() (list []authorizationv1.ResourceAttributes) {
	named := func(name, namespace, group, resource string, verbs ...string) {
		resource, sub, _ := strings.Cut(resource, "/")
		for _, verb := range verbs {
			list = append(list, authorizationv1.ResourceAttributes{Namespace: namespace, Group: group, Resource: resource,
				Subresource: sub, Verb: verb, Name: name})
		}
	}
	add := func(namespace, group, resource string, verbs ...string) {
		named("", namespace, group, resource, verbs...)
	}
	add("", "", "nodes", "get", "list", "patch")
	add(m.of.Namespace, "apps", "daemonsets", "get", "list", "patch")
	add(m.of.Namespace, "", "pods", "get", "list", "create", "delete")
	add(m.of.Namespace, "", "pods/log", "get")
	add(m.of.Namespace, "", "pods/exec", "create")
	add(m.of.Namespace, "", "configmaps", "get")
	add(m.of.Namespace, "coordination.k8s.io", "leases", "get", "create", "update", "delete")
	if m.of.Namespace != kubeSystem {
		named(KubeProxy, kubeSystem, "apps", "daemonsets", "get", "patch")
		add(kubeSystem, "", "pods", "list")
	}
	return list
}

// missingRights lists the rights that the user does not have.
func (m *migration) missingRights(ctx context.Context) (missing []string, err error) {
	reviews := m.of.Client.AuthorizationV1().SelfSubjectAccessReviews()
	for _, r := range m.rights() {
		answer, err := reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask for your rights: %w", err)
		}
		if !answer.Status.Allowed {
			text := r.Verb + " " + r.Resource
			if r.Subresource != "" {
				text += "/" + r.Subresource
			}
			if r.Name != "" {
				text += " " + r.Name
			}
			if r.Namespace != "" {
				text += " in " + r.Namespace
			}
			missing = append(missing, text)
		}
	}
	return missing, nil
}

// excludedCIDRs returns the ranges of other programs' virtual servers in IPVS, as nftproxy on the node has them,
// from its flag or its configuration file.
func (m *migration) excludedCIDRs(ctx context.Context, n *node) (string, error) {
	flags := n.Node
	if n.Pod == nil {
		flags.Pod = &corev1.Pod{Spec: n.set.Spec.Template.Spec}
	}
	if value := flags.Flag("ipvs-exclude-cidrs"); value != "" {
		return value, nil
	}
	for _, v := range n.set.Spec.Template.Spec.Volumes {
		if v.Name != "config" || v.ConfigMap == nil {
			continue
		}
		object, err := m.of.Client.CoreV1().ConfigMaps(m.of.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("read nftproxy's configuration: %w", err)
		}
		var config struct {
			IPVS struct {
				ExcludeCIDRs []string `json:"excludeCIDRs"`
			} `json:"ipvs"`
		}
		if err := yaml.Unmarshal([]byte(object.Data["config.conf"]), &config); err != nil {
			return "", fmt.Errorf("read nftproxy's configuration: %w", err)
		}
		return strings.Join(config.IPVS.ExcludeCIDRs, ","), nil
	}
	return "", nil
}

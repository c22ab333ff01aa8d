// Package cluster asks the nftproxy of every node: it finds the pods of the DaemonSet and runs nftproxy's commands in
// them, as kubectl exec does. So a node needs no port and no right for it.
//
// The package does not read the answers.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Selector finds the DaemonSet and its pods, and Container the proxy in a pod. Both are those of deploy and of the
// chart.
const (
	Selector  = "app.kubernetes.io/name=nftproxy"
	Container = "nftproxy"
)

// The namespace where nftproxy is unless somebody says otherwise. Only one namespace is looked in: in others, anybody
// who may make pods could make some that answer in nftproxy's place.
const DefaultNamespace = "kube-system"

// Cluster is one API server, and the namespace of nftproxy's DaemonSet.
type Cluster struct {
	Client    kubernetes.Interface
	Namespace string

	config *rest.Config
}

// New makes a Cluster. Its requests are not slowed down by the client: Each has the bound on them.
func New(config *rest.Config, namespace string) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	// Warnings are for those who write manifests.
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return &Cluster{Client: client, Namespace: namespace, config: config}, nil
}

// Node is a node that is meant to have an nftproxy.
type Node struct {
	Name string
	// Pod is that of its nftproxy; nil if there is none.
	Pod *corev1.Pod
	// Object is the Node itself; nil if only the pod is there.
	Object *corev1.Node
}

// Flag returns the value of a flag of the node's nftproxy, by the arguments of its container; empty without the flag.
func (n *Node) Flag(name string) string {
	if n.Pod == nil {
		return ""
	}
	for _, c := range n.Pod.Spec.Containers {
		for i, arg := range c.Args {
			if c.Name != Container {
				break
			}
			if value, is := strings.CutPrefix(arg, "--"+name+"="); is {
				return value
			}
			if arg == "--"+name && i+1 < len(c.Args) {
				return c.Args[i+1]
			}
		}
	}
	return ""
}

// Tables returns the flag by which commands read the tables of the node's nftproxy; none if they have their usual name.
func (n *Node) Tables() []string {
	if name := n.Flag("nftproxy-table"); name != "" {
		return []string{"--nftproxy-table=" + name}
	}
	return nil
}

// ErrNotInstalled says that no DaemonSet is nftproxy's.
var ErrNotInstalled = errors.New("no DaemonSet with the label " + Selector)

// DaemonSet returns nftproxy's DaemonSets: one, or one for each kind of node.
func (c *Cluster) DaemonSets(ctx context.Context) ([]appsv1.DaemonSet, error) {
	sets, err := c.Client.AppsV1().DaemonSets(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: Selector})
	switch {
	case err != nil:
		return nil, fmt.Errorf("list DaemonSets in %s: %w", c.Namespace, err)
	case len(sets.Items) == 0:
		return nil, fmt.Errorf("namespace %s: %w (--proxy-namespace chooses another namespace)", c.Namespace, ErrNotInstalled)
	}
	return sets.Items, nil
}

// Nodes returns the nodes that the DaemonSets are for, and those with a pod of nftproxy, sorted by name.
func (c *Cluster) Nodes(ctx context.Context, sets []appsv1.DaemonSet) ([]Node, error) {
	objects, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: Selector})
	if err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", c.Namespace, err)
	}
	byName := map[string]*Node{}
	for i := range objects.Items {
		n := &objects.Items[i]
		if slices.ContainsFunc(sets, func(s appsv1.DaemonSet) bool { return IsFor(&s, n) }) {
			byName[n.Name] = &Node{Name: n.Name, Object: n}
		}
	}
	byNode := map[string][]corev1.Pod{}
	for _, p := range pods.Items {
		byNode[p.Spec.NodeName] = append(byNode[p.Spec.NodeName], p)
	}
	for name, on := range byNode {
		pod := PodOf(on, sets)
		if name == "" || pod == nil {
			continue
		}
		n := byName[name]
		if n == nil {
			n = &Node{Name: name}
			if i := slices.IndexFunc(objects.Items, func(o corev1.Node) bool { return o.Name == name }); i >= 0 {
				n.Object = &objects.Items[i]
			}
			byName[name] = n
		}
		n.Pod = pod
	}
	nodes := make([]Node, 0, len(byName))
	for _, n := range byName {
		nodes = append(nodes, *n)
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("namespace %s: nftproxy's DaemonSet has no node", c.Namespace)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// PodOf returns the pod to ask of those on one node; nil if the DaemonSets made none of them.
func PodOf(pods []corev1.Pod, sets []appsv1.DaemonSet) (best *corev1.Pod) {
	for i := range pods {
		if p := &pods[i]; isOf(p, sets) && (best == nil || better(p, best)) {
			best = p
		}
	}
	return best
}

// IsFor says whether the DaemonSet puts a pod on the node, as its controller decides. The taints that the node
// lifecycle sets come and go, and the controller tolerates them.
func IsFor(s *appsv1.DaemonSet, n *corev1.Node) bool {
	spec := s.Spec.Template.Spec
	matches, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: spec}).Match(n)
	if err != nil || !matches {
		return false
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, spec.Tolerations,
		func(t *corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
		}, false)
	return !untolerated
}

// isOf says whether one of the DaemonSets made the pod.
func isOf(p *corev1.Pod, sets []appsv1.DaemonSet) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && slices.ContainsFunc(sets, func(s appsv1.DaemonSet) bool { return s.UID == owner.UID })
}

// better says which of two pods on a node to ask: one that is not being deleted, then one that runs, then the newer.
func better(a, b *corev1.Pod) bool {
	rank := func(p *corev1.Pod) int {
		switch {
		case p.DeletionTimestamp != nil:
			return 0
		case p.Status.Phase != corev1.PodRunning:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time)) > 0
}

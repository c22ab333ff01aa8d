package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/cmd/kubectl-nftproxy/flowmap"
)

// residents knows which nodes and pods have addresses, and of which workloads the pods are. What may not be read stays
// without a name.
type residents struct {
	cluster *cluster.Cluster
	// namespace is where pods are listed if they may not be in all.
	namespace string
	known     map[netip.Addr]resident
	workloads map[owner]flowmap.Party
	// lookups bounds how often an address is looked up by itself.
	lookups *rate.Limiter
	notes   []string
}

// resident is who has an address: a node, or a pod and its workload.
type resident struct{ itself, workload flowmap.Party }

// owner is what made a pod, or what made that.
type owner struct{ kind, namespace, name string }

const (
	// podPage is how many pods are read at a time.
	podPage = 500
	// maxOwners bounds how many ReplicaSets and Jobs are read, each by itself, and ownersAtOnce how many at a time.
	maxOwners, ownersAtOnce = 500, 8
)

func newResidents(of *cluster.Cluster, nodes []cluster.Node, namespace string) *residents {
	r := &residents{cluster: of, namespace: namespace, known: map[netip.Addr]resident{},
		workloads: map[owner]flowmap.Party{}, lookups: rate.NewLimiter(1, maxLookups)}
	for i := range nodes {
		if nodes[i].Object == nil {
			continue
		}
		for _, a := range nodes[i].Object.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				node := flowmap.Party{Kind: "node", Name: nodes[i].Name}
				r.known[addr.Unmap()] = resident{node, node}
			}
		}
	}
	return r
}

// workload is flowmap.Names.
func (r *residents) workload(a netip.Addr) flowmap.Party { return r.known[a].workload }

// read learns who has the addresses: it lists all pods, since only a pod's first address can be asked for.
func (r *residents) read(ctx context.Context, addresses []netip.Addr) error {
	wanted := map[netip.Addr]bool{}
	for _, a := range addresses {
		if _, known := r.known[a]; !known {
			wanted[a] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	found, err := r.list(ctx, metav1.NamespaceAll, wanted)
	if apierrors.IsForbidden(err) {
		if found, err = r.list(ctx, r.namespace, wanted); err == nil {
			r.notes = append(r.notes, "you may not list the pods of all namespaces: those of others stay addresses")
		}
	}
	if apierrors.IsForbidden(err) {
		r.notes = append(r.notes, "you may not list pods: addresses stay without names")
		return nil
	}
	if err != nil {
		return err
	}
	return r.learn(ctx, found)
}

// housed is a pod's place: what is kept of it.
type housed struct {
	addresses []netip.Addr
	pod       flowmap.Party
	by        owner // the zero one for nothing
}

// list lists the pods of a namespace that have one of the addresses; nil stands for all addresses.
func (r *residents) list(ctx context.Context, namespace string, wanted map[netip.Addr]bool) (found []housed,
	err error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.cluster.Client.CoreV1().Pods(namespace).List(ctx, o)
	})
	pages.PageSize = podPage
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		pod, is := o.(*corev1.Pod)
		if !is {
			return fmt.Errorf("a list of pods has a %T", o)
		}
		h, lives := house(pod)
		if lives && slices.ContainsFunc(h.addresses, func(a netip.Addr) bool { return wanted == nil || wanted[a] }) {
			found = append(found, h)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return found, nil
}

// house returns where a pod lives; false if it has no address of its own.
func house(p *corev1.Pod) (h housed, lives bool) {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return h, false
	}
	for _, text := range append(podIPs(p), p.Status.PodIP) {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(h.addresses, a.Unmap()) {
			h.addresses = append(h.addresses, a.Unmap())
		}
	}
	h.pod = flowmap.Party{Kind: "pod", Namespace: p.Namespace, Name: p.Name}
	if o := metav1.GetControllerOf(p); o != nil && o.Kind != "Node" { // A node makes the mirrors of static pods.
		h.by = owner{o.Kind, p.Namespace, o.Name}
	}
	return h, len(h.addresses) > 0
}

// learn finds the workloads of pods, and knows the addresses afterwards.
func (r *residents) learn(ctx context.Context, found []housed) error {
	var asked []owner
	for _, h := range found {
		if _, known := r.workloads[h.by]; known || h.by == (owner{}) {
			continue
		}
		r.workloads[h.by] = h.by.party()
		if h.by.kind == "ReplicaSet" || h.by.kind == "Job" {
			asked = append(asked, h.by)
		}
	}
	if len(asked) > maxOwners {
		r.notes = append(r.notes, fmt.Sprintf("%d ReplicaSets and Jobs are not looked up: they stand for their workloads",
			len(asked)-maxOwners))
		asked = asked[:maxOwners]
	}
	if err := r.ask(ctx, asked); err != nil {
		return err
	}
	for _, h := range found {
		in := resident{h.pod, cmp.Or(r.workloads[h.by], h.pod)}
		for _, a := range h.addresses {
			r.known[a] = in
		}
	}
	return nil
}

func (o owner) party() flowmap.Party {
	return flowmap.Party{Kind: strings.ToLower(o.kind), Namespace: o.namespace, Name: o.name}
}

// ask asks for what made ReplicaSets and Jobs. What is gone or may not be read stays.
func (r *residents) ask(ctx context.Context, list []owner) error {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(ownersAtOnce)
	forbidden := false
	for _, o := range list {
		group.Go(func() error {
			above, err := r.above(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case apierrors.IsForbidden(err):
				forbidden = true
			case apierrors.IsNotFound(err):
			case err != nil:
				return fmt.Errorf("get %s: %w", o.party(), err)
			case above != (owner{}):
				r.workloads[o] = above.party()
			}
			return nil
		})
	}
	err := group.Wait()
	if forbidden {
		r.notes = append(r.notes, "you may not get ReplicaSets or Jobs: they stand for their workloads")
	}
	return err
}

// above returns what made a ReplicaSet or a Job; the zero owner for nothing.
func (r *residents) above(ctx context.Context, o owner) (above owner, err error) {
	var made metav1.Object
	if o.kind == "Job" {
		made, err = r.cluster.Client.BatchV1().Jobs(o.namespace).Get(ctx, o.name, metav1.GetOptions{})
	} else {
		made, err = r.cluster.Client.AppsV1().ReplicaSets(o.namespace).Get(ctx, o.name, metav1.GetOptions{})
	}
	if err != nil {
		return owner{}, err
	}
	if c := metav1.GetControllerOf(made); c != nil {
		above = owner{c.Kind, o.namespace, c.Name}
	}
	return above, nil
}

// lookUp learns who has an address that came later, unless too many have come. An error leaves it without a name.
func (r *residents) lookUp(ctx context.Context, a netip.Addr) {
	if _, known := r.known[a]; known || !a.IsValid() || !r.lookups.Allow() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	r.known[a] = resident{}
	options := metav1.ListOptions{ResourceVersion: "0",
		FieldSelector: fields.OneTermEqualSelector("status.podIP", a.String()).String()}
	pods, err := r.cluster.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
	if apierrors.IsForbidden(err) {
		pods, err = r.cluster.Client.CoreV1().Pods(r.namespace).List(ctx, options)
	}
	if err != nil {
		return
	}
	for i := range pods.Items {
		if h, lives := house(&pods.Items[i]); lives {
			_ = r.learn(ctx, []housed{h})
		}
	}
}

// of returns the addresses of a node, or of the pods of a workload in a namespace, as KIND/NAME.
func (r *residents) of(ctx context.Context, text, namespace string) (map[netip.Addr]bool, error) {
	kind, name, is := strings.Cut(text, "/")
	if !is || kind == "" || name == "" {
		return nil, errors.New("want an address, a CIDR, or KIND/NAME such as pod/NAME, deploy/NAME or node/NAME")
	}
	want := flowmap.Party{Kind: kindOf(kind), Namespace: namespace, Name: name}
	if want.Kind == "node" {
		want.Namespace = ""
	} else {
		found, err := r.list(ctx, namespace, nil)
		if err != nil {
			return nil, err
		}
		if err := r.learn(ctx, found); err != nil {
			return nil, err
		}
	}
	list := map[netip.Addr]bool{}
	for a, in := range r.known {
		if in.itself == want || in.workload == want {
			list[a] = true
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no pod or node with an address of its own is of %s", want)
	}
	return list, nil
}

// kindOf reads what kubectl calls a kind.
func kindOf(word string) string {
	switch word = strings.ToLower(word); word {
	case "po":
		return "pod"
	case "no":
		return "node"
	case "deploy":
		return "deployment"
	case "sts":
		return "statefulset"
	case "ds":
		return "daemonset"
	case "rs":
		return "replicaset"
	case "cj":
		return "cronjob"
	}
	return strings.TrimSuffix(word, "s")
}

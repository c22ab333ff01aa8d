package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/lib/controlplane"
)

// note is something that the control plane has written.
type note struct {
	at   time.Time
	text string
	// ready is how many endpoints of the Service are ready from now on; -1 if the note does not say so.
	ready int
	// fewer says that an endpoint has gone.
	fewer bool
	// renewal says that it is about the renewal of a node's lease.
	renewal bool
}

// record notes what is written about nodes, and about the pods and endpoints of one Service.
type record struct {
	namespace, service string

	mu    sync.Mutex
	notes []note
	// ready has the state of each Node's or pod's condition Ready, and fields the managed fields with it.
	ready  map[string]corev1.ConditionStatus
	fields map[string][]metav1.ManagedFieldsEntry
	// holders has the holder of each lease.
	holders map[string]string
	// endpoints has the ready endpoints in each slice of the Service.
	endpoints map[string][]string
}

func newRecord(namespace, service string) *record {
	return &record{
		namespace: namespace, service: service,
		ready: map[string]corev1.ConditionStatus{}, fields: map[string][]metav1.ManagedFieldsEntry{},
		holders: map[string]string{}, endpoints: map[string][]string{},
	}
}

// follow begins to take notes. It learns of the present state first, without a note. The returned function ends it.
func (r *record) follow(ctx context.Context, c *cluster.Cluster) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	resources := []string{"minions", "pods/" + r.namespace, "endpointslices/" + r.namespace, "leases/kube-node-lease",
		"leases/kube-system"}
	started, ended := make(chan error, len(resources)), make(chan error, len(resources))
	for _, resource := range resources {
		go func() {
			err := c.Plane.Follow(ctx, resource, func() { started <- nil }, r.take)
			started <- err
			ended <- err
		}()
	}
	stop = func() error {
		cancel()
		var errs []error
		for range resources {
			errs = append(errs, <-ended)
		}
		return errors.Join(errs...)
	}
	for range resources {
		err = errors.Join(err, <-started)
	}
	if err == nil {
		err = r.learn(ctx, c)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = nil
	return stop, nil
}

// learn takes the present state.
func (r *record) learn(ctx context.Context, c *cluster.Cluster) error {
	nodes, nodesErr := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	pods, podsErr := c.Client.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{})
	slices, slicesErr := c.Client.DiscoveryV1().EndpointSlices(r.namespace).List(ctx, metav1.ListOptions{})
	leases, leasesErr := c.Client.CoordinationV1().Leases("kube-system").List(ctx, metav1.ListOptions{})
	if err := errors.Join(nodesErr, podsErr, slicesErr, leasesErr); err != nil {
		return fmt.Errorf("learn of nodes, pods and endpoints: %w", err)
	}
	for i := range nodes.Items {
		r.take(controlplane.Write{Object: &nodes.Items[i]})
	}
	for i := range pods.Items {
		r.take(controlplane.Write{Object: &pods.Items[i]})
	}
	for i := range slices.Items {
		r.take(controlplane.Write{Object: &slices.Items[i]})
	}
	for i := range leases.Items {
		r.take(controlplane.Write{Object: &leases.Items[i]})
	}
	return nil
}

// taken are the notes until now, in the order of time.
func (r *record) taken() []note {
	r.mu.Lock()
	defer r.mu.Unlock()
	notes := slices.Clone(r.notes)
	slices.SortStableFunc(notes, func(a, b note) int { return a.at.Compare(b.at) })
	return notes
}

// take makes notes of a write.
func (r *record) take(w controlplane.Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch o := w.Object.(type) {
	case *corev1.Node:
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeReady {
				r.condition(w.At, "Node "+o.Name, o, c.Status, c.Reason)
			}
		}
	case *corev1.Pod:
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.PodReady {
				r.condition(w.At, "Pod "+o.Name+" on "+o.Spec.NodeName, o, c.Status, c.Reason)
			}
		}
	case *discoveryv1.EndpointSlice:
		r.slice(w.At, o)
	case *coordinationv1.Lease:
		r.lease(w.At, o)
	}
}

func (r *record) add(at time.Time, ready int, format string, args ...any) {
	r.notes = append(r.notes, note{at: at, text: fmt.Sprintf(format, args...), ready: ready})
}

// condition notes a change of a condition Ready, and who made it.
func (r *record) condition(at time.Time, name string, object metav1.Object, status corev1.ConditionStatus,
	reason string) {
	was := r.ready[name]
	by := writer(r.fields[name], object.GetManagedFields())
	r.ready[name], r.fields[name] = status, object.GetManagedFields()
	if was == status {
		return
	}
	if reason != "" {
		reason = " (" + reason + ")"
	}
	r.add(at, -1, "%s: Ready is %s%s, written by %s", name, status, reason, by)
}

// writer names who made the newer of two lists of managed fields of the older one. An entry also changes when another
// manager takes fields over from it; the writer's own has the newest time.
func writer(before, after []metav1.ManagedFieldsEntry) string {
	var names []string
	var newest time.Time
	for _, e := range after {
		same := func(o metav1.ManagedFieldsEntry) bool { return equality.Semantic.DeepEqual(o, e) }
		if e.Time == nil || slices.ContainsFunc(before, same) || e.Time.Time.Before(newest) {
			continue
		}
		if e.Time.After(newest) {
			newest, names = e.Time.Time, nil
		}
		if !slices.Contains(names, e.Manager) {
			names = append(names, e.Manager)
		}
	}
	if len(names) == 0 {
		return "an unknown writer"
	}
	return strings.Join(names, " or ")
}

// slice notes a change of how many endpoints of the Service are ready.
func (r *record) slice(at time.Time, o *discoveryv1.EndpointSlice) {
	if o.Labels[discoveryv1.LabelServiceName] != r.service {
		return
	}
	before := r.readyEndpoints()
	r.endpoints[o.Name] = nil
	for _, e := range o.Endpoints {
		if e.Conditions.Ready == nil || *e.Conditions.Ready {
			r.endpoints[o.Name] = append(r.endpoints[o.Name], e.Addresses...)
		}
	}
	if now := r.readyEndpoints(); now != before {
		r.add(at, now, "Service %s: %d endpoint addresses are ready, %d before", r.service, now, before)
		r.notes[len(r.notes)-1].fewer = now < before
	}
}

func (r *record) readyEndpoints() int {
	n := 0
	for _, addresses := range r.endpoints {
		n += len(addresses)
	}
	return n
}

// lease notes each renewal of a node's lease, and each new holder of a controller's.
func (r *record) lease(at time.Time, l *coordinationv1.Lease) {
	if l.Namespace == "kube-node-lease" {
		r.add(at, -1, "Lease of %s is renewed", l.Name)
		r.notes[len(r.notes)-1].renewal = true
		return
	}
	if l.Spec.HolderIdentity == nil || !strings.HasPrefix(l.Name, "kube-") {
		return
	}
	if was := r.holders[l.Name]; was != *l.Spec.HolderIdentity {
		r.holders[l.Name] = *l.Spec.HolderIdentity
		r.add(at, -1, "%s has a new leader", l.Name)
	}
}

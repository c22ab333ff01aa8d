package watchers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"nftproxy/bench/control"
	"nftproxy/bench/proxies"
	"nftproxy/test/lib/controlplane"
)

// Config says what to measure.
type Config struct {
	// Counts are the numbers of watchers. Without watchers the API server's own work is measured.
	Counts []int
	// Services is how many Services there are, each with Endpoints endpoints in one slice.
	Services, Endpoints int
	// Changes is how many endpoints change, one after the other, ChangesASecond.
	Changes int
	// Rest is how long the watchers are left alone, and Away how long the API server is away; with 0 it stays.
	Rest, Away time.Duration
	// Worker is the command line that calls Work with a kubeconfig and a count as further arguments.
	Worker []string
	// Env are further variables of its environment.
	Env []string
	// Log takes progress.
	Log io.Writer
}

// changesASecond leaves the API server time: what counts is its work for each change, not how many it can do.
const changesASecond = 20

// Result is what was measured with one number of watchers.
type Result struct {
	Watchers int
	// Start is from the start of all watchers at once until each has had its first snapshot.
	Start Cost
	// Change is for all changes, until each watcher has seen them.
	Change Cost
	// Rest is for Config.Rest.
	Rest Cost
	// Return is from the end of the API server, which is away for some seconds, until each watcher has seen what changed.
	Return Cost
	// News is how long after the API server was ready again the watchers had seen what changed.
	News News
	// Memory is the most that the API server has had, in bytes.
	Memory int64
}

// News is when a half, nine tenths and all of the watchers had the news.
type News struct{ Half, Most, All time.Duration }

// Cost is what a step took.
type Cost struct {
	Took time.Duration
	// Server is the CPU time of the API server, Nodes that of all watchers.
	Server, Nodes time.Duration
	// Received and Sent are bytes of all watchers, and Connections those that they have made.
	Received, Sent, Connections int64
}

// site is an API server with objects.
type site struct {
	Config
	plane  *controlplane.Plane
	writer *controlplane.Writer
	// changed counts changes, which makes each a new one.
	changed int
	news    News
}

// Run measures with each number of watchers, on one API server. With an error it returns what it has measured before.
func Run(ctx context.Context, c Config) (results []Result, err error) {
	fmt.Fprintf(c.Log, "starting an API server with %d Services\n", c.Services)
	plane, err := proxies.StartPlane(ctx, io.Discard)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	s := &site{Config: c, plane: plane, writer: plane.Cluster.NewWriter()}
	defer s.writer.Close()
	if err := s.seed(ctx); err != nil {
		return nil, err
	}
	for _, count := range c.Counts {
		fmt.Fprintf(c.Log, "%d watchers\n", count)
		r, err := s.measure(ctx, count)
		if err != nil {
			return results, fmt.Errorf("%d watchers: %w", count, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// seed stores the objects.
func (s *site) seed(ctx context.Context) error {
	most := 0
	for _, n := range s.Counts {
		most = max(most, n)
	}
	for i := range most {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName(i)}}
		made, err := s.plane.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create a Node: %w", err)
		}
		made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: controlplane.Address("192.168.0.1", i).String()}}
		if _, err := s.plane.Client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("give a Node its address: %w", err)
		}
	}
	const atOnce = 1000
	var list []runtime.Object
	for i := range s.Services {
		list = append(list, s.service(i), s.slice(i, 0))
		if len(list) >= atOnce || i == s.Services-1 {
			if err := s.plane.Cluster.Seed(ctx, list...); err != nil {
				return err
			}
			list = nil
		}
	}
	return nil
}

func (s *site) service(i int) *corev1.Service {
	o := controlplane.Service(serviceName(i), controlplane.Address("10.100.0.0", i))
	o.Spec.Selector = map[string]string{"app": o.Name}
	return o
}

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// slice is the EndpointSlice of a Service, with fields as the EndpointSlice controller fills them in. Each version has
// another address for one endpoint.
func (s *site) slice(i, version int) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for j := range s.Endpoints {
		n := i*s.Endpoints + j
		e := controlplane.Endpoint(controlplane.Address("10.128.0.0", n), ptr.To(fmt.Sprintf("node-%d", n%5000)))
		e.Zone = ptr.To(fmt.Sprintf("zone-%d", n%3))
		e.TargetRef = &corev1.ObjectReference{
			Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-6d5c55ff4f-%05d", serviceName(i), j), UID: podUID,
		}
		endpoints = append(endpoints, e)
	}
	if version > 0 {
		endpoints[0].Addresses = []string{controlplane.Address("10.160.0.0", version).String()}
	}
	o := controlplane.Slice(serviceName(i), serviceName(i)+"-abcde", endpoints...)
	o.GenerateName = serviceName(i) + "-"
	o.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05.678901234Z"}
	o.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Service", Name: serviceName(i), UID: podUID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	o.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "discovery.k8s.io/v1",
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(sliceFields),
	}}
	return o
}

const podUID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"

// sliceFields are the managed fields of a slice of the EndpointSlice controller.
const sliceFields = `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},` +
	`"f:generateName":{},"f:labels":{".":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},` +
	`"f:ownerReferences":{".":{},"k:{\"uid\":\"` + podUID + `\"}":{}}},"f:ports":{}}`

// measure measures with a number of watchers.
func (s *site) measure(ctx context.Context, count int) (r Result, err error) {
	r.Watchers = count
	before, err := s.serverCPU()
	if err != nil {
		return r, err
	}
	began := time.Now()
	w, err := s.startWorker(ctx, count)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	after, err := w.await(ctx, func(t totals) bool { return t.Synced == int64(count) })
	if err != nil {
		return r, err
	}
	r.Start = Cost{Took: time.Since(began), Nodes: after.CPU, Received: after.Received, Sent: after.Sent, Connections: after.Connections}
	if r.Start.Server, err = s.serverCPU(); err != nil {
		return r, err
	}
	r.Start.Server -= before
	for _, step := range []struct {
		cost *Cost
		do   func(context.Context, *process, totals) error
	}{{&r.Rest, s.rest}, {&r.Change, s.change}, {&r.Return, s.returns}} {
		if *step.cost, err = s.step(ctx, w, step.do); err != nil {
			return r, err
		}
	}
	r.News = s.news
	r.Memory, err = peakMemory(s.plane.Cluster.APIServerPID())
	return r, err
}

// step measures the cost of what a function does. An API server that is another one afterwards began with no CPU time.
func (s *site) step(ctx context.Context, w *process, do func(context.Context, *process, totals) error) (Cost, error) {
	pid := s.plane.Cluster.APIServerPID()
	server, err := s.serverCPU()
	if err != nil {
		return Cost{}, err
	}
	before, err := w.totals()
	if err != nil {
		return Cost{}, err
	}
	began := time.Now()
	if err := do(ctx, w, before); err != nil {
		return Cost{}, err
	}
	took := time.Since(began)
	after, err := w.totals()
	if err != nil {
		return Cost{}, err
	}
	now, err := s.serverCPU()
	if err != nil {
		return Cost{}, err
	}
	if s.plane.Cluster.APIServerPID() != pid {
		server = 0
	}
	return Cost{
		Took: took, Server: now - server, Nodes: after.CPU - before.CPU,
		Received: after.Received - before.Received, Sent: after.Sent - before.Sent,
		Connections: after.Connections - before.Connections,
	}, nil
}

func (s *site) serverCPU() (time.Duration, error) {
	return control.CPUTime(s.plane.Cluster.APIServerPID())
}

// rest leaves the watchers alone.
func (s *site) rest(ctx context.Context, _ *process, _ totals) error { return pause(ctx, s.Rest) }

// change changes an endpoint of one Service after the other, and waits until each watcher has seen all changes. It writes
// past the API server, whose work for the writing is not what is measured.
func (s *site) change(ctx context.Context, w *process, before totals) error {
	tick := time.NewTicker(time.Second / changesASecond)
	defer tick.Stop()
	for range s.Changes {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.write(ctx); err != nil {
			return err
		}
	}
	_, err := w.await(ctx, func(t totals) bool { return t.Slices-before.Slices >= int64(s.Changes*w.count) })
	return err
}

func (s *site) write(ctx context.Context) error {
	s.changed++
	return s.writer.Put(ctx, s.slice(s.changed%s.Services, s.changed))
}

// returns kills the API server, changes an endpoint meanwhile, and starts it again. In a cluster that is in use something
// changes always, so that no watch can be continued.
func (s *site) returns(ctx context.Context, w *process, _ totals) error {
	if s.Away == 0 {
		return nil
	}
	if _, err := w.say(mark); err != nil {
		return err
	}
	s.plane.Cluster.KillAPIServer()
	if err := s.write(ctx); err != nil {
		return err
	}
	if err := pause(ctx, s.Away); err != nil {
		return err
	}
	if err := s.plane.Cluster.StartAPIServer(ctx); err != nil {
		return err
	}
	s.news = News{}
	ready := time.Now()
	_, err := w.await(ctx, func(t totals) bool {
		for part, at := range map[int64]*time.Duration{5: &s.news.Half, 9: &s.news.Most, 10: &s.news.All} {
			if *at == 0 && t.Moved*10 >= part*int64(w.count) {
				*at = time.Since(ready)
			}
		}
		return t.Moved == int64(w.count)
	})
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

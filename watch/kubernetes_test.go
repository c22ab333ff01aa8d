package watch

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
)

func node(addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// observer runs a watcher on the API server and takes every update.
type observer struct {
	*testing.T
	*Watcher
	out      *service.Mailbox
	reported chan Problem
	first    string
	last     service.Snapshot
}

func observe(t *testing.T, s *apiServer, opts Options) *observer {
	o := &observer{T: t, out: service.NewMailbox(), reported: make(chan Problem, 1000)}
	opts.Node = "node-0"
	opts.Report = func(p Problem) { o.reported <- p }
	o.Watcher = NewWatcher(opts, o.out)
	o.run(s.client())
	return o
}

// run follows the API server until the test ends.
func (o *observer) run(client *Client) {
	t := o.T
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- o.RunKubernetes(ctx, client) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("RunKubernetes: %v", err)
		}
	})
}

// await takes updates until the snapshot reads as wanted.
func (o *observer) await(want string) {
	o.Helper()
	timeout := time.After(patience)
	for {
		if o.last.Node != nil && o.last.String() == want {
			return
		}
		select {
		case <-o.out.C():
			u, ok := o.out.Take()
			if !ok {
				continue
			}
			o.last = u.Snapshot
			if o.first == "" {
				o.first = u.Snapshot.String()
			}
			if age := time.Since(u.Since); u.Since.IsZero() || age < 0 || age > patience {
				o.Fatalf("the change came %v ago", age)
			}
		case <-timeout:
			got := "nothing"
			if o.last.Node != nil {
				got = o.last.String()
			}
			o.Fatalf("(-want +got):\n%s", cmp.Diff(want, got))
		}
	}
}

func (o *observer) awaitProblem(matches func(Problem) bool) Problem {
	o.Helper()
	timeout := time.After(patience)
	for {
		select {
		case p := <-o.reported:
			if matches(p) {
				return p
			}
		case <-timeout:
			o.Fatal("the problem was not reported")
		}
	}
}

const (
	textNode = "node node-0\n  eligible\n  address 192.168.0.2\n"
	textSvc0 = `service ns-0/svc-0 created 2026-01-01T00:00:00Z
  cluster-ip 172.30.0.0
  port http tcp 80
`
	textSvc0Two = textSvc0 + `    endpoint 10.0.0.1:8080 node-0 ready serving
    endpoint 10.0.0.2:8080 node-1 ready serving
`
)

// TestKubernetes follows create, update and delete. At first the server holds back the
// slices: nothing may come out before they are there.
func TestKubernetes(t *testing.T) {
	s := newAPIServer(t)
	gate := make(chan struct{})
	s.resources["endpointslices"].gate = gate
	s.set("nodes", node("192.168.0.2"))
	s.set("services", uniformService(0))
	s.set("endpointslices", uniformSlice(0, 2))
	o := observe(t, s, Options{})
	for len(s.seen("endpointslices")) == 0 || len(s.seen("services")) == 0 || len(s.seen("nodes")) == 0 {
		<-s.arrived
	}
	close(gate)
	o.await(textNode + textSvc0Two)
	if o.first != textNode+textSvc0Two {
		t.Errorf("the first update was not complete:\n%s", o.first)
	}

	s.set("endpointslices", uniformSlice(0, 0))
	o.await(textNode + textSvc0)
	s.set("endpointslices", uniformSlice(0, 2))
	o.await(textNode + textSvc0Two)
	s.set("nodes", node("192.168.0.3"))
	o.await(strings.Replace(textNode, "0.2", "0.3", 1) + textSvc0Two)
	s.remove("services", "svc-0")
	o.await(strings.Replace(textNode, "0.2", "0.3", 1))
	s.set("services", uniformService(0))
	s.remove("endpointslices", "slice-0")
	o.await(strings.Replace(textNode, "0.2", "0.3", 1) + textSvc0)

	for resource, want := range map[string][2]string{
		"services":       {"", "spec.clusterIP!=None"},
		"endpointslices": {"!service.kubernetes.io/headless,kubernetes.io/service-name", ""},
		"nodes":          {"", "metadata.name=node-0"},
		"servicecidrs":   {"", ""},
	} {
		for _, query := range s.seen(resource) {
			if got := [2]string{query.Get("labelSelector"), query.Get("fieldSelector")}; got != want {
				t.Errorf("%s: asked for %q, want %q", resource, got, want)
			}
		}
	}
	for _, r := range s.requests {
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") {
			t.Errorf("%s accepts %q first", r.URL.Path, accept)
		}
	}
}

// textNoNode is the snapshot's text if the Node's object, or its address, has not come.
const textNoNode = "node node-0\n  address-pending\n"

// TestNoNode: nothing comes out before the Node or the time-out. After the time-out
// everything works that does not need the Node's addresses. The Node counts when it
// comes.
func TestNoNode(t *testing.T) {
	s := newAPIServer(t)
	s.set("services", uniformService(0))
	o := observe(t, s, Options{NodeTimeout: 2 * awaitPatience})
	o.awaitProblem(func(p Problem) bool {
		e := (*AwaitError)(nil)
		return errors.As(p, &e) && slices.Equal(e.For, []string{"Node node-0"}) && e.Limit == 2*awaitPatience
	})
	if _, ok := o.out.Take(); ok || !slices.Equal(o.Awaiting(), []string{"Node node-0"}) {
		t.Errorf("published without Node: %t, waiting for %q", ok, o.Awaiting())
	}
	o.await(textNoNode + textSvc0)
	o.awaitProblem(func(p Problem) bool {
		return errors.Is(p, ErrNoNode) && p.Object.String() == "Node node-0" && strings.Contains(p.Error(),
			"node ports are open on no address")
	})
	if len(o.Awaiting()) > 0 {
		t.Errorf("still waiting for %q", o.Awaiting())
	}
	s.set("nodes", node("192.168.0.2"))
	o.await(textNode + textSvc0)
}

// TestNodeComesLate: the first update has a Node that came after a list without it.
func TestNodeComesLate(t *testing.T) {
	s := newAPIServer(t)
	s.set("services", uniformService(0))
	o := observe(t, s, Options{NodeTimeout: time.Hour})
	o.awaitProblem(func(p Problem) bool { return errors.As(p, new(*AwaitError)) })
	s.set("nodes", node("192.168.0.2"))
	o.await(textNode + textSvc0)
	if o.first != textNode+textSvc0 {
		t.Errorf("the first update was\n%s", o.first)
	}
}

// TestNodeWithoutAddress: services do not wait for addresses that a cloud's controller
// gives the Node, but until then no address is primary.
func TestNodeWithoutAddress(t *testing.T) {
	s := newAPIServer(t)
	bare := node("192.168.0.2")
	bare.Status.Addresses = nil
	s.set("nodes", bare)
	s.set("services", uniformService(0))
	o := observe(t, s, Options{NodeTimeout: time.Hour})
	o.await("node node-0\n  eligible\n  address-pending\n" + textSvc0)
	o.awaitProblem(func(p Problem) bool { return errors.Is(p, ErrNoNodeAddress) && p.Field == "status.addresses" })
	s.set("nodes", node("192.168.0.2"))
	o.await(textNode + textSvc0)
}

// TestLateLists: the first update has the Node and the ServiceCIDRs, although their lists
// come last. The watcher says that it waits for them.
func TestLateLists(t *testing.T) {
	s := newAPIServer(t)
	gate := make(chan struct{})
	s.resources["nodes"].gate, s.resources["servicecidrs"].gate = gate, gate
	s.set("nodes", node("192.168.0.2"))
	s.set("servicecidrs", serviceCIDR("kubernetes", "10.96.0.0/12"))
	s.set("services", uniformService(0))
	o := observe(t, s, Options{ListTimeout: time.Hour})
	p := o.awaitProblem(func(p Problem) bool { return errors.As(p, new(*AwaitError)) })
	want := "waiting for Node node-0, ServiceCIDRs, for 30s at most; until then the rules stay as they are"
	if p.Error() != want {
		t.Errorf("said %q, want %q", p.Error(), want)
	}
	close(gate)
	const cidr = "service-cidr 10.96.0.0/12\n"
	o.await(textNode + cidr + textSvc0)
	if o.first != textNode+cidr+textSvc0 {
		t.Errorf("the first update was\n%s", o.first)
	}
}

// TestListTimeout: the wait for a list that never comes ends, and a message says with
// which effect.
func TestListTimeout(t *testing.T) {
	s := newAPIServer(t)
	s.resources["servicecidrs"].gate = make(chan struct{})
	s.set("nodes", node("192.168.0.2"))
	o := observe(t, s, Options{ListTimeout: time.Millisecond})
	o.await(textNode)
	p := o.awaitProblem(func(p Problem) bool { return errors.As(p, new(*AwaitError)) })
	if want := "ServiceCIDRs: not there after 1ms; going on without: "; !strings.HasPrefix(p.Error(), want) {
		t.Errorf("said %q, want %q", p.Error(), want)
	}
}

// TestNodeRefused: an account that may not read Nodes gets its services nevertheless,
// after the time-out.
func TestNodeRefused(t *testing.T) {
	s := newAPIServer(t)
	s.refuse("nodes", http.StatusForbidden)
	s.set("services", uniformService(0))
	o := observe(t, s, Options{NodeTimeout: time.Millisecond})
	o.await(textNoNode + textSvc0)
	o.awaitProblem(func(p Problem) bool {
		e := (*RequestError)(nil)
		return errors.As(p, &e) && e.Resource == "nodes" && strings.Contains(p.Error(), "nodes is forbidden")
	})
}

// TestServiceCIDRs: the first update has them, and later updates follow their objects.
func TestServiceCIDRs(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	s.set("servicecidrs", serviceCIDR("kubernetes", "10.96.0.0/12", "fd00:96::/108"))
	s.set("servicecidrs", serviceCIDR("same", "10.96.0.0/12"))
	o := observe(t, s, Options{})
	const both = "service-cidr 10.96.0.0/12\nservice-cidr fd00:96::/108\n"
	o.await(textNode + both)
	s.set("servicecidrs", serviceCIDR("more", "10.112.0.0/16"))
	o.await(textNode + "service-cidr 10.112.0.0/16\n" + both)
	s.remove("servicecidrs", "kubernetes")
	o.await(textNode + "service-cidr 10.112.0.0/16\nservice-cidr 10.96.0.0/12\n")
}

// TestServiceCIDRsRefused: an API server without ServiceCIDRs holds nothing up. An
// account that may not read them waits until the time-out, since it may get the right in
// a moment.
func TestServiceCIDRsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		code    int
		timeout time.Duration
	}{"none": {http.StatusNotFound, time.Hour}, "forbidden": {http.StatusForbidden, time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.refuse("servicecidrs", c.code)
			s.set("nodes", node("192.168.0.2"))
			s.set("services", uniformService(0))
			o := observe(t, s, Options{ListTimeout: c.timeout})
			o.await(textNode + textSvc0)
		})
	}
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}

// TestAPIServerAway: the API server is away at the start, and again later. The watcher
// catches up with all changes of the meantime, deletions included.
func TestAPIServerAway(t *testing.T) {
	s := newAPIServer(t)
	s.stop()
	s.set("nodes", node("192.168.0.2"))
	s.set("services", uniformService(0))
	s.set("endpointslices", uniformSlice(0, 2))
	refused := func(p Problem) bool {
		e := (*RequestError)(nil)
		return errors.As(p, &e) && strings.Contains(p.Error(), "connection refused")
	}
	answers := make(chan []string, 100)
	o := observe(t, s, Options{Answers: func(behind []string) { answers <- behind }})
	upToDate := func() {
		t.Helper()
		for behind := range answers {
			if len(behind) == 0 {
				return
			}
		}
	}
	o.awaitProblem(refused)
	s.start()
	o.await(textNode + textSvc0Two)
	upToDate()
	for len(o.reported) > 0 { // Each resource reports this outage.
		<-o.reported
	}

	s.stop()
	o.awaitProblem(refused)
	s.forget()
	s.remove("services", "svc-0")
	s.set("services", uniformService(1))
	s.remove("endpointslices", "slice-0")
	s.set("endpointslices", uniformSlice(1, 0))
	s.forget()
	s.start()
	o.await(textNode + `service ns-1/svc-1 created 2026-01-01T00:00:00Z
  cluster-ip 172.30.0.1
  port http tcp 80
`)
	upToDate()
}

// TestAnswersWhenAllIsFresh: an API server that comes back refuses EndpointSlices for a
// while, as it does until it knows the roles. The watcher says that the server answers
// only when the slices are there too and have been published. Until then it says which
// resources are behind.
func TestAnswersWhenAllIsFresh(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	s.set("services", uniformService(0))
	s.set("endpointslices", uniformSlice(0, 0))
	answers := make(chan []string, 100)
	o := observe(t, s, Options{Answers: func(behind []string) { answers <- behind }})
	o.await(textNode + textSvc0)
	s.stop()
	o.awaitProblem(func(p Problem) bool {
		e := (*RequestError)(nil)
		return errors.As(p, &e) && strings.Contains(p.Error(), "connection refused")
	})
	s.refuse("endpointslices", http.StatusForbidden)
	s.set("endpointslices", uniformSlice(0, 2))
	s.forget()
	s.start()
	for behind := range answers {
		if len(behind) == 0 {
			t.Fatal("said to answer without EndpointSlices")
		}
		if slices.Equal(behind, []string{"endpointslices"}) {
			break
		}
	}
	s.refuse("endpointslices", 0)
	for behind := range answers {
		if len(behind) == 0 {
			break
		}
	}
	o.Watcher.mu.Lock()
	published := o.published.String()
	o.Watcher.mu.Unlock()
	if published != textNode+textSvc0Two {
		t.Errorf("said to answer while the last snapshot was\n%s", published)
	}
}

// TestHostAddresses: they may come before the start and at any time after.
func TestHostAddresses(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	o := observe(t, s, Options{})
	done := make(chan struct{})
	for range 4 {
		go func() {
			o.SetHostAddresses(convertNode(node("192.168.0.9")).facts.Addresses, nil)
			done <- struct{}{}
		}()
	}
	for range 4 {
		<-done
	}
	o.await(textNode + "  host-address 192.168.0.9\n")
	o.SetHostAddresses(nil, nil)
	o.await(textNode)
}

// TestKeptIsSmall: a kept object has no metadata that the proxy does not read.
func TestKeptIsSmall(t *testing.T) {
	s := uniformSlice(0, 3)
	s.ManagedFields, s.ResourceVersion = []metav1.ManagedFieldsEntry{{Manager: "x"}}, "7"
	s.Annotations = map[string]string{"a": "b"}
	s.OwnerReferences = []metav1.OwnerReference{{Name: "svc-0"}}
	kept := convertSlice(s)
	want := identity{key: "ns-0/slice-0", version: "7"}
	if !reflect.DeepEqual(kept.identity, want) {
		t.Errorf("kept %+v of the metadata, want %+v", kept.identity, want)
	}
	if len(kept.names) != 3 || len(slices.Compact(kept.names)) != 3 {
		t.Errorf("%d node names are kept, want 3", len(kept.names))
	}
}

func TestClientConfig(t *testing.T) {
	config, err := ClientConfig("", "http://127.0.0.1:8080")
	must(t, err)
	if config.Host != "http://127.0.0.1:8080" || config.ContentType != "application/vnd.kubernetes.protobuf" ||
		config.QPS >= 0 || config.Timeout != 0 {
		t.Errorf("host %q, content type %q, QPS %v, time-out %v", config.Host, config.ContentType, config.QPS, config.Timeout)
	}
	if _, err := ClientConfig("/nonexistent/kubeconfig", ""); err == nil || !strings.HasPrefix(err.Error(),
		"configure API client: ") {
		t.Errorf("a kubeconfig that is not there: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := ClientConfig("", ""); err == nil {
		t.Error("no error outside a cluster")
	}
}

// TestNothingBeforeSync: changes wait for the sync. If the sync never comes, because ctx
// ends or a list is missing, nothing comes out.
func TestNothingBeforeSync(t *testing.T) {
	closed, open := make(chan struct{}), make(chan struct{})
	close(closed)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	out := service.NewMailbox()
	w := NewWatcher(Options{Node: "node-0"}, out)
	w.change(func(ix *index) { ix.setService(convertService(uniformService(0))) })
	for range 50 { // A wrong select would choose one of its cases at random.
		w.awaitSync(ended, awaited{there: closed}, awaited{there: open})
		w.publish()
		if _, ok := out.Take(); ok {
			t.Fatal("published without EndpointSlices")
		}
	}
	before := time.Now()
	w.awaitSync(context.Background(), awaited{there: closed}, awaited{there: closed})
	w.publish()
	u, ok := out.Take()
	if !ok || u.Snapshot.Services.Len() != 1 || u.Since.Before(before) {
		t.Fatalf("after the sync: %v, %d services, since %v before it", ok, u.Snapshot.Services.Len(), before.Sub(u.Since))
	}
	w.publish()
	if _, ok := out.Take(); ok {
		t.Fatal("published what had not changed")
	}
}

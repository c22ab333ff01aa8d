package servicetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// world is a cluster: an API server that gives addresses, kubelets that make pods ready, and a service proxy that
// works, unless broken says otherwise.
type world struct {
	*fake.Clientset
	t  *testing.T
	mu sync.Mutex
	// turn counts connections, for the choice of an endpoint.
	turn    int
	pods    map[string]*corev1.Pod
	ending  map[string]bool
	signals map[string]chan struct{}
	// services are those that were made, by each of their addresses and ports, and health the addresses and health check
	// node ports of the nodes.
	services map[string]*corev1.Service
	health   map[string]healthPort
	// sctp says whether the kernels of the nodes have it.
	sctp bool
	// broken returns the line of a try in place of what would happen; empty for what would.
	broken func(from *corev1.Pod, to string) string
}

func newWorld(t *testing.T) *world {
	w := &world{Clientset: fake.NewClientset(), t: t, pods: map[string]*corev1.Pod{}, ending: map[string]bool{},
		signals: map[string]chan struct{}{}, services: map[string]*corev1.Service{}, health: map[string]healthPort{}}
	w.PrependReactor("create", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
		n := a.(clienttesting.CreateAction).GetObject().(*corev1.Namespace)
		n.Name = n.GenerateName + "x7"
		return false, nil, nil
	})
	w.PrependReactor("create", "pods", w.startPod)
	w.PrependReactor("create", "services", w.giveAddresses)
	w.PrependReactor("patch", "services", w.giveIngress)
	w.PrependReactor("delete", "pods", w.endPod)
	return w
}

func (w *world) startPod(a clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
	n := len(w.pods) + 10
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.0.0.%d", n)}, {IP: fmt.Sprintf("fd00::%d", n)}}
	if p.Name != "unready" {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	w.pods[p.Name] = p
	return false, nil, nil
}

func (w *world) endPod(a clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending[a.(clienttesting.DeleteAction).GetName()] = true
	return false, nil, nil
}

func (w *world) giveAddresses(a clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := a.(clienttesting.CreateAction).GetObject().(*corev1.Service)
	n := len(w.services) + 1
	s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd01::%d", n)}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		for _, ip := range slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs) {
			w.services[net.JoinHostPort(ip, strconv.Itoa(int(p.Port)))] = s
		}
		if s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			p.NodePort = int32(30000 + 10*n)
			for _, node := range twoNodes() {
				for _, a := range node.Status.Addresses {
					w.services[join(a.Address, p.NodePort)] = s
				}
			}
		}
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		w.services["203.0.113.1:80"] = s
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == "Local" {
		s.Spec.HealthCheckNodePort = int32(30001 + 10*n)
		for _, node := range twoNodes() {
			for _, a := range node.Status.Addresses {
				w.health[join(a.Address, s.Spec.HealthCheckNodePort)] = healthPort{s, node.Name}
			}
		}
	}
	w.services[fmt.Sprintf("%s.%sx7:80", s.Name, prefix)] = s
	return false, nil, nil
}

// healthPort is where a node says whether it has an endpoint of a Service.
type healthPort struct {
	service *corev1.Service
	node    string
}

// giveIngress takes the addresses of a load balancer.
func (w *world) giveIngress(a clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	patch := a.(clienttesting.PatchAction)
	var given corev1.Service
	if err := json.Unmarshal(patch.GetPatch(), &given); err != nil || patch.GetSubresource() != "status" {
		return true, nil, fmt.Errorf("patch %q of %q: %w", patch.GetPatch(), patch.GetSubresource(), err)
	}
	for _, s := range w.services {
		if s.Name == patch.GetName() {
			for _, ingress := range given.Status.LoadBalancer.Ingress {
				w.services[join(ingress.IP, servicePort)] = s
			}
			break
		}
	}
	return false, nil, nil
}

func twoNodes() (nodes []corev1.Node) {
	for n := 1; n <= 2; n++ {
		nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", n)},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.0.%d", n)},
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd02::%d", n)}}}})
	}
	return nodes
}

// run is what the commands of a client print.
func (w *world) run(ctx context.Context, from *corev1.Pod, container string, command ...string) ([]byte, error) {
	if container != "agnhost" || command[0] != "/bin/sh" || command[1] != "-c" {
		return nil, fmt.Errorf("no such command: %q", command)
	}
	switch command[2] {
	case readyScript:
		return nil, nil
	case sctpScript:
		return []byte(map[bool]string{true: "yes\n", false: "no\n"}[w.sctp]), nil
	}
	args := command[4:]
	switch command[2] {
	case stopScript:
		close(w.signal("stop-" + from.Name + args[0]))
		return nil, nil
	case beganScript:
		<-w.signal("began-" + from.Name + args[0])
		return nil, nil
	case loadScript:
		return w.load(ctx, from, args[0], w.signal("began-"+from.Name+args[1]), w.signal("stop-"+from.Name+args[1]))
	}
	tries, err := strconv.Atoi(args[0])
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for range tries {
		line := w.connect(from, args[1])
		if command[2] == tcpScript && args[2] == "clientip" && strings.HasPrefix(line, "ok") {
			line = "ok " + net.JoinHostPort(from.Status.PodIPs[0].IP, "40000")
		}
		why, failed := strings.CutPrefix(line, "failed ")
		switch {
		case command[2] == tcpScript:
			fmt.Fprintln(&out, asCurl(line))
		case failed:
			fmt.Fprintln(&out, "connect", why)
		default:
			fmt.Fprintln(&out, "connect")
		}
		if failed {
			break
		}
	}
	return []byte(out.String()), nil
}

// asCurl is what the script prints of a try.
func asCurl(line string) string {
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case word == "ok":
		return "curl 0 " + rest + " 200 0.000123"
	case word != "failed":
		return line
	case rest == refusedWord:
		return "curl 7 000 0.000000"
	case rest == timeoutWord:
		return "curl 28 000 0.000000"
	case rest == unavailableWord:
		return "curl 22 503 0.000123"
	}
	return "curl 6 000 0.000000"
}

// signal is a file that one command makes and another waits for.
func (w *world) signal(name string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.signals[name] == nil {
		w.signals[name] = make(chan struct{})
	}
	return w.signals[name]
}

func (w *world) load(ctx context.Context, from *corev1.Pod, to string, began, stop chan struct{}) ([]byte, error) {
	tries, failed := 0, 0
	for {
		tries++
		if line := w.connect(from, to); !strings.HasPrefix(line, "ok") {
			failed++
		}
		if tries == 1 {
			close(began)
		}
		select {
		case <-stop:
			return fmt.Appendf(nil, "done %d %d\n", tries, failed), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// connect is the line of one try.
func (w *world) connect(from *corev1.Pod, to string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		if line := w.broken(from, to); line != "" {
			return line
		}
	}
	if h, is := w.health[to]; is {
		if ready, _ := w.endpoints(h.service); !slices.ContainsFunc(ready, func(name string) bool {
			return w.pods[name].Spec.NodeName == h.node
		}) {
			return "failed " + unavailableWord
		}
		return `ok { "localEndpoints": 1 }`
	}
	svc := w.services[to]
	if svc == nil {
		for name, p := range w.pods {
			for _, ip := range p.Status.PodIPs {
				if to == join(ip.IP, httpPort) || to == join(ip.IP, sctpPort) && strings.HasPrefix(name, serviceSCTP) {
					return "ok " + name
				}
			}
		}
		return "failed TIMEOUT"
	}
	if ranges := svc.Spec.LoadBalancerSourceRanges; ranges != nil && !slices.ContainsFunc(ranges, func(text string) bool {
		return containsAddr([]netip.Prefix{netip.MustParsePrefix(text)}, from.Status.PodIPs[0].IP)
	}) {
		return "failed TIMEOUT"
	}
	ready, ending := w.endpoints(svc)
	if len(ready) == 0 {
		ready = ending
	}
	if policy := svc.Spec.InternalTrafficPolicy; policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal {
		ready = slices.DeleteFunc(ready, func(name string) bool { return w.pods[name].Spec.NodeName != from.Spec.NodeName })
		if len(ready) == 0 {
			return "failed TIMEOUT"
		}
	}
	if len(ready) == 0 {
		return "failed REFUSED"
	}
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		return "ok " + ready[0]
	}
	w.turn++
	return "ok " + ready[w.turn%len(ready)]
}

func (w *world) endpoints(svc *corev1.Service) (ready, ending []string) {
	for name, p := range w.pods {
		if !isReady(p) || p.Labels[roleLabel] != svc.Spec.Selector[roleLabel] && svc.Spec.Selector[roleLabel] != "" ||
			p.Labels["server"] != svc.Spec.Selector["server"] && svc.Spec.Selector["server"] != "" {
			continue
		}
		if w.ending[name] {
			ending = append(ending, name)
			continue
		}
		ready = append(ready, name)
	}
	slices.Sort(ready)
	slices.Sort(ending)
	return ready, ending
}

func (w *world) try(light bool) ([]Result, error) {
	return Try(w.t.Context(), w.options(light))
}

func (w *world) options(light bool) Options {
	return Options{Client: w, Run: w.run, Image: "agnhost", Nodes: twoNodes(), Light: light,
		Inside: "a test", Settle: time.Millisecond,
		Explain: func(_ context.Context, c Connection) []string {
			return []string{"explained " + c.Address + "/" + c.Protocol}
		}}
}

// TestAllWell: in a cluster that works every kind of check passes that can be tried, and nothing is left.
func TestAllWell(t *testing.T) {
	w := newWorld(t)
	w.sctp = true
	results, err := w.try(false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range Summarize(results) {
		got = append(got, s.Test+": "+s.State)
		if s.State == Failed {
			t.Errorf("%s: %s", s.Test, s.Detail)
		}
	}
	want := []string{testPods, testClusterIP, testName, testHairpin, testNodePort, testExternalIP}
	for i, test := range want {
		want[i] = test + ": " + Passed
	}
	want = append(want, testLoadBalancer+": "+NotTried)
	for _, test := range []string{testGiven, testHealth, testRanges, testSCTP} {
		want = append(want, test+": "+Passed)
	}
	want = append(want, testOutside+": "+NotTried)
	for _, test := range []string{testLocal, testInternal, testAffinity, testEmpty, testEnds, testJoins, testLast} {
		want = append(want, test+": "+Passed)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	list, err := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d namespaces are left, %v", len(list.Items), err)
	}
}

// TestFaults: each fault of a cluster fails the checks that it concerns, and no others, with what was seen.
func TestFaults(t *testing.T) {
	nodePort := func(to string) bool {
		return strings.HasPrefix(to, "192.168.0.2:") || strings.HasPrefix(to, "[fd02::2]:")
	}
	for _, c := range []struct {
		name   string
		broken func(w *world) func(from *corev1.Pod, to string) string
		tests  []string
		detail string
	}{
		{"pods of one node do not reach cluster IPs", func(*world) func(*corev1.Pod, string) string {
			return func(from *corev1.Pod, to string) string {
				if from.Name == "client-2" && strings.HasPrefix(to, "10.96.") {
					return "failed TIMEOUT"
				}
				return ""
			}
		}, []string{testClusterIP, testSCTP, testAffinity, testEmpty}, "no answer within 3 s"},
		{"the node ports of one node", func(*world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if nodePort(to) {
					return "failed REFUSED"
				}
				return ""
			}
		}, []string{testNodePort, testHealth, testSCTP}, "refused"},
		{"one server gets nothing", func(w *world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if svc := w.services[to]; svc != nil && svc.Name == serviceAll {
					return "ok server-1"
				}
				return ""
			}
		}, []string{testClusterIP, testNodePort}, "server-2 did not answer any of 21 connections"},
		{"DNS", func(*world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if strings.Contains(to, ".") && strings.HasPrefix(to, serviceAll) {
					return "failed DNS"
				}
				return ""
			}
		}, []string{testName}, "the name is not known"},
		{"a Service without endpoints does not refuse", func(w *world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if svc := w.services[to]; svc != nil && svc.Name == serviceEmpty {
					return "failed TIMEOUT"
				}
				return ""
			}
		}, []string{testEmpty}, "should be refused at once"},
		{"policies are not kept", func(w *world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if svc := w.services[to]; svc != nil && svc.Name == serviceNear {
					return "ok server-1"
				}
				return ""
			}
		}, []string{testInternal}, "nobody should"},
		{"pods do not reach pods", func(*world) func(*corev1.Pod, string) string {
			return func(from *corev1.Pod, to string) string {
				if from.Name == "client-1" && !strings.Contains(to, prefix) {
					return "failed TIMEOUT"
				}
				return ""
			}
		}, []string{testPods, testClusterIP, testNodePort, testExternalIP, testGiven, testHealth, testRanges, testLocal,
			testInternal, testAffinity, testEmpty}, "no answer"},
		{"source ranges are not kept", func(w *world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if svc := w.services[to]; svc != nil && svc.Name == serviceRanges {
					w.turn++
					return "ok server-" + strconv.Itoa(1+w.turn%2)
				}
				return ""
			}
		}, []string{testRanges}, "nobody should"},
		{"a load balancer's address takes the policy Local for clients in the cluster", func(w *world) func(*corev1.Pod,
			string) string {
			return func(from *corev1.Pod, to string) string {
				if svc := w.services[to]; svc != nil && svc.Name == serviceGiven && from.Spec.NodeName != "node-1" {
					return "failed TIMEOUT"
				}
				return ""
			}
		}, []string{testGiven}, "no answer within 3 s"},
		{"a node without endpoints says that it has some", func(w *world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if w.health[to].service != nil {
					return `ok { "localEndpoints": 1 }`
				}
				return ""
			}
		}, []string{testHealth}, "it has none"},
		{"a node with endpoints says that it has none", func(w *world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if w.health[to].service != nil {
					return "failed " + unavailableWord
				}
				return ""
			}
		}, []string{testHealth}, "HTTP status 503"},
		{"cluster IPs have no SCTP", func(w *world) func(*corev1.Pod, string) string {
			return func(_ *corev1.Pod, to string) string {
				if svc := w.services[to]; svc != nil && svc.Name == serviceSCTP {
					return "failed OTHER: connection refused"
				}
				return ""
			}
		}, []string{testSCTP}, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.sctp, w.broken = true, c.broken(w)
			results, err := w.try(true)
			if err != nil {
				t.Fatal(err)
			}
			var failed []string
			for _, s := range Summarize(results) {
				if s.State == Failed {
					failed = append(failed, s.Test)
				}
			}
			if !slices.Equal(failed, c.tests) {
				t.Errorf("failed %q, want %q", failed, c.tests)
			}
			i := slices.IndexFunc(results, func(r Result) bool { return r.State == Failed })
			if i < 0 || !strings.Contains(results[i].Detail, c.detail) || len(results[i].Explanation) == 0 {
				t.Errorf("%+v", results[max(i, 0)])
			}
		})
	}
}

// TestAffinityAndSource: a client that changes its server, and a server that does not see its client.
func TestAffinityAndSource(t *testing.T) {
	two := []try{{answer: "server-1"}, {answer: "server-2"}}
	if got := (want{same: true}).judge(two); !strings.Contains(got, "2 servers") {
		t.Error(got)
	}
	masqueraded := []try{{answer: "10.244.1.1"}}
	node := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}}
	if got := (want{not: addressesOf(node)}).judge(masqueraded); !strings.Contains(got, "saw the client as 10.244.1.1") {
		t.Error(got)
	}
	if got := (want{}).judge(nil); got == "" {
		t.Error("no try at all is right")
	}
}

// TestSpread: so many connections miss one of some servers less than once in a million tests.
func TestSpread(t *testing.T) {
	for servers := 2; servers <= 10; servers++ {
		missed := float64(servers)
		for range spread(servers) {
			missed *= 1 - 1/float64(servers)
		}
		if missed > 1e-6 || missed < 1e-7 {
			t.Errorf("%d servers: %g", servers, missed)
		}
	}
}

// TestInterrupted: the end of the context in the middle leaves nothing, and is the error.
func TestInterrupted(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("interrupted")
	_, err := Try(ctx, Options{Client: w, Nodes: twoNodes(), Image: "agnhost",
		Run: func(ctx context.Context, _ *corev1.Pod, _ string, _ ...string) ([]byte, error) {
			cancel(ended)
			return nil, ctx.Err()
		}})
	if !errors.Is(err, ended) {
		t.Errorf("error %v", err)
	}
	list, err := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d namespaces are left, %v", len(list.Items), err)
	}
}

// TestRemoveAll: only namespaces with the label and the name of a test are removed, whose time is over.
func TestRemoveAll(t *testing.T) {
	label := map[string]string{Label: "true"}
	at := func(d time.Duration) map[string]string {
		return map[string]string{until: time.Now().Add(d).Format(time.RFC3339)}
	}
	w := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + "a", Labels: label, Annotations: at(-time.Minute)}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + "b"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + "c", Labels: label, Annotations: at(time.Minute)}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", Labels: label}})
	removed, busy, err := RemoveAll(t.Context(), w)
	if err != nil || !slices.Equal(removed, []string{prefix + "a"}) || !slices.Equal(busy, []string{prefix + "c"}) {
		t.Fatal(removed, busy, err)
	}
	list, err := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Errorf("%d namespaces are left, %v", len(list.Items), err)
	}
}

// TestOneNode: one node has two servers, so that there is a choice, and what needs a second node is said.
func TestOneNode(t *testing.T) {
	w := newWorld(t)
	results, err := Try(t.Context(), Options{Client: w, Run: w.run, Image: "agnhost", Nodes: twoNodes()[:1], Light: true,
		Inside: "this is a pod"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Summarize(results) {
		switch {
		case s.State == Failed:
			t.Errorf("%s: %s", s.Test, s.Detail)
		case s.Test == testInternal && !strings.Contains(s.Detail, "second node"),
			s.Test == testLocal && !strings.Contains(s.Detail, "this is a pod"),
			s.Test == testEnds && s.Detail != "left out by --light":
			t.Errorf("%s: %q", s.Test, s.Detail)
		}
	}
	if len(w.pods) != 5 {
		t.Errorf("%d pods", len(w.pods))
	}
}

// TestRefused: a cluster that admits no external IPs and no pods on the nodes' network is tried without them.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	refuse := func(resource string, is func(runtime.Object) bool, err error) {
		w.PrependReactor("create", resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
			if is(a.(clienttesting.CreateAction).GetObject()) {
				return true, nil, err
			}
			return false, nil, nil
		})
	}
	refuse("services", func(o runtime.Object) bool { return o.(*corev1.Service).Name == serviceExternal },
		apierrors.NewBadRequest("admission webhook: no external IPs"))
	w.PrependReactor("patch", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		status := schema.GroupResource{Resource: "services/status"}
		return true, nil, apierrors.NewForbidden(status, "", errors.New("no right"))
	})
	refuse("pods", func(o runtime.Object) bool { return o.(*corev1.Pod).Spec.HostNetwork },
		apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "host-1", errors.New("no host network")))
	results, err := w.try(true)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, s := range Summarize(results) {
		if said[s.Test] = s.State + " " + s.Detail; s.State == Failed {
			t.Errorf("%s: %s", s.Test, s.Detail)
		}
	}
	if !strings.HasPrefix(said[testExternalIP], "not tried") ||
		!strings.Contains(said[testExternalIP], "no external IPs") ||
		!strings.HasPrefix(said[testGiven], "not tried") || !strings.HasPrefix(said[testRanges], "not tried") ||
		!strings.Contains(said[testGiven], "services/status") || !strings.Contains(said[testRanges], "services/status") ||
		said[testHealth] != "pass " || !strings.Contains(said[testClusterIP], "no host network") {
		t.Errorf("%q", said)
	}
}

// TestPodFails: a node that does not take a pod ends the test, with its reason.
func TestPodFails(t *testing.T) {
	w := newWorld(t)
	w.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "Node didn't have enough capacity"}
		p.Namespace = a.GetNamespace()
		return true, p, w.Tracker().Create(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace)
	})
	_, err := w.try(true)
	if err == nil || !strings.Contains(err.Error(), "OutOfpods") {
		t.Error(err)
	}
}

// TestLosesSome: a proxy that loses some connections does not pass because a later attempt loses none.
func TestLosesSome(t *testing.T) {
	w := newWorld(t)
	var attempts atomic.Int32
	run := func(ctx context.Context, from *corev1.Pod, container string, command ...string) ([]byte, error) {
		if command[2] == tcpScript && command[5] == "10.96.0.1:80" && attempts.Add(1)%2 == 1 {
			return []byte("curl 28 000 0.000000\n"), nil
		}
		return w.run(ctx, from, container, command...)
	}
	results, err := Try(t.Context(), Options{Client: w, Run: run, Image: "agnhost", Nodes: twoNodes()[:1], Light: true,
		Inside: "no", Settle: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(results, func(r Result) bool { return r.State == Failed })
	if i < 0 || !strings.Contains(results[i].Detail, "no answer within 3 s") {
		t.Errorf("%+v", results)
	}
}

// TestScripts: the scripts run in a shell, and their lines say what the programs in them did.
func TestScripts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"curl": `for last; do :; done
case $last in
http://good/*) printf 'server-1\n200 0.000321' ;;
http://long/*) yes x | head -c 900; printf '\n200 0.000321' ;;
http://refuses/*) printf '\n000 0.000000'; exit 7 ;;
http://silent/*) printf '\n000 0.000000'; exit 28 ;;
http://hangs/*) printf '\n000 0.000456'; exit 28 ;;
http://fails/*) printf '\n500 0.000456'; exit 22 ;;
http://flaky/*) printf 'server-1\n200 0.000321'; [ -e "$0.seen" ] && exit 7; : > "$0.seen" ;;
*) printf '\n000 0.000000'; exit 6 ;;
esac`,
		"agnhost": `for last; do :; done
case $last in
good) exit 0 ;;
none) echo "OTHER: connection refused" >&2; exit 1 ;;
silent) echo "TIMEOUT: read udp 10.0.0.1:1->10.0.0.2:2: i/o timeout" >&2; exit 1 ;;
lost) [ -e "$0.seen" ] && exit 0; : > "$0.seen"; echo TIMEOUT >&2; exit 1 ;;
*) echo "UNKNOWN: write: operation not permitted" >&2; exit 1 ;;
esac`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(script string, args ...string) []try {
		t.Helper()
		script = strings.ReplaceAll(script, "/agnhost", filepath.Join(dir, "agnhost"))
		cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(args, err)
		}
		return parseTries(string(out))
	}
	for _, c := range []struct {
		script, to string
		want       []try
	}{
		{tcpScript, "good", []try{{answer: "server-1"}, {answer: "server-1"}}},
		{tcpScript, "refuses", []try{{failure: refusedWord}}},
		{tcpScript, "silent", []try{{failure: timeoutWord}}},
		{tcpScript, "hangs", []try{{failure: "connected, but without an answer"}}},
		{tcpScript, "fails", []try{{failure: "HTTP status 500"}}},
		{tcpScript, "flaky", []try{{answer: "server-1"}, {failure: refusedWord}}},
		{tcpScript, "unknown", []try{{failure: "the name is not known"}}},
		{connectScript, "good", []try{{}, {}}},
		{connectScript, "none", []try{{failure: refusedWord}}},
		{connectScript, "silent", []try{{failure: timeoutWord}}},
		{connectScript, "lost", []try{{}, {}}},
		{connectScript, "forbidden", []try{{failure: "UNKNOWN: write: operation not permitted"}}},
	} {
		last := "hostname"
		if c.script == connectScript {
			last = "udp"
		}
		if got := run(c.script, "2", c.to, last); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.to, got, c.want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "agnhost.seen")); err != nil {
		t.Fatal(err)
	}
	if got := run(connectScript, "2", "lost", "sctp"); !slices.Equal(got, []try{{failure: timeoutWord}}) {
		t.Errorf("SCTP that gets lost: %+v", got)
	}
	if got := run(tcpScript, "1", "long", "hostname"); len(got) != 1 || len(got[0].answer) > 103 {
		t.Errorf("a long answer: %+v", got)
	}
}

// TestHere: this process tells an answer, a refusal and an HTTP error, as the scripts do.
func TestHere(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hostname":
			fmt.Fprint(w, "server-1")
		case "/clientip":
			fmt.Fprint(w, r.RemoteAddr)
		default:
			http.Error(w, "no", http.StatusInternalServerError)
		}
	}))
	address := strings.TrimPrefix(server.URL, "http://")
	for path, want := range map[string]string{"hostname": "server-1", "clientip": "127.0.0.1"} {
		got := tryHere(t.Context(), target{address: address, protocol: "tcp"}, path, 2)
		if !slices.Equal(got, []try{{answer: want}, {answer: want}}) {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := tryHere(t.Context(), target{address: address, protocol: "tcp"}, "x", 2); len(got) != 1 ||
		!strings.Contains(got[0].failure, "500") {
		t.Errorf("HTTP error: %+v", got)
	}
	server.Close()
	if got := tryHere(t.Context(), target{address: address, protocol: "tcp"}, "x", 2); len(got) != 1 ||
		got[0].failure != refusedWord {
		t.Errorf("refused: %+v", got)
	}
}

// TestRole: the role nftproxy-test has the rights that a test asks for. The others are for those who choose nodes and
// run commands in pods.
func TestRole(t *testing.T) {
	w := newWorld(t)
	w.sctp = true
	o := w.options(false)
	o.LoadBalancer = true
	results, err := Try(t.Context(), o)
	if err != nil || slices.ContainsFunc(results, func(r Result) bool {
		return r.State == Failed || r.State == NotTried && r.Test == testLoadBalancer
	}) {
		t.Fatal(results, err)
	}
	if _, _, err := RemoveAll(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{"list nodes": true, "get pods": true, "get pods/exec": true, "create pods/exec": true}
	for _, a := range w.Actions() {
		resource := a.GetResource().Resource
		if sub := a.GetSubresource(); sub != "" {
			resource += "/" + sub
		}
		asked[a.GetVerb()+" "+resource] = true
	}
	text, err := os.ReadFile("../../../deploy/plugin/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(part), &role); err != nil {
			t.Fatal(err)
		}
		if role.Name != "nftproxy-test" {
			continue
		}
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					have[verb+" "+resource] = true
				}
			}
		}
	}
	if diff := cmp.Diff(have, asked); diff != "" {
		t.Errorf("what the role has and what is asked for (-have +asked): %s", diff)
	}
}

// TestSCTP: nodes that have not loaded it, and a network of pods that does not carry it, are no failures.
func TestSCTP(t *testing.T) {
	for _, c := range []struct {
		loaded bool
		want   string
	}{{false, "not loaded on node-1, node-2"}, {true, "without a Service, such as pod client-1 on node-1"}} {
		w := newWorld(t)
		w.sctp = c.loaded
		w.broken = func(_ *corev1.Pod, to string) string {
			if strings.HasSuffix(to, fmt.Sprint(":", sctpPort)) {
				return "failed TIMEOUT"
			}
			return ""
		}
		results, err := w.try(true)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range Summarize(results) {
			if s.State == Failed || s.Test == testSCTP && (s.State != NotTried || !strings.Contains(s.Detail, c.want)) {
				t.Errorf("%+v, want %q", s, c.want)
			}
		}
	}
}

// TestSummarize: one failure counts, and what was not tried is said beside what passed.
func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		results []Result
		want    Summary
	}{
		{[]Result{{State: NotTried, Detail: "half of it"}, {State: Passed}}, Summary{"", Passed, 1, 1, "half of it"}},
		{[]Result{{State: Passed}, {State: NotTried, Detail: "half of it"}}, Summary{"", Passed, 1, 1, "half of it"}},
		{[]Result{{State: Passed, Detail: "0 of 9"}, {State: Failed, Detail: "bad"}, {State: NotTried, Detail: "x"}},
			Summary{"", Failed, 1, 2, "bad"}},
		{[]Result{{State: NotTried, Detail: "x"}}, Summary{"", NotTried, 0, 0, "x"}},
	} {
		if got := Summarize(c.results); !slices.Equal(got, []Summary{c.want}) {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

package servicetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/retry"
)

// The namespaces of tests have this label, and a name with this prefix.
const (
	Label  = "nftproxy.io/service-test"
	prefix = "nftproxy-test-"
)

// container is the container of all pods, and the ports are those of its servers and of the Services.
const (
	container         = "agnhost"
	httpPort    int32 = 8080
	udpPort     int32 = 8081
	sctpPort    int32 = 8082
	servicePort int32 = 80
)

// The Services.
const (
	serviceAll      = "all"
	serviceOwn      = "own"
	serviceNear     = "near"
	serviceLocal    = "local"
	serviceSticky   = "sticky"
	serviceEmpty    = "empty"
	serviceExternal = "external"
	serviceBalanced = "balanced"
	serviceGiven    = "given"
	serviceRanges   = "ranges"
	serviceSCTP     = "sctp"
	serviceLeaving  = "leaving"
)

// roleLabel is the label by which the Services choose their pods.
const roleLabel = "role"

// stage is what was made: the pods and Services as the API server has them.
type stage struct {
	namespace string
	image     string
	outside   bool
	nodes     []corev1.Node
	// servers are one of each node. clients are one pod and one process of each node.
	servers, clients []party
	services         map[string]*corev1.Service
	// missing are the checks that cannot be tried here.
	missing []Result
}

// until is an annotation with the time until which a test may use its namespace (RFC 3339).
const until = "nftproxy.io/service-test-until"

// makeNamespace makes it at the end of ctx, too: nobody would know the name of one whose answer was not awaited.
func makeNamespace(ctx context.Context, client kubernetes.Interface) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	n, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: prefix,
		Annotations:  map[string]string{until: time.Now().Add(longestLife).Format(time.RFC3339)},
		Labels: map[string]string{
			Label: "true",
			// Processes of the node are pods on its network.
			"pod-security.kubernetes.io/enforce": "privileged",
		}}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a namespace: %w", err)
	}
	return n.Name, nil
}

// RemoveAll removes the namespaces that killed tests have left, and returns their names. Those of tests that may
// still go on stay: it returns them as busy.
func RemoveAll(ctx context.Context, client kubernetes.Interface) (removed, busy []string, err error) {
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: Label + "=true"})
	if err != nil {
		return nil, nil, fmt.Errorf("list namespaces: %w", err)
	}
	for i := range list.Items {
		n := &list.Items[i]
		end, badEnd := time.Parse(time.RFC3339, n.Annotations[until])
		switch {
		case !strings.HasPrefix(n.Name, prefix): // A label alone does not make somebody's namespace one of ours.
		case badEnd == nil && time.Now().Before(end):
			busy = append(busy, n.Name)
		default:
			removed = append(removed, n.Name)
			err = errors.Join(err, removeNamespace(ctx, client, n.Name))
		}
	}
	return removed, busy, err
}

func removeNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("it is there after %s", startPatience))
	defer cancel()
	namespaces := client.CoreV1().Namespaces()
	err := namespaces.Delete(ctx, name, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	source := listWatch(client, namespaces, name)
	err = untilGone(ctx, source, &corev1.Namespace{}, name)
	if err != nil {
		return fmt.Errorf("wait until namespace %s is gone: %w", name, errors.Join(context.Cause(ctx), err))
	}
	return nil
}

// untilGone waits until an object is gone, which the source tells of.
func untilGone(ctx context.Context, source cache.ListerWatcher, kind runtime.Object, name string) error {
	there := func(o any) bool {
		m, err := meta.Accessor(o)
		return err == nil && m.GetName() == name
	}
	none := func(store cache.Store) (bool, error) { return !slices.ContainsFunc(store.List(), there), nil }
	_, err := watchtools.UntilWithSync(ctx, source, kind, none, func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted && there(e.Object), nil
	})
	return err
}

// lister lists and watches objects of one kind: a client of the API server for one resource.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch lists and watches the object with a name.
func listWatch[L runtime.Object](client kubernetes.Interface, from lister[L], name string) cache.ListerWatcher {
	field := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = field
			return from.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = field
			return from.Watch(ctx, o)
		},
	}, client)
}

// makeStage makes the objects, and waits until the pods are ready.
func makeStage(ctx context.Context, o *Options, namespace string) (*stage, error) {
	s := &stage{namespace: namespace, image: o.Image, outside: o.Inside == "", nodes: o.Nodes,
		services: map[string]*corev1.Service{}}
	var pods []*corev1.Pod
	for i := range max(len(s.nodes), 2) { // One node has two servers, too.
		n := strconv.Itoa(i + 1)
		node := s.nodes[i%len(s.nodes)].Name
		pods = append(pods, s.server("server-"+n, node, map[string]string{roleLabel: "server", "server": n}))
		if i < len(s.nodes) {
			pods = append(pods, s.client("client-"+n, node, false), s.client("host-"+n, node, true))
		}
	}
	// It is never ready, so no Service may choose it.
	unready := s.server("unready", s.nodes[0].Name, map[string]string{roleLabel: "server"})
	unready.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = intstr.FromInt32(1)
	pods = append(pods, unready)
	if !o.Light {
		pods = append(pods, s.leaving(1), s.leaving(2))
	}
	pods, err := s.makePods(ctx, o.Client, pods)
	if err != nil {
		return nil, err
	}
	for _, svc := range s.allServices(o) {
		if err := s.makeService(ctx, o.Client, svc); err != nil {
			return nil, err
		}
	}
	ready, err := s.awaitReady(ctx, o.Client, slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return p == unready }))
	if err != nil {
		return nil, err
	}
	for _, p := range ready {
		switch at := (party{p, p.Spec.NodeName}); {
		case p.Labels[roleLabel] == "server":
			s.servers = append(s.servers, at)
		case p.Labels[roleLabel] == "":
			s.clients = append(s.clients, at)
		}
	}
	if err := s.makeGiven(ctx, o.Client); err != nil {
		return nil, err
	}
	if o.LoadBalancer && s.services[serviceBalanced] != nil {
		s.awaitLoadBalancer(ctx, o.Client)
	}
	if all := s.services[serviceAll]; all != nil && len(all.Spec.IPFamilies) == 1 {
		s.lacks(testFamilies, fmt.Sprintf("the cluster gives Services %s addresses only", all.Spec.IPFamilies[0]))
	}
	if !s.outside {
		s.lacks(testLocal, "clients outside were not tried, whom the policy is for: "+o.Inside)
	}
	if len(s.nodes) == 1 {
		s.lacks(testInternal, "clients without an endpoint on their node were not tried: that needs a second node")
		s.lacks(testHealth, "a node without endpoints was not tried: that needs a second node")
		s.lacks(testRanges, "clients outside of the ranges were not tried: that needs a second node")
	}
	return s, nil
}

func (s *stage) lacks(test, why string) {
	s.missing = append(s.missing, Result{Test: test, State: NotTried, Detail: why})
}

// whyNot is why nothing of a kind of check was tried.
func (s *stage) whyNot(o *Options, test string) string {
	switch test {
	case testEnds, testJoins, testLast:
		if o.Light {
			return "left out by --light"
		}
	case testLoadBalancer:
		if !o.LoadBalancer {
			return "asked for by --load-balancer"
		}
	case testOutside:
		if o.Inside != "" {
			return o.Inside
		}
	}
	return "the test ended before"
}

// makePods makes pods, and returns those that were made. A cluster may refuse pods on the nodes' network.
func (s *stage) makePods(ctx context.Context, client kubernetes.Interface, pods []*corev1.Pod) (made []*corev1.Pod,
	err error) {
	refused := ""
	for _, p := range pods {
		// The controller of ServiceAccounts may need a moment for a new namespace.
		err := retry.OnError(wait.Backoff{Duration: time.Second / 4, Factor: 2, Steps: 6}, func(err error) bool {
			return ctx.Err() == nil && apierrors.IsForbidden(err) && strings.Contains(err.Error(), "serviceaccount")
		}, func() error {
			_, err := client.CoreV1().Pods(s.namespace).Create(ctx, p, metav1.CreateOptions{})
			return err
		})
		switch {
		case err != nil && p.Spec.HostNetwork && isRefusal(err):
			refused = err.Error()
		case err != nil:
			return nil, fmt.Errorf("make pod %s: %w", p.Name, err)
		default:
			made = append(made, p)
		}
	}
	if refused != "" {
		s.lacks(testClusterIP, "processes of nodes were not tried: the API server refuses their pods: "+refused)
	}
	return made, nil
}

// isRefusal says whether the API server, or an admission webhook, does not admit an object.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// pod is a pod on a node, past the scheduler: where the test says, and on any node that works.
func (s *stage) pod(name, node string, labels map[string]string, args ...string) *corev1.Pod {
	// Of a service mesh, a sidecar would take the connections.
	meshes := map[string]string{"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
	amounts := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"),
		corev1.ResourceCPU: resource.MustParse("10m")}
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi"),
		corev1.ResourceCPU: resource.MustParse("1")}
	meta := metav1.ObjectMeta{Name: name, Labels: labels, Annotations: meshes}
	return &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeName:                      node,
		TerminationGracePeriodSeconds: new(int64),
		ActiveDeadlineSeconds:         new(int64(longestLife / time.Second)),
		AutomountServiceAccountToken:  new(bool),
		EnableServiceLinks:            new(bool),
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65534)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: container, Image: s.image, ImagePullPolicy: corev1.PullIfNotPresent,
			Args: args, Resources: corev1.ResourceRequirements{Requests: amounts, Limits: limits},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(bool),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}},
	}}
}

// server answers by HTTP and UDP with its name.
func (s *stage) server(name, node string, labels map[string]string, args ...string) *corev1.Pod {
	p := s.pod(name, node, labels, append([]string{"netexec", fmt.Sprintf("--http-port=%d", httpPort),
		fmt.Sprintf("--udp-port=%d", udpPort)}, args...)...)
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: httpPort}}
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/hostname", Port: intstr.FromInt32(httpPort)}}}
	return p
}

// client only sleeps: its connections are commands in it. On the host's network it stands for a process of the node.
// No server runs there, since anybody who reaches it may run commands in its pod.
func (s *stage) client(name, node string, host bool) *corev1.Pod {
	p := s.pod(name, node, nil, "pause")
	p.Spec.HostNetwork = host
	return p
}

// leavingDelay is how long, in seconds, a server goes on that has been told to end.
const leavingDelay = 10

// leaving is a server that ends as a well-behaved one does.
func (s *stage) leaving(n int) *corev1.Pod {
	node := s.nodes[(n-1)%len(s.nodes)].Name
	p := s.server(fmt.Sprintf("leaving-%d", n), node, map[string]string{roleLabel: serviceLeaving},
		fmt.Sprintf("--delay-shutdown=%d", leavingDelay))
	p.Spec.TerminationGracePeriodSeconds = new(int64(3 * leavingDelay))
	return p
}

// service is a Service of both families where the cluster has both, with an HTTP port and one of UDP.
func service(name string, selector map[string]string, change func(*corev1.ServiceSpec)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: selector, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		Ports: []corev1.ServicePort{
			// By its name, as many do.
			{Name: "http", Port: servicePort, TargetPort: intstr.FromString("http")},
			{Name: "udp", Port: servicePort, TargetPort: intstr.FromInt32(udpPort), Protocol: corev1.ProtocolUDP},
		}}}
	if change != nil {
		change(&svc.Spec)
	}
	return svc
}

// selectors choose all servers, or the first.
func selectors() (all, first map[string]string) {
	return map[string]string{roleLabel: "server"}, map[string]string{"server": "1"}
}

// allServices are the Services to make that need no addresses of pods.
func (s *stage) allServices(o *Options) []*corev1.Service {
	all, first := selectors()
	outsideLocal, insideLocal := corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyLocal
	services := []*corev1.Service{
		service(serviceAll, all, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }),
		service(serviceOwn, first, nil),
		service(serviceNear, first, func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &insideLocal }),
		service(serviceLocal, first, func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalTrafficPolicy, s.Ports = corev1.ServiceTypeNodePort, outsideLocal, s.Ports[:1]
		}),
		service(serviceSticky, all, func(s *corev1.ServiceSpec) {
			s.SessionAffinity, s.Ports = corev1.ServiceAffinityClientIP, s.Ports[:1]
		}),
		service(serviceEmpty, map[string]string{roleLabel: "nobody"}, func(s *corev1.ServiceSpec) { s.Ports = s.Ports[:1] }),
		service(serviceExternal, all, func(s *corev1.ServiceSpec) {
			// Of RFC 5737 and RFC 3849: nobody has them.
			s.ExternalIPs, s.Ports = []string{"198.51.100.77", "2001:db8:77::77"}, s.Ports[:1]
		}),
	}
	if !o.Light {
		services = append(services, service(serviceLeaving, map[string]string{roleLabel: serviceLeaving},
			func(s *corev1.ServiceSpec) { s.Ports = s.Ports[:1] }))
	}
	if o.LoadBalancer {
		services = append(services, service(serviceBalanced, all, func(s *corev1.ServiceSpec) {
			s.Type, s.Ports = corev1.ServiceTypeLoadBalancer, s.Ports[:1]
		}))
	}
	return services
}

// testsOf are the kinds of check that need a Service.
func testsOf(service string) []string {
	return map[string][]string{serviceAll: {testClusterIP, testName, testNodePort, testOutside}, serviceOwn: {testHairpin},
		serviceNear: {testInternal}, serviceLocal: {testLocal}, serviceSticky: {testAffinity}, serviceEmpty: {testEmpty},
		serviceExternal: {testExternalIP}, serviceBalanced: {testLoadBalancer}, serviceGiven: {testGiven, testHealth},
		serviceRanges: {testRanges}, serviceSCTP: {testSCTP},
		serviceLeaving: {testEnds, testJoins, testLast}}[service]
}

// makeService makes a Service. A cluster may refuse some kinds, such as external IPs and node ports.
func (s *stage) makeService(ctx context.Context, client kubernetes.Interface, svc *corev1.Service) error {
	made, err := client.CoreV1().Services(s.namespace).Create(ctx, svc, metav1.CreateOptions{})
	switch {
	case err != nil && isRefusal(err):
		for _, test := range testsOf(svc.Name) {
			s.lacks(test, "the API server refuses the Service: "+short(err.Error()))
		}
	case err != nil:
		return fmt.Errorf("make Service %s: %w", svc.Name, err)
	default:
		s.services[svc.Name] = made
	}
	return nil
}

// awaitReady waits until the pods are ready, and returns them in their order.
func (s *stage) awaitReady(ctx context.Context, client kubernetes.Interface,
	pods []*corev1.Pod) (ready []*corev1.Pod, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("not ready after %s", startPatience))
	defer cancel()
	for _, p := range pods {
		last := p
		_, err := watchtools.UntilWithSync(ctx, s.podWatch(client, p.Name), &corev1.Pod{}, nil,
			func(e watch.Event) (bool, error) {
				seen, is := e.Object.(*corev1.Pod)
				if !is || seen.Name != p.Name {
					return false, nil
				}
				switch last = seen; {
				case e.Type == watch.Deleted:
					return false, errors.New("somebody removed it")
				case last.Status.Phase == corev1.PodFailed:
					return false, errors.New("it does not start")
				}
				return isReady(last), nil
			})
		if err != nil {
			return nil, fmt.Errorf("wait for pod %s on node %s: %w%s", p.Name, p.Spec.NodeName,
				errors.Join(context.Cause(ctx), err), whyNotReady(last))
		}
		ready = append(ready, last)
	}
	return ready, nil
}

// podWatch lists and watches one pod.
func (s *stage) podWatch(client kubernetes.Interface, name string) cache.ListerWatcher {
	return listWatch(client, client.CoreV1().Pods(s.namespace), name)
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// whyNotReady is what the kubelet says of the pod's container.
func whyNotReady(p *corev1.Pod) string {
	if p == nil {
		return ""
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return fmt.Sprintf("; %s: %s", w.Reason, w.Message)
		}
	}
	return fmt.Sprintf("; its phase is %s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
}

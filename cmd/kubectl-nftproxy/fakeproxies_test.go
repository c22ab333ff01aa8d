package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/cmd/kubectl-nftproxy/migration"
)

// fakeProxies is an API server with the DaemonSets of both proxies, their controller, kubelets that run pods, and
// what the proxies do to the rules of each node. Time goes on with each request.
type fakeProxies struct {
	mu    sync.Mutex
	nodes map[string]*fakeNode
	sets  map[string]*appsv1.DaemonSet
	pods  map[string]*corev1.Pod
	lease *coordinationv1.Lease // nil without one
	made  int                   // objects and versions

	// onWrite is called after each change of the plugin, which have numbers from 1.
	onWrite func(number int)
	writes  int
	// onChange is called before each change of a DaemonSet, which have numbers from 1.
	onChange func(number int)
	changes  int
	// denied are the rights that the user does not have, such as "patch nodes".
	denied []string
	// config is kube-proxy's configuration file, and cleaned has the last command that removed kube-proxy's rules.
	config  string
	cleaned []string
	// replaced counts pods that were replaced by another version.
	replaced map[string]int
	// asleep says that the controller of the DaemonSets removes no pod.
	asleep bool
	// stuck is a pod of the plugin that stays although it is deleted.
	stuck string
	// old says that nftproxy is older, and has no status for rules that have to stay.
	old bool
	// noLogs says that the kubelets do not answer where logs are asked for.
	noLogs bool
	// kept is a node that a pod of kube-proxy does not leave when it is to have none.
	kept string
	// felix has the FelixConfigurations by their group; a group that is not there does not exist.
	felix map[string]string
	// felixLists is how often one was listed.
	felixLists int
	// wrong is what no plugin may cause.
	wrong []string
}

// fakeNode is a node, and its kernel.
type fakeNode struct {
	corev1.Node
	// rules are those of a proxy, by its name.
	rules map[string]fakeRules
	// red and lacking say what is wrong: a finding, rules that nftproxy lacks.
	red, lacking bool
	// ill is the proxy whose pods do not become ready.
	ill string
	// marks says that a chain of another program marks connections.
	marks bool
	// calico is what is found of Felix, if it may change its data plane.
	calico string
	// late says that it joined after the first change.
	late bool
	// deaf says that no command runs in its nftproxy.
	deaf bool
	// stays says that cleanup --kube-proxy has to leave something.
	stays bool
}

// fakeRules are rules of a proxy.
type fakeRules struct {
	there bool
	// fresh says that they were written since the proxy has last been put on the node.
	fresh bool
}

func newFakeProxies(trial bool, nodes ...string) *fakeProxies {
	f := &fakeProxies{nodes: map[string]*fakeNode{}, sets: map[string]*appsv1.DaemonSet{}, pods: map[string]*corev1.Pod{},
		replaced: map[string]int{}}
	config := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-proxy"}}
	for _, name := range []string{migration.KubeProxy, migration.Nftproxy} {
		f.sets[name] = &appsv1.DaemonSet{
			TypeMeta: metav1.TypeMeta{Kind: "DaemonSet", APIVersion: "apps/v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", UID: types.UID(name),
				ResourceVersion: f.version(), Labels: map[string]string{"app.kubernetes.io/name": name}},
			Spec: appsv1.DaemonSetSpec{
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType},
				Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": name}},
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					PriorityClassName: "system-node-critical",
					NodeSelector:      map[string]string{"kubernetes.io/os": "linux"},
					Tolerations:       []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers:        []corev1.Container{{Name: name, Image: "registry.example/" + name, Args: []string{"run"}}},
					Volumes:           []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: config}}},
				}},
			},
		}
	}
	for _, name := range nodes {
		f.addNode(name)
	}
	if trial {
		f.sets[migration.Nftproxy].Spec.Template.Spec.NodeSelector["nftproxy.io/trial"] = "true"
	}
	f.settle()
	return f
}

func (f *fakeProxies) version() string {
	f.made++
	return strconv.Itoa(f.made)
}

// addNode adds a node that has joined: it has no rules.
func (f *fakeProxies) addNode(name string) {
	n := &fakeNode{rules: map[string]fakeRules{}, late: f.writes > 0}
	n.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
	n.ObjectMeta = metav1.ObjectMeta{Name: name, UID: types.UID(name + f.version()),
		Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	f.nodes[name] = n
}

// settle lets time go on until nothing changes.
func (f *fakeProxies) settle() {
	for range 250 {
		f.tick()
	}
}

// tick is a moment: each thing that is not as it should be gets one step further.
func (f *fakeProxies) tick() {
	for name, set := range f.sets {
		set.Status.ObservedGeneration = set.Generation
		template, _ := json.Marshal(set.Spec.Template)
		for _, n := range f.nodes {
			f.tickProxy(name, set, string(template), n)
		}
	}
	for _, p := range f.pods {
		if f.nodes[p.Spec.NodeName] == nil {
			delete(f.pods, p.Name)
		} else if p.Labels["app.kubernetes.io/name"] == "nftproxy-migrate" {
			f.tickTask(p, f.nodes[p.Spec.NodeName])
		}
	}
	for _, n := range f.nodes {
		f.judge(n)
	}
}

const ageKey = "age" // annotation of a pod: how many moments it has been there

// tickProxy starts and ends the pod of a proxy on a node, which writes its rules some moments after it is ready.
func (f *fakeProxies) tickProxy(name string, set *appsv1.DaemonSet, template string, n *fakeNode) {
	pod := f.pods[name+"-"+n.Name]
	r := n.rules[name]
	wanted := cluster.IsFor(set, &n.Node)
	switch {
	case pod == nil && !wanted:
		r.fresh = false
	case pod == nil:
		f.pods[name+"-"+n.Name] = &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + n.Name, Namespace: "kube-system",
				Labels:          map[string]string{"app.kubernetes.io/name": name},
				Annotations:     map[string]string{ageKey: "0", "template": template},
				OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", UID: set.UID, Controller: new(true)}}},
			Spec:   corev1.PodSpec{NodeName: n.Name, Containers: set.Spec.Template.Spec.Containers},
			Status: corev1.PodStatus{Phase: corev1.PodPending}}
	case pod.DeletionTimestamp != nil && name == migration.KubeProxy && n.Name == f.kept && !wanted:
	case pod.DeletionTimestamp != nil:
		delete(f.pods, pod.Name)
		r.fresh = r.fresh && wanted
	case !wanted && f.asleep:
	case !wanted && !stays(set, n):
		pod.DeletionTimestamp = new(metav1.Now())
	case pod.Annotations["template"] != template && f.othersReady(name, pod) &&
		set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType:
		pod.DeletionTimestamp = new(metav1.Now())
		f.replaced[name]++
	default:
		age, _ := strconv.Atoi(pod.Annotations[ageKey])
		pod.Annotations[ageKey] = strconv.Itoa(age + 1)
		const ready, synced = 2, 100
		if age == ready && n.ill != name {
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		}
		// nftproxy is ready when it has rules, kube-proxy when it runs.
		if age == ready && name == migration.Nftproxy && n.ill != name || age == synced && name == migration.KubeProxy {
			r = fakeRules{true, true}
		}
	}
	n.rules[name] = r
}

// stays says whether a pod that is there stays: only taints with the effect NoSchedule keep new ones from the node.
func stays(set *appsv1.DaemonSet, n *fakeNode) bool {
	untainted := n.Node.DeepCopy()
	untainted.Spec.Taints = slices.DeleteFunc(untainted.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule
	})
	return cluster.IsFor(set, untainted)
}

// othersReady says whether a pod may be replaced by a new version.
func (f *fakeProxies) othersReady(name string, pod *corev1.Pod) bool {
	for _, p := range f.pods {
		if p != pod && p.Labels["app.kubernetes.io/name"] == name && len(p.Status.Conditions) == 0 {
			return false
		}
	}
	return true
}

// judge notes a node that has no rules of a proxy that keeps them up to date.
func (f *fakeProxies) judge(n *fakeNode) {
	serving := false
	for name, set := range f.sets {
		serving = serving || n.rules[name].fresh && (f.pods[name+"-"+n.Name] != nil || cluster.IsFor(set, &n.Node))
	}
	young := true // a node that has joined
	for name := range f.sets {
		young = young && !n.rules[name].there
	}
	if _, had := n.Annotations["had"]; !serving && (!young || had) {
		f.wrong = append(f.wrong, fmt.Sprintf("after write %d: node %s has no proxy that serves", f.writes, n.Name))
	}
	if serving {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, "had", "a proxy")
	}
}

// tickTask runs a pod of the plugin, one state for each moment.
func (f *fakeProxies) tickTask(p *corev1.Pod, n *fakeNode) {
	switch {
	case p.DeletionTimestamp != nil && p.Name == f.stuck:
	case p.DeletionTimestamp != nil:
		delete(f.pods, p.Name)
	case p.Status.Phase == corev1.PodPending:
		p.Status.Phase = corev1.PodRunning
	case p.Status.Phase == corev1.PodRunning:
		out, exit := f.command(n, p.Spec.Containers[0].Args, p.Spec.HostPID, true)
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, "log", out)
		p.Status.Phase = corev1.PodSucceeded
		if exit != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "nftproxy", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(exit)}}}}
	}
}

// command is nftproxy's binary on a node.
func (f *fakeProxies) command(n *fakeNode, args []string, seesProcesses, seesStderr bool) (out string, exit int) {
	running := func(name string) bool { return f.pods[name+"-"+n.Name] != nil }
	switch strings.Join(args[:min(2, len(args))], " ") {
	case "check -o":
		if n.red {
			return `{"level":"red","findings":[{"probe":"kernel","level":"red","found":"it is too old","do":"update it"}]}`, 2
		}
		if n.marks {
			return `{"level":"yellow","findings":[{"probe":"marks: ip nat AWS","level":"yellow","found":"it marks"}]}`, 1
		}
		if n.calico != "" {
			return `{"level":"yellow","findings":[{"probe":"calico","level":"yellow","found":"` + n.calico + `"}]}`, 1
		}
		return "a warning\n" + `{"level":"yellow","findings":[{"probe":"rights","level":"green","found":"all"},` +
			`{"probe":"proxies","level":"yellow","found":"kube-proxy runs"}]}`, 1
	case "verify -o":
		return `{"same":true,"services":3}`, 0
	case "proxies -o":
		if seesStderr {
			return "a warning with {braces}\n" + f.proxies(n) + "\nanother {", 0
		}
		return f.proxies(n), 0
	case "cleanup --kube-proxy":
		f.cleaned = args
		switch {
		case !seesProcesses || running(migration.KubeProxy),
			!n.rules[migration.Nftproxy].fresh && !slices.Contains(args, "--force"):
			return "nftproxy: refused", 1
		case n.calico != "" && !slices.Contains(args, "--accept-calico"):
			return "nftproxy: ip kube-proxy keeps an empty chain", 3
		case n.stays && f.old:
			return "nftproxy: rules of a firewall stay", 1
		case n.stays:
			return "nftproxy: rules of a firewall stay", 3
		}
		n.rules[migration.KubeProxy] = fakeRules{}
		return "removed", 0
	case "cleanup":
		if running(migration.Nftproxy) {
			f.wrong = append(f.wrong, "nftproxy is cleaned while it runs on "+n.Name)
			return "nftproxy: refused", 1
		}
		if n.rules[migration.Nftproxy].there && !n.rules[migration.KubeProxy].fresh {
			f.wrong = append(f.wrong, "nftproxy is cleaned before kube-proxy has its rules on "+n.Name)
		}
		n.rules[migration.Nftproxy] = fakeRules{}
		return "removed", 0
	}
	return "nftproxy: unknown command " + strings.Join(args, " "), 2
}

// proxies is what nftproxy proxies prints.
func (f *fakeProxies) proxies(n *fakeNode) string {
	type proxy struct {
		Name      string   `json:"name"`
		Rules     []string `json:"rules"`
		Frontends int      `json:"frontends"`
		Lacks     []string `json:"lacks"`
	}
	var list []proxy
	names := []string{migration.Nftproxy, migration.KubeProxy}
	for i, name := range names {
		p := proxy{Name: name, Rules: []string{}, Lacks: []string{}}
		if n.rules[name].there {
			p.Rules, p.Frontends = []string{"ip " + name}, 3
		} else if n.rules[names[1-i]].there {
			p.Lacks = []string{"10.96.0.1:443/TCP", "10.96.0.10:53/TCP", "10.96.0.10:53/UDP"}
		}
		if n.lacking && name == migration.Nftproxy {
			p.Lacks = []string{"10.96.0.10:53/UDP"}
		}
		list = append(list, p)
	}
	answer := map[string]any{"proxies": list}
	if n.calico != "" {
		answer["felix"] = map[string]any{"after": map[bool]string{true: "iptables", false: "unknown"}[strings.Contains(
			n.calico, "FELIX_")]}
	}
	text, _ := json.Marshal(answer)
	return string(text)
}

// exec is a command in nftproxy's pod. One that waits lets time go on.
func (f *fakeProxies) exec(node string, args []string) (string, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[node]
	if n == nil || n.deaf {
		return "", 1
	}
	i := slices.Index(args, "--await")
	if i < 0 {
		return f.command(n, args, false, false)
	}
	for range 200 {
		var p struct {
			Proxies []struct {
				Name         string
				Rules, Lacks []string
			}
		}
		_ = json.Unmarshal([]byte(f.proxies(n)), &p)
		for _, q := range p.Proxies {
			if q.Name == args[i+1] && len(q.Rules) > 0 && len(q.Lacks) == 0 {
				return f.proxies(n), 0
			}
		}
		f.tick()
	}
	return f.proxies(n), 1
}

// state is all that a migration changes, as text. The label of the trial may stay where it has no effect: an old
// overlay may come back.
func (f *fakeProxies) state() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.sets)) {
		s := f.sets[name]
		text, _ := json.Marshal(map[string]any{"selector": s.Spec.Template.Spec.NodeSelector,
			"affinity": s.Spec.Template.Spec.Affinity, "update": s.Spec.UpdateStrategy.Type})
		fmt.Fprintf(&b, "%s: %s\n", name, text)
	}
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		n := f.nodes[name]
		trial := n.Labels["nftproxy.io/trial"]
		if f.sets[migration.Nftproxy].Spec.Template.Spec.NodeSelector["nftproxy.io/trial"] == "" {
			trial = ""
		}
		fmt.Fprintf(&b, "%s: %v, trial=%q, kube-proxy=%q\n", name, n.rules, trial, n.Labels["nftproxy.io/kube-proxy"])
	}
	for _, name := range slices.Sorted(maps.Keys(f.pods)) {
		fmt.Fprintln(&b, name)
	}
	return b.String()
}

// server is the API server for one run of the plugin, which ends after a write, as if the plugin was killed; 0 for
// never.
func (f *fakeProxies) server(killAfter int, killed func()) http.Handler {
	first := f.writes
	dead := false
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		if dead {
			f.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		f.tick()
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		if parts[len(parts)-1] == "exec" {
			var pods []corev1.Pod
			for _, p := range f.pods {
				pods = append(pods, *p)
			}
			f.mu.Unlock()
			(&fakeCluster{run: f.exec, pods: pods}).exec(w, r, parts[len(parts)-2])
			return
		}
		defer f.mu.Unlock()
		answer, code := f.answer(r, parts)
		if code == 0 { // It never answers.
			f.mu.Unlock()
			<-r.Context().Done()
			f.mu.Lock()
			return
		}
		kind := parts[len(parts)-1]
		if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "leases") && kind != "selfsubjectaccessreviews" {
			f.writes++
			if f.onWrite != nil {
				f.onWrite(f.writes)
			}
			if f.writes-first == killAfter {
				dead = true
				killed()
				panic(http.ErrAbortHandler)
			}
		}
		if text, is := answer.(string); is {
			_, _ = w.Write([]byte(text))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer)
	})
}

func status(code int, reason metav1.StatusReason) (any, int) {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason,
		Code: int32(code), Message: string(reason)}, code
}

// read reads the object of a request, which may be protobuf.
func read[T runtime.Object](r *http.Request) T {
	body, _ := io.ReadAll(r.Body)
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		panic(err)
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	return object.(T)
}

// answer handles one request. parts are those of the path.
func (f *fakeProxies) answer(r *http.Request, parts []string) (any, int) {
	at := func(resource string) (name string, is bool) {
		i := slices.Index(parts, resource)
		if i < 0 {
			return "", false
		}
		return strings.Join(parts[i+1:], "/"), true
	}
	if _, is := at("selfsubjectaccessreviews"); is {
		review := read[*authorizationv1.SelfSubjectAccessReview](r)
		asked := review.Spec.ResourceAttributes
		review.Status.Allowed = !slices.Contains(f.denied, asked.Verb+" "+asked.Resource)
		return review, http.StatusCreated
	}
	if _, is := at("configmaps"); is {
		return corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
			Data: map[string]string{"config.conf": f.config}}, http.StatusOK
	}
	if _, is := at("leases"); is {
		return f.answerLease(r)
	}
	if name, is := at("pods"); is {
		return f.answerPods(r, name)
	}
	if name, is := at("daemonsets"); is {
		return f.answerSets(r, name)
	}
	if name, is := at("nodes"); is {
		return f.answerNodes(r, name)
	}
	if _, is := at("felixconfigurations"); is && f.felix[parts[1]] == "forbidden" {
		return status(http.StatusForbidden, metav1.StatusReasonForbidden)
	} else if is && f.felix[parts[1]] != "" {
		f.felixLists++
		return f.felix[parts[1]], http.StatusOK
	}
	return status(http.StatusNotFound, metav1.StatusReasonNotFound)
}

func (f *fakeProxies) answerLease(r *http.Request) (any, int) {
	if r.Method == http.MethodGet {
		if f.lease == nil {
			return status(http.StatusNotFound, metav1.StatusReasonNotFound)
		}
		return f.lease, http.StatusOK
	}
	if r.Method == http.MethodDelete {
		f.lease = nil
		return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"}, http.StatusOK
	}
	f.lease = read[*coordinationv1.Lease](r)
	return f.lease, http.StatusOK
}

func listOf(kind, version string, items any) (any, int) {
	return map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{}, "items": items}, http.StatusOK
}

func selectorOf(r *http.Request) labels.Selector {
	s, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return labels.Nothing()
	}
	return s
}

func (f *fakeProxies) answerPods(r *http.Request, name string) (any, int) {
	name, sub, _ := strings.Cut(name, "/")
	p := f.pods[name]
	switch {
	case r.Method == http.MethodPost:
		p = read[*corev1.Pod](r)
		p.Namespace, p.Status.Phase = "kube-system", corev1.PodPending
		f.pods[p.Name] = p
		if p.Spec.Containers[0].Args[0] == "check" && p.Spec.PriorityClassName != "" {
			f.wrong = append(f.wrong, "a check may take the place of other pods")
		}
		return p, http.StatusCreated
	case name == "":
		items := []corev1.Pod{}
		field, _ := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
		for _, p := range f.pods {
			if selectorOf(r).Matches(labels.Set(p.Labels)) && field.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName}) {
				items = append(items, *p)
			}
		}
		return listOf("PodList", "v1", items)
	case p == nil:
		return status(http.StatusNotFound, metav1.StatusReasonNotFound)
	case sub == "log" && f.noLogs:
		return nil, 0
	case sub == "log":
		return p.Annotations["log"], http.StatusOK
	case r.Method == http.MethodDelete:
		p.DeletionTimestamp = new(metav1.Now())
	}
	return p, http.StatusOK
}

// patched applies a patch as the API server does, with its conditions.
func (f *fakeProxies) patched(r *http.Request, object metav1.Object) int {
	var patch struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	body := json.RawMessage{}
	_ = json.NewDecoder(r.Body).Decode(&body)
	_ = json.Unmarshal(body, &patch)
	if v := patch.Metadata.ResourceVersion; v != "" && v != object.GetResourceVersion() {
		return http.StatusConflict
	}
	if u := patch.Metadata.UID; u != "" && u != string(object.GetUID()) {
		return http.StatusConflict
	}
	was, _ := json.Marshal(object)
	is, err := strategicpatch.StrategicMergePatch(was, body, object)
	if err != nil {
		return http.StatusUnprocessableEntity
	}
	switch o := object.(type) {
	case *corev1.Node:
		*o = corev1.Node{}
	case *appsv1.DaemonSet:
		*o = appsv1.DaemonSet{}
	}
	_ = json.Unmarshal(is, object)
	object.SetResourceVersion(f.version())
	return http.StatusOK
}

func (f *fakeProxies) answerSets(r *http.Request, name string) (any, int) {
	if name == "" {
		items := []appsv1.DaemonSet{}
		for _, s := range f.sets {
			if selectorOf(r).Matches(labels.Set(s.Labels)) {
				items = append(items, *s)
			}
		}
		return listOf("DaemonSetList", "apps/v1", items)
	}
	s := f.sets[name]
	if s != nil {
		f.report(s)
	}
	if s == nil {
		return status(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	if r.Method == http.MethodPatch {
		f.changes++
		if f.onChange != nil {
			f.onChange(f.changes)
		}
		was := s.DeepCopy()
		if code := f.patched(r, s); code != http.StatusOK {
			return status(code, metav1.StatusReasonConflict)
		}
		s.Generation++
		for _, n := range f.nodes {
			if cluster.IsFor(was, &n.Node) == cluster.IsFor(s, &n.Node) {
				continue
			}
			// One that joins between the look and the change has what the change says, if it has a proxy then.
			other := f.sets[map[string]string{migration.Nftproxy: migration.KubeProxy,
				migration.KubeProxy: migration.Nftproxy}[name]]
			if !n.late || !cluster.IsFor(s, &n.Node) && !cluster.IsFor(other, &n.Node) {
				f.wrong = append(f.wrong, fmt.Sprintf("the change of the DaemonSet %s changes which proxy %s has", name, n.Name))
			}
		}
	}
	return s, http.StatusOK
}

// report sets the status of a DaemonSet.
func (f *fakeProxies) report(s *appsv1.DaemonSet) {
	s.Status = appsv1.DaemonSetStatus{ObservedGeneration: s.Status.ObservedGeneration}
	template, _ := json.Marshal(s.Spec.Template)
	for _, n := range f.nodes {
		if !cluster.IsFor(s, &n.Node) {
			continue
		}
		s.Status.DesiredNumberScheduled++
		p := f.pods[s.Name+"-"+n.Name]
		if p != nil && p.Annotations["template"] == string(template) {
			s.Status.UpdatedNumberScheduled++
		}
		if p == nil || len(p.Status.Conditions) == 0 || n.Status.Conditions[0].Status != corev1.ConditionTrue {
			s.Status.NumberUnavailable++
		}
	}
}

func (f *fakeProxies) answerNodes(r *http.Request, name string) (any, int) {
	if name == "" {
		items := []corev1.Node{}
		for _, n := range slices.Sorted(maps.Keys(f.nodes)) {
			if selectorOf(r).Matches(labels.Set(f.nodes[n].Labels)) {
				items = append(items, f.nodes[n].Node)
			}
		}
		return listOf("NodeList", "v1", items)
	}
	n := f.nodes[name]
	if n == nil {
		return status(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	if r.Method == http.MethodPatch {
		if code := f.patched(r, &n.Node); code != http.StatusOK {
			return status(code, metav1.StatusReasonConflict)
		}
	}
	return n.Node, http.StatusOK
}

// copy is the same cluster once more.
func (f *fakeProxies) copy() *fakeProxies {
	c := &fakeProxies{nodes: map[string]*fakeNode{}, sets: map[string]*appsv1.DaemonSet{}, pods: map[string]*corev1.Pod{},
		made: f.made, replaced: map[string]int{}}
	for name, n := range f.nodes {
		m := *n
		m.Node, m.rules = *n.Node.DeepCopy(), maps.Clone(n.rules)
		c.nodes[name] = &m
	}
	for name, s := range f.sets {
		c.sets[name] = s.DeepCopy()
	}
	for name, p := range f.pods {
		c.pods[name] = p.DeepCopy()
	}
	return c
}

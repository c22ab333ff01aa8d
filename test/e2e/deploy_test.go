package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"nftproxy/conntrack"
	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// deployed is the name of everything in deploy/.
const deployed = "nftproxy"

// TestDeploy applies deploy/ to the API server and runs the proxy as the
// DaemonSet's container would: with its arguments, environment, service account,
// capabilities and read-only root.
func TestDeploy(t *testing.T) {
	n := newNode(t)
	n.applyDeploy()
	daemonSet, err := n.plane.client.AppsV1().DaemonSets("kube-system").Get(n.ctx, deployed, metav1.GetOptions{})
	n.must(err)
	n.admitPod(daemonSet)

	client := n.addClient()
	web := n.create(service("web", "web"))
	n.runPod("web-1", "web")
	spec := &daemonSet.Spec.Template.Spec
	container := &spec.Containers[0]
	p := n.run(n.containerCommand(spec))
	p.awaitSync(0)
	n.soon("the readiness probe", func() error { return n.probe(container.ReadinessProbe) })
	n.soon("the liveness probe", func() error { return n.probe(container.LivenessProbe) })
	n.soon("the pod serves", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(client, protocol, address(web, protocol, family), "web-1")
		})
	})
	// The configuration's cluster CIDR has arrived: from elsewhere, masqueraded.
	peer, err := n.peer(n.Node, testnet.TCP, address(web, testnet.TCP, ip.V4))
	if n.must(err); peer != n.NodeAddrs.V4() {
		t.Errorf("the server saw %v, want the node masqueraded as %v", peer, n.NodeAddrs.V4())
	}
	n.runPod("web-2", "web")
	n.soon("two pods serve", func() error { // The deployed log level names no later sync to wait for.
		return n.reaches(client, testnet.TCP, address(web, testnet.TCP, ip.V4), "web-1", "web-2")
	})

	const netAdmin = "0000000000001000" // 1 << CAP_NET_ADMIN
	const user = "65532\t65532\t65532\t65532"
	if diff := cmp.Diff([]string{user, netAdmin, netAdmin, netAdmin, "1"}, p.status("Uid", "CapPrm", "CapEff", "CapBnd",
		"NoNewPrivs")); diff != "" {
		t.Errorf("rights of the process (-want +got):\n%s", diff)
	}
	const timeout = "net.netfilter.nf_conntrack_tcp_timeout_established"
	if got, err := n.Node.ReadSysctl(timeout); got != "86400" || err != nil {
		t.Errorf("%s is %q (%v), want kube-proxy's 86400", timeout, got, err)
	}
	lines, _ := p.Logged(0)
	for _, l := range lines {
		if l.Has("net.netfilter.nf_conntrack", conntrack.ErrHostOnly.Error()) {
			continue // The test's machine has a small table, and the node is not its own network namespace.
		}
		if l.Level == "WARN" && l.Has("waiting for ") && !strings.Contains(l.Text, "forbidden") {
			continue // A list that takes longer than a second is no fault of the manifests.
		}
		if l.Level == "WARN" || l.Level == "ERROR" || strings.Contains(l.Text, "forbidden") {
			t.Errorf("in the log: %s", l.Text)
		}
	}
	p.stop()
}

// TestDeployKubeadm applies the overlay for kubeadm beside the ConfigMap that kubeadm
// writes, and runs the proxy as the DaemonSet's container would: the file and the
// arguments are kubeadm's own.
func TestDeployKubeadm(t *testing.T) {
	n := newNode(t)
	archive, err := txtar.ParseFile("../../daemon/kubeproxyconfig/testdata/kubeadm.txtar")
	n.must(err)
	kubeconfig := "apiVersion: v1\nkind: Config\ncurrent-context: default\n" +
		"clusters: [{name: default, cluster: {certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt, " +
		"server: " +
		strconv.Quote(n.plane.cluster.Client().Host) + "}}]\n" +
		"contexts: [{name: default, context: {cluster: default, namespace: default, user: default}}]\n" +
		"users: [{name: default, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]\n"
	configs := n.plane.client.CoreV1().ConfigMaps("kube-system")
	_, err = configs.Create(n.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Data: map[string]string{
			"config.conf":     strings.ReplaceAll(string(archive.Files[0].Data), "10.244.0.0/16", n.clusterCIDR()),
			"kubeconfig.conf": kubeconfig,
		},
	}, metav1.CreateOptions{})
	n.must(err)
	t.Cleanup(func() { n.must(configs.Delete(context.Background(), "kube-proxy", metav1.DeleteOptions{})) })
	n.must(n.plane.cluster.Apply(n.ctx, renderDeploy(t, "overlays/kubeadm", nil)))
	daemonSet, err := n.plane.client.AppsV1().DaemonSets("kube-system").Get(n.ctx, deployed, metav1.GetOptions{})
	n.must(err)
	client := n.addClient()
	web := n.create(service("web", "web"))
	n.runPod("web-1", "web")
	spec := &daemonSet.Spec.Template.Spec
	p := n.run(n.containerCommand(spec))
	p.awaitSync(0)
	n.soon("the readiness probe", func() error { return n.probe(spec.Containers[0].ReadinessProbe) })
	n.soon("the pod serves", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(client, protocol, address(web, protocol, family), "web-1")
		})
	})
	p.stop()
}

// TestManifests has the API server check every kustomization and the Helm chart, with no field unknown, and
// has nftproxy parse the arguments of every container.
func TestManifests(t *testing.T) {
	n := newNode(t)
	texts := map[string]string{}
	for _, folder := range []string{"overlays/kubeadm", "overlays/trial", "overlays/gated", "cleanup/nftproxy",
		"cleanup/kube-proxy"} {
		texts[folder] = renderDeploy(t, folder, nil)
	}
	// What the chart makes if every value is set. The tests of hack/helm hold the chart to the file, and to the overlays.
	everything, err := os.ReadFile("../../hack/helm/chart/testdata/everything.yaml")
	n.must(err)
	texts["helm"] = string(everything)
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			if err := n.plane.cluster.Check(n.ctx, text); err != nil {
				t.Error(err)
			}
			commands := 0
			for _, c := range containers(t, text) {
				commands++
				if out, err := exec.Command(shared.nftproxy(t), append(c.Args, "--help")...).CombinedOutput(); err != nil {
					t.Errorf("nftproxy %s: %v: %s", strings.Join(c.Args, " "), err, out)
				}
				if name != "helm" && !strings.HasPrefix(c.Image, "localhost/nftproxy:") {
					t.Errorf("container %s has the image %s", c.Name, c.Image)
				}
			}
			if commands == 0 {
				t.Error("no container")
			}
		})
	}
}

// TestPlaceholder: the API server refuses the DaemonSet whose address of the API server
// is not set, and says which one is meant.
func TestPlaceholder(t *testing.T) {
	n := newNode(t)
	for _, folder := range []string{"base", "overlays/elsewhere"} {
		err := n.plane.cluster.Check(n.ctx, renderDeploy(t, folder, nil))
		if text := fmt.Sprint(err); strings.Count(text, "\n") > 0 ||
			!strings.Contains(text, `DaemonSet.apps "nftproxy" is invalid`) ||
			!strings.Contains(text, "PLACEHOLDER-set-the-address-of-your-API-server") {
			t.Errorf("%s: the API server says %q, want a refusal of the DaemonSet with the placeholder", folder, text)
		}
	}
}

// containers lists those of the DaemonSets in manifests, the init containers too.
func containers(t *testing.T, manifests string) []corev1.Container {
	t.Helper()
	var list []corev1.Container
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var d appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
			t.Fatal(err)
		}
		if d.Kind == "DaemonSet" {
			list = append(append(list, d.Spec.Template.Spec.InitContainers...), d.Spec.Template.Spec.Containers...)
		}
	}
	return list
}

// TestRBAC checks that the service account may do what the informers need, and
// write events (TestEvents), and nothing more than any other, and that a right that is missing is named.
func TestRBAC(t *testing.T) {
	n := newNode(t)
	n.applyDeploy()
	got := n.rights(deployed)
	for right := range n.rights("default") {
		delete(got, right)
	}
	var want []string
	for _, resource := range []string{"/nodes", "/services", "discovery.k8s.io/endpointslices",
		"networking.k8s.io/servicecidrs"} {
		want = append(want, resource+" list", resource+" watch")
	}
	all := slices.Sorted(slices.Values(append([]string{"/events create", "/events patch"}, want...)))
	if diff := cmp.Diff(all, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("rights beyond those of every service account (-want +got):\n%s", diff)
	}

	kubeconfig, err := n.plane.cluster.ServiceAccountKubeconfig(n.ctx, "kube-system", deployed)
	n.must(err)
	for _, right := range want {
		t.Run("without "+right, func(t *testing.T) {
			resource, verb, _ := strings.Cut(right, " ")
			_, resource, _ = strings.Cut(resource, "/")
			t.Cleanup(n.applyDeploy)
			n.revoke(resource, verb)
			p := runIn(t, n.Node, n.proxyCommand("--kubeconfig="+kubeconfig))
			p.awaitText(0, "WARN", verb+" "+resource, "forbidden", "cannot "+verb+" resource", "trying again")
			p.stop()
		})
	}
}

// applyDeploy applies the manifests for clusters without kubeadm, with what a person
// would enter: where the API server is, and the range of the pods.
func (n *node) applyDeploy() {
	n.t.Helper()
	api, err := url.Parse(n.plane.cluster.Client().Host)
	n.must(err)
	// The first lines of a comment are not part of the patch.
	edit := strings.NewReplacer("\n#", "\n", "ADDRESS", api.Hostname(), "6443", api.Port())
	const kustomization = "overlays/elsewhere/kustomization.yaml"
	n.must(n.plane.cluster.Apply(n.ctx, renderDeploy(n.t, "overlays/elsewhere", func(name string, text []byte) []byte {
		switch name {
		case kustomization:
			before, patches, found := strings.Cut(string(text), "\n#patches:")
			if !found {
				n.t.Fatalf("%s has no place for the API server's address", name)
			}
			return []byte(before + "\n" + edit.Replace("\n#patches:"+patches))
		case "overlays/elsewhere/config.conf":
			return []byte(strings.NewReplacer(`detectLocalMode: NodeCIDR`, `detectLocalMode: ClusterCIDR`, `clusterCIDR: ""`,
				`clusterCIDR: "`+n.clusterCIDR()+`"`).Replace(string(text)))
		}
		return text
	})))
	// A right that an earlier test has taken away may be the last to come back.
	for resource, verbs := range deployedRights() {
		for _, verb := range verbs {
			n.awaitAccess(resource, verb, true)
		}
	}
}

// deployedRights are what the informers and the writer of events need.
func deployedRights() map[string][]string {
	follow := []string{"list", "watch"}
	return map[string][]string{
		"nodes": follow, "services": follow, "endpointslices": follow, "servicecidrs": follow, "events": {"create", "patch"},
	}
}

// admitPod has the API server admit a pod of the DaemonSet, but not keep it.
func (n *node) admitPod(d *appsv1.DaemonSet) {
	n.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: deployed + "-", Labels: d.Spec.Template.Labels},
		Spec:       d.Spec.Template.Spec,
	}
	pod.Spec.NodeName = n.name
	made, err := n.plane.client.CoreV1().Pods("kube-system").Create(n.ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	n.must(err)
	if made.Spec.Priority == nil || *made.Spec.Priority < 2_000_000_000 {
		n.t.Errorf("the pod's priority is %v, want that of a critical one", made.Spec.Priority)
	}
}

// status reads fields of /proc/PID/status.
func (p *process) status(fields ...string) []string {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	values := make([]string, len(fields))
	for l := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(l, ":")
		if i := slices.Index(fields, name); i >= 0 {
			values[i] = strings.TrimSpace(value)
		}
	}
	return values
}

// rights lists what a service account of kube-system may do, as "group/resource
// verb" or "URL verb".
func (n *node) rights(account string) map[string]bool {
	n.t.Helper()
	kubeconfig, err := n.plane.cluster.ServiceAccountKubeconfig(n.ctx, "kube-system", account)
	n.must(err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	n.must(err)
	config.Dial = n.plane.cluster.Client().Dial
	client, err := kubernetes.NewForConfig(config)
	n.must(err)
	review, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(n.ctx,
		&authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "kube-system"},
		}, metav1.CreateOptions{})
	n.must(err)
	if review.Status.Incomplete {
		n.t.Logf("the review is incomplete: %s", review.Status.EvaluationError)
	}
	rights := map[string]bool{}
	for _, r := range review.Status.ResourceRules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					rights[group+"/"+resource+" "+verb] = true
				}
			}
		}
	}
	for _, r := range review.Status.NonResourceRules {
		for _, u := range r.NonResourceURLs {
			for _, verb := range r.Verbs {
				rights[u+" "+verb] = true
			}
		}
	}
	return rights
}

// revoke takes one verb on one resource from the role, and returns when the API
// server's authorizer has noticed.
func (n *node) revoke(resource, verb string) {
	n.t.Helper()
	roles := n.plane.client.RbacV1().ClusterRoles()
	role, err := roles.Get(n.ctx, deployed, metav1.GetOptions{})
	n.must(err)
	var rules []rbacv1.PolicyRule
	for _, r := range role.Rules {
		for _, one := range r.Resources {
			left := rbacv1.PolicyRule{APIGroups: r.APIGroups, Resources: []string{one}, Verbs: slices.Clone(r.Verbs)}
			if one == resource {
				left.Verbs = slices.DeleteFunc(left.Verbs, func(v string) bool { return v == verb })
			}
			rules = append(rules, left)
		}
	}
	role.Rules = rules
	_, err = roles.Update(n.ctx, role, metav1.UpdateOptions{})
	n.must(err)
	n.awaitAccess(resource, verb, false)
}

// awaitAccess asks the authorizer, which follows roles a little behind, until it
// answers as wanted.
func (n *node) awaitAccess(resource, verb string, want bool) {
	n.t.Helper()
	attributes := &authorizationv1.ResourceAttributes{Resource: resource, Verb: verb}
	switch resource {
	case "endpointslices":
		attributes.Group = "discovery.k8s.io"
	case "servicecidrs":
		attributes.Group = "networking.k8s.io"
	}
	for {
		review, err := n.plane.client.AuthorizationV1().SubjectAccessReviews().Create(n.ctx,
			&authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User: "system:serviceaccount:kube-system:" + deployed, Groups: []string{"system:serviceaccounts"},
					ResourceAttributes: attributes,
				},
			}, metav1.CreateOptions{})
		n.must(err) // at the end of the context, if not before
		if review.Status.Allowed == want {
			return
		}
	}
}

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const startupTaint = "nftproxy.io/starting"

// TestStartupTaint: with the rights of deploy/overlays/gated, the proxy removes the
// start-up taint from its own Node once its first program is in, and only that taint. The
// API server lets its pod change nothing else.
func TestStartupTaint(t *testing.T) {
	n := newNode(t)
	manifests := renderDeploy(t, "overlays/gated", nil)
	n.must(n.plane.cluster.Apply(n.ctx, manifests))
	t.Cleanup(func() { n.must(n.plane.cluster.Delete(context.Background(), manifests)) })
	other := n.name + "-other"
	_, err := n.plane.client.CoreV1().Nodes().Create(n.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other}},
		metav1.CreateOptions{})
	n.must(err)
	t.Cleanup(func() {
		n.must(n.plane.client.CoreV1().Nodes().Delete(context.Background(), other, metav1.DeleteOptions{}))
	})
	const kept = "example.org/dedicated"
	for _, name := range []string{n.name, other} {
		n.setTaints(name, startupTaint, kept)
	}
	config := n.podConfig()
	client, err := kubernetes.NewForConfig(config)
	n.must(err)
	n.soon("the policy in force", func() error {
		return n.refusedPatch(client, other, removeFirst, "only the Node of its own pod")
	})
	n.must(n.refusedPatch(client, n.name, `[{"op":"remove","path":"/spec/taints/1"}]`, "only nftproxy.io/starting"),
		n.refusedPatch(client, n.name, `[{"op":"add","path":"/spec/taints/-","value":{"key":"a","effect":"NoSchedule"}}]`,
			"only nftproxy.io/starting"))
	for _, more := range [][2]string{
		{`{"op":"add","path":"/metadata/labels/a","value":"b"}`, "metadata"},
		{`{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}`, "metadata"},
		{`{"op":"add","path":"/metadata/finalizers","value":["example.org/a"]}`, "metadata"},
		{`{"op":"add","path":"/spec/unschedulable","value":true}`, "nothing in the spec"},
		{`{"op":"add","path":"/spec/podCIDRs","value":["10.1.0.0/24"]},{"op":"add","path":"/spec/podCIDR",` +
			`"value":"10.1.0.0/24"}`, "nothing in the spec"},
	} {
		n.must(n.refusedPatch(client, n.name, `[{"op":"remove","path":"/spec/taints/0"},`+more[0]+`]`, more[1]))
	}
	unbound, err := n.plane.cluster.ServiceAccountKubeconfig(n.ctx, "kube-system", deployed)
	n.must(err)
	n.must(n.refusedPatch(n.clientOf(unbound), n.name, removeFirst, "only the Node of its own pod"))

	kubeconfig := n.writeKubeconfig(config)
	p := n.run(exec.Command(shared.nftproxy(t), "run", "--kubeconfig="+kubeconfig, "--hostname-override="+n.name, "-v=2",
		"--nftproxy-startup-taint="+startupTaint))
	_, synced := p.awaitSync(0)
	p.awaitText(synced, "INFO", "removed the start-up taint from the Node", n.name)
	if diff := n.taintsAre(n.name, kept); diff != nil {
		t.Error(diff)
	}
	// The kubelet registers the Node again.
	n.setTaints(n.name, kept, startupTaint)
	p.until("the taint goes again", func() error { return n.taintsAre(n.name, kept) })
	if err := n.taintsAre(other, startupTaint, kept); err != nil {
		t.Error(err)
	}
	p.stop()
}

const removeFirst = `[{"op":"remove","path":"/spec/taints/0"}]`

// setTaints sets the taints of a Node by their keys, as an administrator.
func (n *node) setTaints(name string, keys ...string) {
	n.t.Helper()
	var list []string
	for _, key := range keys {
		list = append(list, fmt.Sprintf(`{"key":%q,"effect":"NoSchedule"}`, key))
	}
	patch := `{"metadata":{"labels":{"kubernetes.io/os":"linux"}},"spec":{"taints":[` + strings.Join(list, ",") + `]}}`
	_, err := n.plane.client.CoreV1().Nodes().Patch(n.ctx, name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	n.must(err)
}

// taintsAre returns an error unless the keys of the Node's taints are these, in order.
// Those of Kubernetes itself do not count.
func (n *node) taintsAre(name string, want ...string) error {
	object, err := n.plane.client.CoreV1().Nodes().Get(n.ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var got []string
	for _, t := range object.Spec.Taints {
		if !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			got = append(got, t.Key)
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("Node %s has the taints %q, want %q", name, got, want)
	}
	return nil
}

// refusedPatch returns an error unless the API server refuses a JSON patch of a Node with
// these words.
func (n *node) refusedPatch(client kubernetes.Interface, name, patch, words string) error {
	_, err := client.CoreV1().Nodes().Patch(n.ctx, name, types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil || !strings.Contains(err.Error(), words) {
		return fmt.Errorf("patch %s of Node %s: error %w, want %q", patch, name, err, words)
	}
	return nil
}

// podConfig makes a pod of the DaemonSet on the node, and returns the configuration of a
// client with its token, as the kubelet asks for it: bound to the pod.
func (n *node) podConfig() *rest.Config {
	n.t.Helper()
	daemonSet, err := n.plane.client.AppsV1().DaemonSets("kube-system").Get(n.ctx, deployed, metav1.GetOptions{})
	n.must(err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: deployed + "-" + n.name}, Spec: daemonSet.Spec.Template.Spec}
	pod.Spec.NodeName = n.name
	pods := n.plane.client.CoreV1().Pods("kube-system")
	pod, err = pods.Create(n.ctx, pod, metav1.CreateOptions{})
	n.must(err)
	n.t.Cleanup(func() {
		now := int64(0) // No kubelet is there to stop it.
		n.must(pods.Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	})
	answer, err := n.plane.client.CoreV1().ServiceAccounts("kube-system").CreateToken(n.ctx, deployed,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod",
				APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
		}, metav1.CreateOptions{})
	n.must(err)
	config := rest.AnonymousClientConfig(n.plane.cluster.Client())
	config.BearerToken = answer.Status.Token
	return config
}

// clientOf returns a client with a kubeconfig, which dials where the API server is.
func (n *node) clientOf(kubeconfig string) kubernetes.Interface {
	n.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	n.must(err)
	config.Dial = n.plane.cluster.Client().Dial
	client, err := kubernetes.NewForConfig(config)
	n.must(err)
	return client
}

// writeKubeconfig writes a file with the server, its certificate and the token of a
// configuration.
func (n *node) writeKubeconfig(config *rest.Config) string {
	n.t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile,
		CertificateAuthorityData: config.CAData}
	k.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	k.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	k.CurrentContext = "test"
	path := n.t.TempDir() + "/kubeconfig"
	n.must(clientcmd.WriteToFile(*k, path))
	return path
}

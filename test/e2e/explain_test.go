package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestExplainCommand: by the API server explain names the condition of an endpoint, and says where the tables are
// older than the objects.
func TestExplainCommand(t *testing.T) {
	n := newNode(t)
	client, one := n.addClient(), n.addServer("web-1")
	web := n.create(service("web", ""))
	ready := slice("web-0", web, one.Addrs.V4())
	n.publish(ready)
	p := n.startProxy()
	to := address(web, testnet.TCP, ip.V4)
	p.until("the pod serves", func() error { return n.reaches(client, testnet.TCP, to, "web-1") })
	if e := n.explain(to.String()); e.Outcome != "endpoint" || len(e.Endpoints) != 1 ||
		e.Endpoints[0].About != "ready, on an unknown node" {
		t.Errorf("with a ready endpoint: %+v", e)
	}
	p.stop()
	waiting := ready.DeepCopy()
	waiting.Endpoints[0].Conditions.Ready = ptr.To(false)
	_, err := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace).Update(n.ctx, waiting, metav1.UpdateOptions{})
	n.must(err)
	if e := n.explain(to.String()); e.Outcome != "endpoint" ||
		!e.says("the tables differ from the API server: the packet should be refused") {
		t.Errorf("with tables of an ended proxy: %+v", e)
	}
	n.startProxy().until("the endpoint has gone", func() error {
		if e := n.explain(to.String()); e.Outcome != "refused" || !e.says("is not ready") || e.says("the tables differ") {
			return errors.New(strings.Join(append(e.Causes, e.Outcome), "; "))
		}
		return nil
	})
}

// TestIgnoredSlices: EndpointSlices of the API server that do not count are named with their reason, by explain at a
// Service without endpoints, and by get services at the Service that they may be meant for.
func TestIgnoredSlices(t *testing.T) {
	n := newNode(t)
	other := n.namespace + "-other"
	n.must(n.plane.cluster.CreateNamespace(n.ctx, other))
	publish := func(namespace, name string, kind discoveryv1.AddressType, address string, labels ...string) {
		t.Helper()
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
			AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](podPort)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}}
		for pair := range slices.Chunk(labels, 2) {
			s.Labels[pair[0]] = pair[1]
		}
		slices := n.plane.client.DiscoveryV1().EndpointSlices(namespace)
		_, err := slices.Create(n.ctx, s, metav1.CreateOptions{})
		n.must(err)
		t.Cleanup(func() { n.must(slices.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	}
	const v4, label, a = discoveryv1.AddressTypeIPv4, discoveryv1.LabelServiceName, "10.244.7.3"
	publish(n.namespace, "labelled", v4, a, label, "web", corev1.IsHeadlessService, "")
	publish(n.namespace, "named", discoveryv1.AddressTypeFQDN, "web.example.com", label, "web")
	publish(n.namespace, "nobodys", v4, a, "app", "web")
	publish(n.namespace, "a", v4, a, label, "crat")
	publish(other, "b", v4, a, label, "cart")
	publish(n.namespace, "cart-1", v4, a, "kubernetes.io/servicename", "cart")
	publish(n.namespace, "six-1", discoveryv1.AddressTypeIPv6, "fd00:244::3", label, "six")
	mine := func(text string) string {
		return strings.NewReplacer("shop", n.namespace, "other/", other+"/", "namespace other", "namespace "+other).
			Replace(text)
	}
	n.run(n.proxyCommand("-v=4")).awaitSync(0)
	for name, causes := range map[string][]string{
		"web": {
			"EndpointSlice shop/labelled is ignored: metadata.labels[service.kubernetes.io/headless]: it is for headless " +
				"Services, and Service shop/web has a cluster IP",
			`EndpointSlice shop/named is ignored: addressType: "FQDN": not IPv4 or IPv6`,
			"EndpointSlice shop/nobodys is ignored: metadata.labels: no kubernetes.io/service-name: it belongs to no Service",
		},
		"cart": {
			`EndpointSlice shop/a: metadata.labels[kubernetes.io/service-name]: "crat": namespace shop has no such Service ` +
				"with a cluster IP; did you mean cart?",
			`EndpointSlice other/b: metadata.labels[kubernetes.io/service-name]: "cart": namespace other has no such Service`,
			"EndpointSlice shop/cart-1: metadata.labels: no kubernetes.io/service-name: it belongs to no Service; is it meant " +
				"by kubernetes.io/servicename?",
		},
		"six": {"its EndpointSlices have addresses of the other family only"},
	} {
		spec := service(name, "")
		spec.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
		spec.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		web := n.create(spec)
		n.soon("the tables have "+name, func() error {
			if e := n.explain(address(web, testnet.TCP, ip.V4).String()); e.Outcome != "refused" || e.says("the tables differ") {
				return errors.New(strings.Join(append(e.Causes, e.Outcome), "; "))
			}
			return nil
		})
		explained := n.show("explain", address(web, testnet.TCP, ip.V4).String())
		row := n.show("get", "services", name, "-n", n.namespace, "-o", "wide")
		for _, cause := range causes {
			if !strings.Contains(explained, mine(cause)) {
				t.Errorf("explain of %s lacks %q:\n%s", name, mine(cause), explained)
			}
			problem := strings.Replace(mine(cause), " is ignored:", ":", 1)
			// By neither its label nor its name is nobodys meant for web.
			if named := strings.HasPrefix(cause, "EndpointSlice "); named && !strings.Contains(cause, "/nobodys") &&
				!strings.Contains(row, problem) {
				t.Errorf("get services %s lacks %q:\n%s", name, problem, row)
			}
		}
	}
}

// explanation is what the tests read of nftproxy explain.
type explanation struct {
	Outcome   string
	Causes    []string
	Endpoints []struct{ About string }
}

// says says whether a cause has the text.
func (e *explanation) says(text string) bool {
	return slices.ContainsFunc(e.Causes, func(c string) bool { return strings.Contains(c, text) })
}

// explain runs nftproxy explain on the node, with the objects of the API server.
func (n *node) explain(to string) (e explanation) {
	n.t.Helper()
	n.must(json.Unmarshal([]byte(n.show("explain", "-o=json", to)), &e))
	return e
}

// show runs a command of nftproxy on the node that shows something, with the objects of the API server.
func (n *node) show(args ...string) string {
	n.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(shared.nftproxy(n.t), append(args, "--kubeconfig="+n.plane.cluster.AdminKubeconfig(),
		"--hostname-override="+n.name)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	exit := (*exec.ExitError)(nil)
	if err := n.Node.Run(cmd); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		n.t.Fatalf("%s: %v: %s", cmd, err, errs.String())
	}
	return out.String()
}

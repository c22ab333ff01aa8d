package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// modeFile is the part of a configuration file that says where node ports are served, with what a node does by it. Its
// addresses are called primary, second and localhost. A health check node port answers by the same list, also where no
// node port is served on localhost.
type modeFile struct {
	text              string
	nodePorts, health string
}

func modeFiles() []modeFile {
	const all = "localhost primary second"
	return []modeFile{
		{"", all, all},
		{"mode: iptables", all, all},
		{"mode: iptables\niptables: {localhostNodePorts: false}", "primary second", all},
		{"mode: iptables\nnodePortAddresses: [primary]", "primary", "primary"},
		{"mode: iptables\nnodePortAddresses: [primary, localhost]", "localhost primary", "localhost primary"},
		{`mode: iptables` + "\n" + `nodePortAddresses: ["::/0"]`, all, all},
		{"mode: ipvs", "primary second", all},
		{"mode: nftables", "primary", "primary"},
		{"mode: nftables\nnodePortAddresses: [all]", "primary second", all},
	}
}

// second is an address of the node that its Node does not have, as keepalived adds one.
func second() netip.Prefix { return netip.MustParsePrefix("192.168.77.1/32") }

const modeNodePort, modeHealthPort = 30080, 30900

// name is the file as the name of a test.
func (m modeFile) name() string { return strings.NewReplacer("\n", " ", "/", "-").Replace(m.text) }

// file is the whole configuration file.
func (m modeFile) file(n *node, more string) []byte {
	return fmt.Appendf(nil, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
		"clusterCIDR: %q\nconntrack: {maxPerCore: 0}\n%s%s\n", n.clusterCIDR(), more, m.text)
}

// differs asks the ports from the node and returns an error unless they answer where modeFile has it.
func (m modeFile) differs(n *node, nodePort, healthPort uint16) error {
	n.t.Helper()
	var nodePorts, health []string
	for name, a := range map[string]netip.Addr{
		"primary": n.NodeAddrs.V4(), "second": second().Addr(), "localhost": netip.MustParseAddr("127.0.0.1"),
	} {
		answer, err := n.Node.Ask(n.ctx, testnet.TCP, netip.AddrPortFrom(a, nodePort), time.Second)
		n.must(err)
		if answer.Outcome == testnet.Answered {
			nodePorts = append(nodePorts, name)
		}
		if n.healthy(netip.AddrPortFrom(a, healthPort)) {
			health = append(health, name)
		}
	}
	slices.Sort(nodePorts)
	slices.Sort(health)
	seen := modeFile{m.text, strings.Join(nodePorts, " "), strings.Join(health, " ")}
	if diff := cmp.Diff(m, seen, cmp.AllowUnexported(modeFile{})); diff != "" {
		return errors.New(diff)
	}
	return nil
}

// healthy asks a health check node port whether the node has one endpoint.
func (n *node) healthy(at netip.AddrPort) bool {
	answer, err := n.request(http.MethodGet, at, "/")
	var body struct{ LocalEndpoints int }
	return err == nil && answer.code == http.StatusOK && json.Unmarshal([]byte(answer.body), &body) == nil &&
		body.LocalEndpoints == 1
}

// TestModes: a configuration file of kube-proxy serves node ports and health check node ports at the addresses of the
// node at which kube-proxy's mode serves them.
func TestModes(t *testing.T) {
	for _, file := range modeFiles() {
		t.Run(file.name(), func(t *testing.T) {
			topology := testnet.NewForTest(t, testnet.Config{})
			n := &node{Topology: topology, t: t, ctx: testContext(t)}
			n.must(topology.Node.AddAddr("lo", second()))
			pod := n.addServer("web-1")
			dir := t.TempDir()
			config, manifests := filepath.Join(dir, "config.conf"), filepath.Join(dir, "manifests.yaml")
			n.must(os.WriteFile(config, file.file(n, ""), 0o600))
			n.must(os.WriteFile(manifests, fmt.Appendf(nil, modeManifests, topology.NodeAddrs.V4(), modeNodePort, modeHealthPort,
				pod.Addrs.V4(), podPort), 0o600))
			p := n.run(exec.Command(shared.nftproxy(t), "run", "--config="+config, "--hostname-override=node-1",
				"--nftproxy-manifests="+manifests, "-v=4"))
			p.awaitSync(0)
			p.until(file.text, func() error { return file.differs(n, modeNodePort, modeHealthPort) })
			p.stop()
		})
	}
}

// TestConformanceModes: with the same files the real kube-proxy serves at the same addresses. It is not asked for mode
// ipvs, since few kernels that this test runs on have IPVS.
func TestConformanceModes(t *testing.T) {
	if os.Getenv("NFTPROXY_CONFORMANCE") == "" {
		t.Skip("make conformance runs this")
	}
	if release := os.Getenv(controlplane.KubeProxyVariable); release != "" && release != "1.37" {
		t.Skip("the words all and localhost are 1.37's")
	}
	controlplane.Require(t)
	netfilter.NFTForTest(t) // kube-proxy needs it
	binary, err := controlplane.KubeProxy(testContext(t), "")
	if err != nil {
		t.Fatal(err)
	}
	environment := withIPTables(t, "nft")
	for i, file := range modeFiles() {
		if strings.Contains(file.text, "mode: ipvs") {
			continue
		}
		t.Run(file.name(), func(t *testing.T) {
			n := newNodeOf(t, shared.controlPlane(t), fmt.Sprintf("mode-%d", i))
			n.must(n.Node.AddAddr("lo", second()))
			web := n.create(localWeb())
			of := slice("web-1", web, n.addServer("web-1").Addrs.V4())
			of.Endpoints[0].NodeName = &n.name
			n.publish(of)
			config := filepath.Join(t.TempDir(), "config.conf")
			n.must(os.WriteFile(config, file.file(n, fmt.Sprintf("clientConnection: {kubeconfig: %q}\n",
				n.plane.cluster.AdminKubeconfig())), 0o600))
			cmd := exec.Command(binary, "--config="+config, "--hostname-override="+n.name, "-v=2")
			cmd.Env = environment
			p := n.run(cmd)
			for _, family := range []string{"IPv4", "IPv6"} {
				p.await("the first sync", 0, func(l line) bool {
					return l.Has("SyncProxyRules complete", `ipFamily="`+family+`"`)
				})
			}
			n.soon(file.text, func() error {
				return file.differs(n, nodePort(web, testnet.TCP), uint16(web.Spec.HealthCheckNodePort))
			})
		})
	}
}

// localWeb is the Service of modeManifests.
func localWeb() *corev1.Service {
	s := service("web", "")
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	return s
}

const modeManifests = `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: %s}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, nodePort: %d}]
  healthCheckNodePort: %d
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [%s], nodeName: node-1, conditions: {ready: true}}]
ports: [{name: http, port: %d}]
`

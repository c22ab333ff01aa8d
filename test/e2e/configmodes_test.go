package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// seen asks the ports from the node and returns where they answer, as modeFile has it.
func seenByModes(t *testing.T, topology *testnet.Topology, file string, nodePort, healthPort uint16) modeFile {
	t.Helper()
	n := &node{Topology: topology, t: t, ctx: testContext(t)}
	var nodePorts, health []string
	for name, a := range map[string]netip.Addr{
		"primary": topology.NodeAddrs.V4(), "second": second().Addr(), "localhost": netip.MustParseAddr("127.0.0.1"),
	} {
		answer, err := topology.Node.Ask(n.ctx, testnet.TCP, netip.AddrPortFrom(a, nodePort), time.Second)
		n.must(err)
		if answer.Outcome == testnet.Answered {
			nodePorts = append(nodePorts, name)
		}
		if n.answers(netip.AddrPortFrom(a, healthPort), "/", 200, `"localEndpoints":1`) == nil {
			health = append(health, name)
		}
	}
	slices.Sort(nodePorts)
	slices.Sort(health)
	return modeFile{file, strings.Join(nodePorts, " "), strings.Join(health, " ")}
}

// TestModes: a configuration file of kube-proxy serves node ports and health check node ports at the addresses of the
// node at which kube-proxy's mode serves them.
func TestModes(t *testing.T) {
	for _, file := range modeFiles() {
		t.Run(strings.NewReplacer("\n", " ", "/", "-").Replace(file.text), func(t *testing.T) {
			topology := testnet.NewForTest(t, testnet.Config{})
			n := &node{Topology: topology, t: t, ctx: testContext(t)}
			n.must(topology.Node.AddAddr("lo", second()))
			pod := n.addServer("web-1")
			dir := t.TempDir()
			config, manifests := filepath.Join(dir, "config.conf"), filepath.Join(dir, "manifests.yaml")
			n.must(os.WriteFile(config, fmt.Appendf(nil, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: "+
				"KubeProxyConfiguration\n"+
				"clusterCIDR: %q\nconntrack: {maxPerCore: 0}\n%s\n", n.clusterCIDR(), file.text), 0o600))
			n.must(os.WriteFile(manifests, fmt.Appendf(nil, modeManifests, topology.NodeAddrs.V4(), modeNodePort, modeHealthPort,
				pod.Addrs.V4(), podPort), 0o600))
			p := n.run(exec.Command(shared.nftproxy(t), "run", "--config="+config, "--hostname-override=node-1",
				"--nftproxy-manifests="+manifests, "-v=4"))
			p.awaitSync(0)
			p.until(file.text, func() error {
				if diff := cmp.Diff(file, seenByModes(t, topology, file.text, modeNodePort, modeHealthPort),
					cmp.AllowUnexported(modeFile{})); diff != "" {
					return errors.New(diff)
				}
				return nil
			})
			p.stop()
		})
	}
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

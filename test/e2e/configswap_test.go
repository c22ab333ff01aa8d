package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
	"nftproxy/watch"
)

// TestConfigMapSwap changes the configuration file of a running proxy as the kubelet
// changes a mounted ConfigMap. Real packets show the change, and events of the Node
// tell of a file that cannot be used and of a field that needs a restart.
func TestConfigMapSwap(t *testing.T) {
	n := newNode(t)
	client, err := n.AddPod("client")
	n.must(err)
	server := n.addServer("web-1")
	web := n.create(service("web", ""))
	for i := range server.Addrs {
		n.publish(slice("web-"+string('a'+rune(i)), web, server.Addrs[i]))
	}
	dir, version := t.TempDir(), 0
	n.must(os.Symlink("..data/config.conf", filepath.Join(dir, "config.conf")))
	swap := func(more string) {
		t.Helper()
		version++
		name := fmt.Sprintf("..%d", version)
		text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nconntrack: " +
			"{maxPerCore: 0}\n" +
			"clientConnection: {kubeconfig: " + n.plane.cluster.AdminKubeconfig() + "}\nclusterCIDR: " + n.clusterCIDR() + "\n" +
			more
		n.must(
			os.Mkdir(filepath.Join(dir, name), 0o755),
			os.WriteFile(filepath.Join(dir, name, "config.conf"), []byte(text), 0o600),
			os.Symlink(name, filepath.Join(dir, "..new")),
			os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")),
			os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", version-1))),
		)
	}
	swap("")
	p := n.run(exec.Command(shared.nftproxy(t), "run", "--config="+filepath.Join(dir, "config.conf"),
		"--hostname-override="+n.name, "-v=2"))
	p.awaitSync(0)
	seen := func(what string, want func(family ip.Family) netip.Addr) {
		t.Helper()
		p.until(what, func() error {
			for _, family := range ip.Families() {
				peer, err := n.peer(client.NS, testnet.TCP, address(web, testnet.TCP, family))
				if err != nil {
					return err
				}
				if peer != want(family) {
					return fmt.Errorf("the server saw %s, want %s", peer, want(family))
				}
			}
			return nil
		})
	}
	plain := func(family ip.Family) netip.Addr { return of(client.Addrs, family) }
	masqueraded := func(family ip.Family) netip.Addr { return of(n.NodeAddrs, family) }
	seen("a pod's own address", plain)
	swap("nftables: {masqueradeAll: true}\n")
	seen("the node's address", masqueraded)
	swap("nftables: {masqueradeAll: true}\nnoMasqueradeCIDRs: [0.0.0.0/0, \"::/0\"]\n")
	seen("a pod's own address, by noMasqueradeCIDRs", plain)
	swap("nftables: {masqueradeAll: true}\n")
	seen("the node's address, without it", masqueraded)

	swap("nftables: {masqueradeAll: false}\noomScoreAdj: 4000\nbindAddress: nowhere\n")
	n.awaitNodeEvent(watch.ReasonConfigInvalid, "oomScoreAdj", "bindAddress")
	seen("the node's address still", masqueraded)
	swap("healthzBindAddress: 0.0.0.0:20256\n")
	n.awaitNodeEvent(watch.ReasonConfigRestart, "healthzBindAddress")
	seen("a pod's own address again", plain)
	p.stop()
}

// awaitNodeEvent waits for nftproxy's event about the node with the reason and words.
func (n *node) awaitNodeEvent(reason watch.Reason, words ...string) {
	n.t.Helper()
	about := fields.Set{"involvedObject.kind": "Node", "involvedObject.name": n.name, "source": "nftproxy",
		"reason": string(reason)}.AsSelector()
	list := cache.NewListWatchFromClient(n.plane.client.CoreV1().RESTClient(), "events", metav1.NamespaceDefault, about)
	last, err := watchtools.UntilWithSync(n.ctx, list, &corev1.Event{}, nil,
		func(e apiwatch.Event) (bool, error) { return e.Type == apiwatch.Added, nil })
	if err != nil {
		n.t.Fatalf("no event %s: %v", reason, err)
	}
	event := last.Object.(*corev1.Event)
	for _, w := range words {
		if !strings.Contains(event.Message, w) {
			n.t.Errorf("%s: want %q", eventText(event), w)
		}
	}
}

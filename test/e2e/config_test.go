package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"nftproxy/model/ip"
)

// TestConfigFile runs the proxy with kubeadm's configuration file for kube-proxy
// and the arguments of kubeadm's DaemonSet.
func TestConfigFile(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	pod := n.addServer("web-1")
	web := n.create(service("web", "web"))
	for i := range pod.Addrs {
		n.publish(slice("web-"+string('a'+rune(i)), web, pod.Addrs[i]))
	}
	archive, err := txtar.ParseFile("../../daemon/kubeproxyconfig/testdata/kubeadm.txtar")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"/var/lib/kube-proxy/kubeconfig.conf", n.plane.cluster.AdminKubeconfig(), "10.244.0.0/16", n.clusterCIDR(),
	).Replace(string(archive.Files[0].Data))
	path := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := n.run(exec.Command(shared.nftproxy(t), "run", "--config="+path, "--hostname-override="+n.name, "-v=2"))
	p.awaitSync(0)
	p.until("the service answers", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(client, protocol, address(web, protocol, family), "web-1")
		})
	})
	p.stop()
}

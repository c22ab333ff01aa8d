package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
)

// TestBesideKubeProxy runs nftproxy with a name beside kube-proxy on one node: each
// serves its own Services, and a Service may go from one to the other.
func TestBesideKubeProxy(t *testing.T) {
	if os.Getenv("NFTPROXY_CONFORMANCE") == "" {
		t.Skip("make conformance runs this")
	}
	n := newNode(t)
	nft := netfilter.NFTForTest(t) // kube-proxy needs it, too
	kubeProxy, err := controlplane.KubeProxy(n.ctx, os.Getenv(controlplane.KubeProxyVariable))
	n.must(err)
	const label = "service.kubernetes.io/service-proxy-name"
	client := n.addClient()
	spec := service("ours", "")
	spec.Labels = map[string]string{label: "careful"}
	ours, theirs := n.create(spec), n.create(service("theirs", ""))
	first, second := n.addServer("web-1"), n.addServer("web-2")
	for i := range first.Addrs {
		n.publish(slice("ours-"+string('a'+rune(i)), ours, first.Addrs[i]))
		n.publish(slice("theirs-"+string('a'+rune(i)), theirs, second.Addrs[i]))
	}
	n.run(exec.Command(kubeProxy, "--proxy-mode=nftables", "--kubeconfig="+n.plane.cluster.AdminKubeconfig(),
		"--hostname-override="+n.name,
		"--cluster-cidr="+n.clusterCIDR(), "--conntrack-max-per-core=0", "--iptables-min-sync-period=0s", "-v=2"))
	p := n.startProxy("--nftproxy-service-proxy-name=careful")
	both := func(what string) {
		t.Helper()
		p.until(what, func() error {
			return everywhere(func(protocol string, family ip.Family) error {
				if err := n.reaches(client, protocol, address(ours, protocol, family), "web-1"); err != nil {
					return err
				}
				return n.reaches(client, protocol, address(theirs, protocol, family), "web-2")
			})
		})
	}
	both("both Services answer")
	// inTables says in which proxy's tables the cluster IPs are.
	inTables := func(proxy string, want, not metav1.ObjectMeta, wanted, unwanted string) {
		t.Helper()
		p.until(proxy+" has only its own", func() error {
			text, err := nft.Run(n.Node, "", "list", "table", "ip", proxy)
			switch {
			case err != nil:
				return err
			case !strings.Contains(text, wanted):
				return fmt.Errorf("%s lacks %s of %s:\n%s", proxy, wanted, want.Name, text)
			case strings.Contains(text, unwanted):
				return fmt.Errorf("%s has %s of %s:\n%s", proxy, unwanted, not.Name, text)
			}
			return nil
		})
	}
	ourIP, theirIP := ours.Spec.ClusterIP+" ", theirs.Spec.ClusterIP+" "
	inTables("nftproxy", ours.ObjectMeta, theirs.ObjectMeta, ourIP, theirIP)
	inTables("kube-proxy", theirs.ObjectMeta, ours.ObjectMeta, theirIP, ourIP)

	services := n.plane.client.CoreV1().Services(n.namespace)
	relabel := func(name string, labels map[string]string) {
		t.Helper()
		s, err := services.Get(n.ctx, name, metav1.GetOptions{})
		n.must(err)
		s.Labels = labels
		_, err = services.Update(n.ctx, s, metav1.UpdateOptions{})
		n.must(err)
	}
	relabel("theirs", map[string]string{label: "careful"})
	relabel("ours", nil)
	inTables("nftproxy", theirs.ObjectMeta, ours.ObjectMeta, theirIP, ourIP)
	inTables("kube-proxy", ours.ObjectMeta, theirs.ObjectMeta, ourIP, theirIP)
	both("both Services answer after they have changed places")
	p.stop()
}

// TestRecordedFlags holds the list of kube-proxy's flags in cmd/nftproxy/testdata against
// what the real one prints.
func TestRecordedFlags(t *testing.T) {
	if os.Getenv("NFTPROXY_CONFORMANCE") == "" {
		t.Skip("make conformance runs this")
	}
	release := os.Getenv(controlplane.KubeProxyVariable)
	if release == "1.36" {
		t.Skip("the list is that of 1.37 and 1.38")
	}
	kubeProxy, err := controlplane.KubeProxy(testContext(t), release)
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command(kubeProxy, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := "# The flags of kube-proxy v1.37.2 on Linux, from its --help: name, type, default if there is one.\n" +
		flagList(string(help))
	want, err := os.ReadFile(filepath.Join("..", "..", "cmd", "nftproxy", "testdata", "kube-proxy-flags.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("kube-proxy has other flags; its list is now\n%s", got)
	}
}

// flagList reads the flags from a help text: a line begins a flag, and further lines go
// on with its usage.
func flagList(help string) string {
	flag := regexp.MustCompile(`^ +(?:-v, )?--([a-z0-9-]+)(?: (\S+))? {2,}(.*)$`)
	value := regexp.MustCompile(`\(default (.*)\)$`)
	var list [][]string
	for line := range strings.Lines(help) {
		line = strings.TrimSuffix(line, "\n")
		if words := flag.FindStringSubmatch(line); words != nil {
			list = append(list, words[1:])
		} else if len(list) > 0 && strings.HasPrefix(line, strings.Repeat(" ", 10)) {
			list[len(list)-1][2] += " " + strings.TrimSpace(line)
		}
	}
	var text strings.Builder
	for _, f := range list {
		kind, _, _ := strings.Cut(f[1], "[")
		if kind == "" {
			kind = "bool"
		}
		words := []string{f[0], kind}
		if d := value.FindStringSubmatch(f[2]); d != nil {
			words = append(words, strings.Trim(d[1], `"`))
		}
		text.WriteString(strings.TrimRight(strings.Join(words, " "), " ") + "\n")
	}
	return text.String()
}

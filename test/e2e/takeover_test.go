package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/node/otherproxy"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
	"nftproxy/watch"
)

// takeoverMode is a way in which kube-proxy writes its rules.
type takeoverMode struct {
	name string
	// mode is kube-proxy's, and tables the interface of the kernel that its iptables use.
	mode, tables string
	kind         otherproxy.Kind
}

func takeoverModes() []takeoverMode {
	return []takeoverMode{
		{"nftables", "nftables", "nft", otherproxy.NFTables},
		{"iptables-nft", "iptables", "nft", otherproxy.IPTablesNFT},
		{"iptables-legacy", "iptables", "legacy", otherproxy.IPTablesLegacy},
	}
}

// TestTakeover replaces the real kube-proxy by nftproxy and goes back, again and again, as
// docs/migrate.md says, while clients connect all the time. No connection may fail. make
// takeover sets the number of rounds.
func TestTakeover(t *testing.T) {
	eachTakeover(t, func(w *takeoverWorld, rounds int) {
		for range rounds {
			w.takeOver()
			w.rollBack()
		}
		w.traffic.end(fmt.Sprintf("kube-proxy %s, %d rounds", w.mode.name, rounds))
	})
}

// TestLeftovers lets nftproxy alone: it reports kube-proxy beside it, and removes its rules some
// time after its end. No connection may fail. That time is 6 minutes in each mode, so it does
// not run where a short run of one or two rounds is wanted.
func TestLeftovers(t *testing.T) {
	eachTakeover(t, func(w *takeoverWorld, rounds int) {
		if rounds <= 2 {
			w.t.Skipf("nftproxy waits 6 minutes for kube-proxy's return; make takeover with more than 2 rounds runs this, not "+
				"with %d", rounds)
		}
		w.ours = w.startProxy("--config=" + w.config)
		w.ours.awaitText(0, "WARN", "kube-proxy runs beside nftproxy", fmt.Sprintf("PID %d", w.theirs.PID()),
			string(w.mode.kind))
		w.soon("the event about the Node", func() error {
			events, err := w.plane.client.CoreV1().Events(metav1.NamespaceDefault).List(w.ctx, metav1.ListOptions{
				FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + w.name + ",reason=" +
					string(watch.ReasonKubeProxy),
			})
			if err == nil && (len(events.Items) == 0 || !strings.Contains(events.Items[0].Message, "both serve the Services")) {
				err = fmt.Errorf("events %v", events.Items)
			}
			return err
		})
		mark := w.ours.Mark()
		w.theirs.kill()
		w.ours.awaitText(mark, "rules of a kube-proxy that does not run", string(w.mode.kind))
		w.within(6*time.Minute+patience, "kube-proxy's rules go", func() error {
			w.traffic.goesOn()
			if kinds := w.kubeProxyRules(); len(kinds) > 0 {
				return fmt.Errorf("there are rules of the kinds %v", kinds)
			}
			return nil
		})
		w.ours.awaitText(mark, "removed the rules of a kube-proxy")
		w.traffic.goesOn()
		w.traffic.end("kube-proxy " + w.mode.name + ", left alone")
	})
}

// eachTakeover runs a test for each mode of kube-proxy, where the environment asks for it.
func eachTakeover(t *testing.T, test func(w *takeoverWorld, rounds int)) {
	t.Helper()
	rounds, err := strconv.Atoi(os.Getenv("NFTPROXY_TAKEOVER"))
	if err != nil {
		t.Skip("make takeover runs this")
	}
	controlplane.Require(t)
	binary, err := controlplane.Tool(testContext(t), "kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	netfilter.NFTForTest(t) // kube-proxy needs it
	for _, m := range takeoverModes() {
		t.Run(m.name, func(t *testing.T) { test(newTakeoverWorld(t, m, binary), rounds) })
	}
}

// takeoverWorld is a node that kube-proxy serves, with traffic.
type takeoverWorld struct {
	*node
	mode      takeoverMode
	kubeProxy *exec.Cmd
	// ours and theirs are the running proxies; nil if they do not run.
	ours, theirs *process
	traffic      *traffic
	// client is the pod of the traffic.
	client *testnet.Namespace
	// web has two endpoints, loyal those and session affinity, and self a pod that is its own client.
	web, loyal, self *corev1.Service
	// config is the file that both proxies have.
	config string
}

func newTakeoverWorld(t *testing.T, m takeoverMode, binary string) *takeoverWorld {
	t.Helper()
	n := newNode(t)
	w := &takeoverWorld{node: n, mode: m, config: filepath.Join(t.TempDir(), "config.conf")}
	spec, loyal := service("web", ""), service("loyal", "")
	spec.Spec.Type, loyal.Spec.Type, loyal.Spec.SessionAffinity = corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort,
		corev1.ServiceAffinityClientIP
	w.web, w.loyal, w.self = n.create(spec), n.create(loyal), n.create(service("self", ""))
	pods := map[string]*testnet.Pod{}
	for _, name := range []string{"web-1", "web-2", "self"} {
		pods[name] = n.addServer(name)
		for _, a := range pods[name].Addrs {
			if name == "self" {
				of := slice(sliceName(name, a), w.self, a)
				if m.mode == "nftables" { // kube-proxy has pods reach themselves only if it knows that they are on the node
					of.Endpoints[0].NodeName = &n.name
				}
				n.publish(of)
				continue
			}
			n.publish(slice(sliceName(name, a), w.web, a))
			n.publish(slice(sliceName("loyal-"+name, a), w.loyal, a))
		}
	}
	n.must(os.WriteFile(w.config, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %q}
clusterCIDR: %q
conntrack: {maxPerCore: 0}
`, m.mode, n.plane.cluster.AdminKubeconfig(), n.clusterCIDR()), 0o600))
	w.kubeProxy = exec.Command(binary, "--config="+w.config, "--hostname-override="+n.name, "-v=2")
	w.kubeProxy.Env = withIPTables(t, m.tables)
	w.startKubeProxy()
	for _, family := range []string{"IPv4", "IPv6"} {
		w.theirs.await("kube-proxy's first sync", 0, func(l line) bool {
			return l.Has("SyncProxyRules complete", `ipFamily="`+family+`"`)
		})
	}
	w.client = n.addClient()
	w.soon("kube-proxy serves", func() error {
		return n.reaches(w.client, testnet.TCP, address(w.web, testnet.TCP, ip.V6), "web-1", "web-2")
	})
	w.traffic = w.startTraffic(w.client, pods["self"].NS)
	return w
}

// withIPTables is the environment of a kube-proxy that finds the commands of iptables for an interface of the kernel,
// "nft" or "legacy".
func withIPTables(t *testing.T, kind string) []string {
	t.Helper()
	dir, err := aptget.IPTables(kind)
	if err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
}

func (w *takeoverWorld) startKubeProxy() {
	w.t.Helper()
	cmd := *w.kubeProxy
	w.theirs = w.run(&cmd)
}

// takeOver does the steps of docs/migrate.md.
func (w *takeoverWorld) takeOver() {
	w.t.Helper()
	w.ours = w.startProxy("--config="+w.config, "--nftproxy-answer-ping")
	w.awaitRules("nftproxy")
	w.clusterIPsAnswer()
	w.traffic.goesOn()
	if out, err := w.cleanup("--kube-proxy"); err == nil || !strings.Contains(out, "kube-proxy runs (PID "+
		strconv.Itoa(w.theirs.PID())+"): stop it first") {
		w.t.Fatalf("cleanup --kube-proxy beside kube-proxy: %v: %s", err, out)
	}
	w.theirs.kill()
	w.traffic.goesOn()
	if kinds := w.kubeProxyRules(); len(kinds) != 1 || kinds[0] != w.mode.kind {
		w.t.Fatalf("kube-proxy left rules of the kinds %v, want %s", kinds, w.mode.kind)
	}
	if out, err := w.cleanup("--kube-proxy"); err != nil {
		w.t.Fatalf("cleanup --kube-proxy: %v: %s", err, out)
	}
	if kinds := w.kubeProxyRules(); len(kinds) > 0 {
		w.t.Fatalf("after cleanup there are rules of the kinds %v", kinds)
	}
	w.clusterIPsAnswer()
	w.traffic.goesOn()
	w.traffic.staysLoyal()
}

// clusterIPsAnswer pings the cluster IPs of a Service from a pod and the node. kube-proxy's modes of this test do not
// answer, nftproxy does so with --nftproxy-answer-ping as soon as its rules are there.
func (w *takeoverWorld) clusterIPsAnswer() {
	w.t.Helper()
	for _, family := range ip.Families() {
		to := netip.AddrPortFrom(address(w.web, testnet.TCP, family).Addr(), 0)
		for _, y := range []way{{w.client, testnet.ICMP, to}, {w.Node, testnet.ICMP, to}} {
			if err := w.traffic.connectOnce(w.node, y, nil); err != nil {
				w.t.Fatalf("%s: %v", y, err)
			}
		}
	}
}

// rollBack does the steps of docs/migrate.md.
func (w *takeoverWorld) rollBack() {
	w.t.Helper()
	if out, err := w.proxies("--await=kube-proxy", "--timeout=1ns"); err == nil {
		w.t.Fatalf("nftproxy proxies, before kube-proxy runs: %s", out)
	}
	w.startKubeProxy()
	w.awaitRules("kube-proxy")
	w.traffic.goesOn() // the connections to localhost that nftproxy carries end
	w.ours.stop()
	w.traffic.goesOn()
	if out, err := w.cleanup(); err != nil {
		w.t.Fatalf("cleanup: %v: %s", err, out)
	}
	w.traffic.goesOn()
	w.traffic.staysLoyal()
}

// awaitRules waits for the rules of a proxy by the command that docs/migrate.md has for it.
func (w *takeoverWorld) awaitRules(of string) {
	w.t.Helper()
	out, err := w.proxies("--await="+of, "--timeout="+patience.String())
	if want := of + " has rules for every frontend of "; err != nil || !strings.Contains(out, want) {
		w.t.Fatalf("nftproxy proxies: %v: %s, want %q", err, out, want)
	}
}

// proxies runs `nftproxy proxies` on the node.
func (w *takeoverWorld) proxies(flags ...string) (string, error) {
	w.t.Helper()
	p := w.run(exec.Command(shared.nftproxy(w.t), append([]string{"proxies"}, flags...)...))
	<-p.Exited()
	return p.Tail(10), p.Err()
}

func (w *takeoverWorld) kubeProxyRules() (kinds []otherproxy.Kind) {
	w.t.Helper()
	w.must(w.Node.Do(func() (err error) {
		kinds, _, err = new(otherproxy.Watcher).Look()
		return err
	}))
	return kinds
}

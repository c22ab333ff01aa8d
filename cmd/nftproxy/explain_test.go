package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// troubles is a node with pods and Services, each of them broken in its own way.
type troubles struct {
	*testing.T
	*testnet.Topology
	client, local, remote *testnet.Pod
	dir                   string
	nft                   netfilter.NFT
	// page is docs/troubleshooting.md, with the outputs of this run.
	page string
}

const troublesPage = "../../docs/troubleshooting.md"

// manifestsDir is how the commands on the page name the manifests.
const manifestsDir = "my-services"

func newTroubles(t *testing.T) *troubles { return troublesOn(t, testnet.Config{}) }

func troublesOn(t *testing.T, config testnet.Config) *troubles {
	t.Helper()
	w := &troubles{T: t, Topology: testnet.NewForTest(t, config), dir: t.TempDir(), nft: netfilter.NFTForTest(t)}
	page, err := os.ReadFile(troublesPage)
	w.must(err)
	w.page = string(page)
	w.client, err = w.AddPod("client")
	w.must(err)
	w.local, err = w.AddPod("local")
	w.must(err)
	w.remote, err = w.AddRemotePod("remote")
	w.must(err)
	for _, pod := range []*testnet.Pod{w.local, w.remote} {
		_, err := pod.NS.Serve(testnet.TCP, netip.AddrPortFrom(pod.Addrs.V4(), 8080), pod.Name)
		w.must(err)
	}
	w.must(w.Outside.AddRoute(netip.MustParsePrefix("198.51.100.0/24"), w.NodeAddrs.V4()))
	w.must(os.Mkdir(filepath.Join(w.dir, manifestsDir), 0o755))
	return w
}

func (w *troubles) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// object is a Service of the namespace shop with an EndpointSlice.
func object(name, created, spec, status, endpoints string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %[1]s, creationTimestamp: %[2]q}
spec: {%[3]s}
status: {%[4]s}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [%[5]s]
`, name, created, spec, status, endpoints)
}

// write writes the manifests. web are the endpoints of the Service web.
func (w *troubles) write(web string) {
	w.Helper()
	const early, late = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
	endpoint := func(p *testnet.Pod, node, conditions string) string {
		return fmt.Sprintf("{addresses: [%s], nodeName: %s%s}", p.Addrs.V4(), node, conditions)
	}
	local, remote := endpoint(w.local, "node-1", ""), endpoint(w.remote, "node-2", "")
	if web == "" {
		web = local + ", " + remote
	}
	text := fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: %s}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
`, w.NodeAddrs.V4())
	text += object("cart", early, "clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]", "", "")
	text += object("web", early, "type: NodePort, clusterIP: 10.96.0.20, ports: [{name: http, port: 80, nodePort: 30080}]",
		"", web)
	text += object("api", early, "clusterIP: 10.96.0.30, ports: [{name: http, port: 80}]", "",
		endpoint(w.local, "node-1", ", conditions: {ready: false}"))
	text += object("admin", early, "type: LoadBalancer, clusterIP: 10.96.0.40, loadBalancerSourceRanges: [10.0.0.0/8], "+
		"ports: [{name: http, port: 80}]",
		"loadBalancer: {ingress: [{ip: 198.51.100.10}]}", local)
	text += object("edge", early, "type: NodePort, clusterIP: 10.96.0.50, externalTrafficPolicy: Local, ports: [{name: "+
		"http, port: 80, nodePort: 30090}]", "", remote)
	text += object("old", early, "clusterIP: 10.96.0.60, externalIPs: [198.51.100.20], ports: [{name: http, port: 80}]",
		"", local)
	text += object("new", late, "clusterIP: 10.96.0.61, externalIPs: [198.51.100.20], ports: [{name: http, port: 80}]", "",
		remote)
	path := filepath.Join(w.dir, "next")
	w.must(os.WriteFile(path, []byte(text), 0o644))
	w.must(os.Rename(path, filepath.Join(w.dir, manifestsDir, "objects.yaml")))
}

// trouble is one broken situation.
type trouble struct {
	// name is that of the example on the page.
	name string
	// args are those of nftproxy explain.
	args string
	// from sends a real packet to the address to, with this outcome.
	from *testnet.Namespace
	to   string
	want testnet.Outcome
	// masqueraded says that the server sees an address of the node.
	masqueraded bool
	status      int
	// says are texts of the explanation that name the cause and the remedy.
	says []string
}

// check sends the packet, explains it, and puts the explanation into the page.
func (w *troubles) check(c trouble) {
	w.Helper()
	timeout := time.Minute
	if c.want == testnet.TimedOut {
		timeout = 300 * time.Millisecond
	}
	a, err := c.from.Ask(w.Context(), testnet.TCP, netip.MustParseAddrPort(c.to), timeout)
	w.must(err)
	if a.Outcome != c.want || a.Outcome == testnet.Answered && (a.Peer != a.Local) != c.masqueraded {
		w.Errorf("%s: the packet to %s: %+v, want %s", c.name, c.to, a, c.want)
	}
	// With objects, stderr has notes about them.
	stdout, stderr, status := w.explain(c.args)
	if status != c.status || stderr != "" && !strings.Contains(c.args, manifestsDir) {
		w.Errorf("%s: exit status %d, want %d, stderr %q", c.name, status, c.status, stderr)
	}
	for _, text := range c.says {
		if !strings.Contains(stdout, text) {
			w.Errorf("%s: the explanation does not say %q:\n%s", c.name, text, stdout)
		}
	}
	w.fill(c.name, "$ nftproxy explain "+c.args+"\n"+withoutSteps(stdout))
}

// withoutSteps leaves out of an explanation what the page does not show: the steps, and what is assumed.
func withoutSteps(explanation string) string {
	parts := strings.Split(strings.TrimSuffix(explanation, "\n"), "\n\n")
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool {
		return strings.HasPrefix(part, "Steps:\n") || strings.HasPrefix(part, "Assumed:\n")
	}), "\n\n") + "\n"
}

// explain runs the command on the node, beside the manifests.
func (w *troubles) explain(args string) (stdout, stderr string, status int) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "nftproxy", append([]string{"explain"}, strings.Fields(args)...)...)
	cmd.Dir = w.dir
	return runCommand(w.T, w.Node, cmd)
}

// fill puts an output into the block behind "<!-- explain: NAME -->".
func (w *troubles) fill(name, output string) {
	w.Helper()
	block := regexp.MustCompile("(<!-- explain: " + regexp.QuoteMeta(name) + " -->\n```\n)(?s:.*?)(```\n)")
	if !block.MatchString(w.page) {
		w.Errorf("%s has no block for the example %s", troublesPage, name)
	}
	w.page = block.ReplaceAllStringFunc(w.page, func(old string) string {
		parts := block.FindStringSubmatch(old)
		return parts[1] + output + parts[2]
	})
}

// TestTroubleshooting: ten broken situations on a real node. What the packet does, what nftproxy explain says and
// what docs/troubleshooting.md shows are the same. With -update it writes the page.
func TestTroubleshooting(t *testing.T) {
	w := newTroubles(t)
	w.write("")
	proxy := start(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr",
		"10.244.0.0/16")
	proxy.awaitSync()
	for _, p := range []*testnet.Pod{w.local, w.remote} { // so that the page does not depend on which endpoint was drawn
		_, err := w.Node.Ask(t.Context(), testnet.TCP, netip.AddrPortFrom(p.Addrs.V4(), 8080), time.Minute)
		w.must(err)
	}
	pod, source := w.client.Addrs.V4().String(), " --nftproxy-manifests "+manifestsDir+" --hostname-override node-1"
	outside := w.OutsideAddrs.V4().String()
	for _, c := range []trouble{
		{name: "no-endpoints", args: "--from " + pod + " 10.96.0.10:80", from: w.client.NS, to: "10.96.0.10:80",
			want: testnet.Refused, status: 1,
			says: []string{"Service shop/cart:http: no endpoint serves", "refused by a TCP reset",
				"kubectl -n shop get endpointslices -l kubernetes.io/service-name=cart"}},
		{name: "wrong-port", args: "--from " + pod + " 10.96.0.20:8080", from: w.client.NS, to: "10.96.0.20:8080",
			want: testnet.Refused, status: 1,
			says: []string{"Service shop/web has the cluster IP 10.96.0.20, but not the port 8080/tcp",
				"use a port of the Service: 80/tcp (http)"}},
		{name: "not-ready", args: "--from " + pod + " 10.96.0.30:80" + source, from: w.client.NS, to: "10.96.0.30:80",
			want: testnet.Refused, status: 1,
			says: []string{"Service shop/api:http has 1 endpoint, and none may get connections",
				"endpoint 10.244.0.3:8080 is not ready, on this node"}},
		{name: "source-ranges", args: "--from " + outside + " 198.51.100.10:80", from: w.Outside, to: "198.51.100.10:80",
			want: testnet.TimedOut, status: 1,
			says: []string{"the loadBalancerSourceRanges (or the annotation nftproxy.io/source-ranges) of Service shop/admin " +
				"let in only 10.0.0.0/8, and " + outside + " is not among them"}},
		{name: "local-policy", args: "--from " + outside + " 192.168.100.1:30090" + source, from: w.Outside,
			to: "192.168.100.1:30090", want: testnet.TimedOut, status: 1,
			says: []string{"Service shop/edge:http: externalTrafficPolicy is Local and no endpoint serves on this node",
				"one endpoint is on another node"}},
		{name: "conflict", args: "--from " + outside + " 198.51.100.20:80" + source, from: w.Outside, to: "198.51.100.20:80",
			want: testnet.Answered, masqueraded: true,
			says: []string{"Service shop/new asks for 198.51.100.20:80/tcp and does not get it: it belongs to Service " +
				"shop/old, since it is older"}},
		{name: "unallocated", args: "--from " + pod + " 10.96.0.99:80", from: w.client.NS, to: "10.96.0.99:80",
			want: testnet.TimedOut, status: 1,
			says: []string{"no Service has the address 10.96.0.99, which is in the ServiceCIDR 10.96.0.0/16"}},
		{name: "masquerade", args: "--from " + outside + " 192.168.100.1:30080", from: w.Outside, to: "192.168.100.1:30080",
			want: testnet.Answered, masqueraded: true,
			says: []string{"the endpoints see an address of this node",
				"the externalTrafficPolicy of Service shop/web is Cluster", "set externalTrafficPolicy to Local"}},
	} {
		w.check(c)
	}
	proxy.end()
	w.write(fmt.Sprintf("{addresses: [%s], nodeName: node-1}", w.local.Addrs.V4()))
	w.check(trouble{name: "stale", args: "--from " + pod + " 10.96.0.20:80" + source, from: w.client.NS,
		to: "10.96.0.20:80", want: testnet.Answered,
		says: []string{"the tables differ from the manifests at my-services: the packet should go to 10.244.0.3:8080",
			"no process owns the tables", "start nftproxy"}})
	w.must(w.nft.Load(w.Node, "insert rule ip nftproxy endpoints-2 ip saddr "+pod+" drop"))
	w.check(trouble{name: "foreign-edit", args: "--from " + pod + " 10.96.0.20:80", from: w.client.NS, to: "10.96.0.20:80",
		want: testnet.TimedOut, status: 1,
		says: []string{"another process has changed nftproxy's table: rule 1 of chain endpoints-2 is not nftproxy's (ip " +
			"saddr " + pod + "/32 drop)"}})
	w.comparePage()
}

func (w *troubles) comparePage() {
	w.Helper()
	if *update && !w.Failed() {
		w.must(os.WriteFile(troublesPage, []byte(w.page), 0o644))
	}
	have, err := os.ReadFile(troublesPage)
	w.must(err)
	if diff := cmp.Diff(string(have), w.page); diff != "" {
		w.Errorf("docs/troubleshooting.md is not what nftproxy explain says: make golden writes it (-page +run):\n%s", diff)
	}
}

// TestExplainUnknownRule: of a rule that nftproxy does not know, explain says that it cannot tell. Rules that
// cannot match do not matter.
func TestExplainUnknownRule(t *testing.T) {
	w := newTroubles(t)
	w.write("")
	firstSync(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr", "10.244.0.0/16")
	w.must(w.nft.Load(w.Node, "insert rule ip nftproxy endpoints-2 ip saddr 10.244.9.9 limit rate 1/second drop"))
	args := "--from " + w.client.Addrs.V4().String() + " 10.96.0.20:80"
	if stdout, _, status := w.explain(args); status != 0 {
		t.Errorf("a rule that cannot match: exit status %d:\n%s", status, stdout)
	}
	w.must(w.nft.Load(w.Node, "insert rule ip nftproxy endpoints-2 ip saddr 10.244.0.0/16 limit rate 1/second drop"))
	if stdout, _, status := w.explain(args); status != 2 || !strings.Contains(stdout, "nftproxy cannot tell") ||
		!strings.Contains(stdout, "rule 1 of chain endpoints-2 is not nftproxy's") {
		t.Errorf("a rule that may match: exit status %d:\n%s", status, stdout)
	}
}

// TestExplainStatus: the exit status tells the outcome, in every output.
func TestExplainStatus(t *testing.T) {
	w := newTroubles(t)
	w.write("")
	firstSync(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr", "10.244.0.0/16")
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"10.96.0.20:80 -o yaml", 0, "outcome: endpoint\n"},
		{"10.96.0.10:80 -o json", 1, `"outcome": "refused"`},
		{"10.96.0.99:80", 1, "it is dropped"},
		{"192.168.100.1:30090", 1, "Other clients:\n  from 192.168.100.1 (the node itself): it goes to 10.244.1.2:8080, " +
			"masqueraded\n"},
		{"192.0.2.9:80", 3, "nftproxy's rules leave it alone"},
		{"10.96.0.20:80 --nftproxy-table other", 3, "the kernel has no table ip other"},
		{"10.96.0.20", 2, "want ADDR:PORT"},
		{"10.96.0.20:80 --from fd00::1", 2, "different families"},
		{"10.96.0.20:80 -o name", 2, "want text, wide, json or yaml"},
		{"10.96.0.20:80 --nftproxy-manifests gone", 2, "no such file"},
		{"", 2, "accepts 1 arg"},
	} {
		if stdout, stderr, status := w.explain(c.args); status != c.status || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("explain %s: exit status %d, want %d and %q:\n%s%s", c.args, status, c.status, c.says, stdout, stderr)
		}
	}
}

// TestExplainOtherChains: explain names the chains of firewalls that the packet still has to pass, of nftables and
// of iptables-legacy, and no others.
func TestExplainOtherChains(t *testing.T) {
	w := newTroubles(t)
	w.write("")
	firstSync(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr", "10.244.0.0/16")
	w.must(w.nft.Load(w.Node, `
table inet mine {
	chain forward { type filter hook forward priority 10; policy drop; accept; }
	chain input { type filter hook input priority 0; policy drop; }
	chain harmless { type filter hook forward priority 20; counter; }
	chain jumps { type filter hook postrouting priority 30; jump inner; }
	chain inner { ct state vmap { invalid : drop }; }
}
table ip6 six { chain forward { type filter hook forward priority 10; policy drop; }; }
table ip kube-proxy { chain services { type nat hook prerouting priority -90; drop; }; }
table ip second { comment "kept by nftproxy, a Kubernetes service proxy"; }
table ip hostports { chain before { type nat hook prerouting priority -110; tcp dport 99 dnat to 10.9.9.9; }; }
`))
	stdout, _, _ := w.explain("--from " + w.client.Addrs.V4().String() + " 10.96.0.20:80")
	for _, text := range []string{
		"hook forward, priority 10: chain forward in table inet mine drops what no rule accepts",
		"hook postrouting, priority 30: chain jumps in table inet mine has rules that drop or reject packets",
		"hook prerouting, priority -110: chain before in table ip hostports has rules that change addresses, perhaps " +
			"before nftproxy's",
		"hook prerouting, priority -90: chain services in table ip kube-proxy, of kube-proxy has rules that drop or reject " +
			"packets",
		"the kernel has rules of kube-proxy too", "table ip second has no rule for the packet; it is of an nftproxy that " +
			"has ended",
	} {
		if !strings.Contains(stdout, text) {
			t.Errorf("does not say %q:\n%s", text, stdout)
		}
	}
	for _, text := range []string{"chain input", "harmless", "ip6 six"} {
		if strings.Contains(stdout, text) {
			t.Errorf("says %q:\n%s", text, stdout)
		}
	}
	// A packet that is refused does not come to chains behind.
	if stdout, _, _ := w.explain("--from " + w.client.Addrs.V4().String() + " 10.96.0.10:80"); strings.Contains(stdout,
		"hook forward") {
		t.Errorf("a refused packet passes forward:\n%s", stdout)
	}
}

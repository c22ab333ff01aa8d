package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// running is `nftproxy run` as node-1 in a network namespace, with its log.
type running struct {
	*testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	log   strings.Builder
}

// logged has the fields of a log line that the tests read.
type logged struct {
	Time                time.Time
	Msg, Level, Address string
	Server              string
	Endpoint, Reason    string
	Written, Clients    int
	Endpoints           int
	Missing, Serving    int
	Why                 map[string]int
}

func start(t *testing.T, ns *testnet.Namespace, flags ...string) *running {
	t.Helper()
	r := &running{T: t, cmd: exec.Command("nftproxy", append([]string{"run", "--hostname-override", "node-1",
		"--metrics-bind-address=", "--healthz-bind-address=", "-v", "2"}, flags...)...)}
	stderr, err := r.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.lines = bufio.NewScanner(stderr)
	if err := ns.Start(r.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.cmd.ProcessState != nil {
			return
		}
		_ = r.cmd.Process.Signal(syscall.SIGTERM) // If the process has ended, Wait returns its error.
		_, _ = io.Copy(io.Discard, stderr)
		if err := r.cmd.Wait(); err != nil {
			t.Errorf("nftproxy run: %v, log:\n%s", err, r.log.String())
		}
	})
	return r
}

// awaitLimit is far beyond what any line takes. A process that never writes it must not
// take the time of all other tests.
const awaitLimit = 3 * time.Minute

// await returns the next line for which is returns true. It kills a process that does not
// write one.
func (r *running) await(what string, is func(logged) bool) logged {
	r.Helper()
	limit := time.AfterFunc(awaitLimit, func() { _ = r.cmd.Process.Kill() }) // If it has ended, the log ends, too.
	defer limit.Stop()
	for r.lines.Scan() {
		r.log.WriteString(r.lines.Text() + "\n")
		var l logged
		if json.Unmarshal(r.lines.Bytes(), &l) == nil && is(l) {
			return l
		}
	}
	r.Fatalf("ended without %s, log:\n%s", what, r.log.String())
	return logged{}
}

// awaitSync returns the number of objects that the next sync wrote.
func (r *running) awaitSync() int {
	r.Helper()
	return r.await("a sync", func(l logged) bool { return l.Msg == "synced" }).Written
}

// awaitSyncAndServer waits for a sync and for the server at an address, which come in any order.
func (r *running) awaitSyncAndServer(address string) {
	r.Helper()
	synced, serving := false, false
	r.await("a sync and the server at "+address, func(l logged) bool {
		synced = synced || l.Msg == "synced"
		serving = serving || l.Msg == "serving" && l.Address == address
		return synced && serving
	})
}

// end ends the process as an init system does.
func (r *running) end() {
	r.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.Error(err)
	}
	for r.lines.Scan() {
		r.log.WriteString(r.lines.Text() + "\n")
	}
	if err := r.cmd.Wait(); err != nil {
		r.Fatalf("nftproxy run: %v, log:\n%s", err, r.log.String())
	}
}

// firstSync runs the process until its first sync, and returns the number of objects that
// it wrote.
func firstSync(t *testing.T, ns *testnet.Namespace, flags ...string) int {
	t.Helper()
	r := start(t, ns, flags...)
	defer r.end()
	return r.awaitSync()
}

// manifest writes a manifest to a file of its own and returns its path.
func manifest(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// webManifest returns a Service "web" with port 80 and more fields of its spec, and its
// endpoints at port 8080, given as ADDRESS or ADDRESS@NODE.
func webManifest(spec string, endpoints ...string) string {
	text := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIPs: [10.96.0.10, "fd00:96::a"], ports: [{port: 80}]%s}
`, spec)
	for i, e := range endpoints {
		address, node, _ := strings.Cut(e, "@")
		family := "IPv4"
		if strings.Contains(address, ":") {
			family = "IPv6"
		}
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%d, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: ["%s"], nodeName: "%s"}]
`, i, family, address, node)
	}
	return text
}

const nodePortManifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]}
`

// TestRestartWritesNothing: the first program of a start has the node's own addresses.
// Without them node ports would be gone for a moment.
func TestRestartWritesNothing(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "restart")
	if err := ns.AddAddr("lo", netip.MustParsePrefix("192.0.2.7/32")); err != nil {
		t.Fatal(err)
	}
	manifests := manifest(t, nodePortManifest)
	flags := []string{"--nftproxy-manifests", manifests, "--nodeport-addresses", "192.0.2.0/24"}
	if n := firstSync(t, ns, flags...); n == 0 {
		t.Error("the first start wrote nothing")
	}
	for range 5 { // Addresses that come too late may sometimes come in time.
		if n := firstSync(t, ns, flags...); n != 0 {
			t.Errorf("a restart wrote %d objects", n)
		}
	}
}

// TestCollectorWorksAgain: after the first sync of a start and of a restart, the
// operator's settings are in force.
func TestCollectorWorksAgain(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "collector")
	t.Setenv("GOGC", "77")
	t.Setenv("GOMEMLIMIT", "3GiB")
	manifests := manifest(t, nodePortManifest)
	for _, what := range []string{"start", "restart"} {
		r := start(t, ns, "--nftproxy-manifests", manifests, "--metrics-bind-address", "127.0.0.1:10249")
		r.awaitSyncAndServer("127.0.0.1:10249")
		page := get(t, ns, "127.0.0.1:10249", "/metrics")
		for _, want := range []string{"\ngo_gc_gogc_percent 77\n", "\ngo_gc_gomemlimit_bytes 3.221225472e+09\n"} {
			if !strings.Contains(page, want) {
				t.Errorf("after a %s the metrics lack %q", what, want)
			}
		}
		r.end()
	}
}

// TestStartsWhileInterfacesChange: that interfaces come and go ends no start.
func TestStartsWhileInterfacesChange(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	testnet.ChurnForTest(t, ns)
	path := manifest(t, webManifest(", type: NodePort", "10.244.0.5"))
	for range 25 {
		firstSync(t, ns, "--nftproxy-manifests", path, "--nodeport-addresses", "10.0.0.0/8,fd00::/8")
	}
}

const podCIDRManifest = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.244.7.0/24, "fd00:7::/64"]}
---`

// TestMasqueradeFlags: the flags reach the rules.
func TestMasqueradeFlags(t *testing.T) {
	nft := netfilter.NFTForTest(t)
	for name, c := range map[string]struct {
		flags []string
		// want has texts that the listing must have, not has texts that it must not have.
		want, not []string
	}{
		"by the Node's podCIDRs, another bit": {
			[]string{"--detect-local-mode", "NodeCIDR", "--cluster-cidr", "10.0.0.0/8", "--iptables-masquerade-bit", "3"},
			[]string{"ip saddr != 10.244.7.0/24", "ip6 saddr != fd00:7::/64", "0x00000008"},
			[]string{"10.0.0.0/8", "0x00004000"},
		},
		"by the cluster's CIDR, the usual bit": {
			[]string{"--cluster-cidr", "10.0.0.0/8", "--iptables-masquerade-bit=14"},
			[]string{"ip saddr != 10.0.0.0/8", "0x00004000"},
			[]string{"saddr != 10.244.7.0/24", "fd00:7::/64", "0x00000008", "ct label"},
		},
		"by the cluster's CIDR, no bit": {
			[]string{"--cluster-cidr", "10.0.0.0/8"},
			[]string{"ip saddr != 10.0.0.0/8", "ct label set 110", "ct label 110 masquerade"},
			[]string{"saddr != 10.244.7.0/24", "fd00:7::/64", "meta mark"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testnet.NamespaceForTest(t, "masquerade")
			firstSync(t, ns, append(c.flags, "--nftproxy-manifests",
				manifest(t, podCIDRManifest+webManifest("", "10.244.7.1", "fd00:7::1")))...)
			listing, err := nft.Ruleset(ns)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.want {
				if !strings.Contains(listing, text) {
					t.Errorf("lacks %q:\n%s", text, listing)
				}
			}
			for _, text := range c.not {
				if strings.Contains(listing, text) {
					t.Errorf("has %q:\n%s", text, listing)
				}
			}
		})
	}
}

// TestStatusPage: the daemon serves the status page beside its metrics, with what its
// syncs told, what connection tracking has, and explanations by the kernel's rules.
func TestStatusPage(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "page")
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	r := start(t, ns, "--nftproxy-manifests", manifest(t, webManifest("", "10.244.7.1@node-1", "10.244.8.1@node-2")),
		"--metrics-bind-address", "127.0.0.1:10249")
	r.awaitSyncAndServer("127.0.0.1:10249")
	for _, c := range []struct {
		target string
		code   int
		want   []string
	}{
		{"/status", http.StatusOK, []string{"Ready: the rules are in force", "default/web", "No endpoints",
			"80/tcp: 2 ready"}},
		{"/status?service=default/web", http.StatusOK, []string{"one of 2 endpoints", "10.244.7.1:8080", "node-1 (this node)",
			"node-2", "no endpoint serves, so connections are refused"}},
		{"/status?view=draining", http.StatusOK, []string{"No such endpoint has connections."}},
		{"/status?explain=10.96.0.10:80/tcp", http.StatusOK, []string{"<strong>endpoint: </strong>", "10.244.7.1:8080",
			"10.244.8.1:8080", "default/web", "50 %"}},
		{"/status?explain=10.96.0.10:81/tcp&from=node", http.StatusOK, []string{"<strong>refused: </strong>"}},
		{"/status?explain=10.96.0.10", http.StatusBadRequest, []string{"Cannot show that"}},
		{"/statusz", http.StatusOK, []string{" /status "}},
		{"/", http.StatusNotFound, nil}, // as kube-proxy
	} {
		answer, err := client.Get("http://127.0.0.1:10249" + c.target)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close() // It has been read.
		if answer.StatusCode != c.code {
			t.Errorf("%s: %s", c.target, answer.Status)
		}
		for _, want := range c.want {
			if !strings.Contains(string(body), want) {
				t.Errorf("%s lacks %q:\n%s", c.target, want, body)
			}
		}
	}
}

// TestHealthCheckNodePort: health check node ports work on the node's addresses as they
// come and go. They do not need the health server, as they do in kube-proxy.
func TestHealthCheckNodePort(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	change := func(change func(string, netip.Prefix) error, prefix string) {
		t.Helper()
		if err := change("lo", netip.MustParsePrefix(prefix)); err != nil {
			t.Fatal(err)
		}
	}
	change(ns.AddAddr, "192.0.2.1/32")
	text := webManifest(", type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32100",
		"10.244.7.1@node-1", "10.244.7.2@node-1", "10.244.8.1@node-2", "fd00:7::1@node-1")
	r := start(t, ns, "--nftproxy-manifests", manifest(t, text), "--nodeport-addresses", "192.0.2.0/24,2001:db8::/32")
	await := func(msg, address string) {
		t.Helper()
		r.await(msg+" "+address, func(l logged) bool { return l.Msg == msg && l.Address == address })
	}
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	ask := func(address string, local int) {
		t.Helper()
		r, err := client.Get("http://" + address)
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		want := fmt.Sprintf(`{"service":{"namespace":"default","name":"web"},"localEndpoints":%d,"serviceProxyHealthy":true}`,
			local)
		if err != nil || r.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != want {
			t.Errorf("%s: %d %s (%v), want %s", address, r.StatusCode, body, err, want)
		}
	}

	const opened, closed = "listening on a health check node port", "no longer listening on a health check node port"
	await(opened, "192.0.2.1:32100")
	ask("192.0.2.1:32100", 2)
	change(ns.AddAddr, "2001:db8::1/128")
	await(opened, "[2001:db8::1]:32100")
	ask("[2001:db8::1]:32100", 1)
	change(ns.AddAddr, "192.0.2.2/32")
	await(opened, "192.0.2.2:32100")
	ask("192.0.2.2:32100", 2)
	change(ns.DelAddr, "192.0.2.1/32")
	await(closed, "192.0.2.1:32100")
	ask("192.0.2.2:32100", 2)
}

// TestNoMasqueradeCIDRs: what is no range, and more ranges than a rule has, are errors that name the flag and the
// value.
func TestNoMasqueradeCIDRs(t *testing.T) {
	many := strings.Split(
		"10.0.0.0/24,10.0.2.0/24,10.0.4.0/24,10.0.6.0/24,10.0.8.0/24,10.0.10.0/24,10.0.12.0/24,10.0.14.0/24,fd00::/64", ",")
	if got, err := parseNoMasquerade(many); err != nil || len(got) != 9 {
		t.Errorf("8 ranges of IPv4 and one of IPv6: %v, %v", got, err)
	}
	for _, bad := range [][]string{{"10.0.0.300/8"}, {"pods"}, append(many, "10.0.16.0/24")} {
		_, err := parseNoMasquerade(bad)
		if err == nil || !strings.Contains(err.Error(), "--nftproxy-no-masquerade-cidrs") || !strings.Contains(err.Error(),
			bad[len(bad)-1]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

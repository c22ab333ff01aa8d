package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	daemonflows "nftproxy/daemon/flows"
	modelflows "nftproxy/model/flows"
	"nftproxy/nft/flowtable"
	"nftproxy/test/check"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// Services of a flowsWorld, by the last part of their addresses: 10.96.0.N and fd00:96::N, load balancer's addresses
// 203.0.113.N and 2001:db8::N, external IPs with N+100, and node ports 30000+N. Each has port 80 of TCP, UDP and SCTP.
const (
	flowsWeb     = 1 + iota // an endpoint on each node
	flowsClosed             // nothing listens
	flowsSilent             // the endpoint drops
	flowsEmpty              // no endpoints
	flowsLocal              // externalTrafficPolicy Local, and its endpoint is on the other node
	flowsFenced             // source ranges without the client
	flowsOther              // another share of its flows
	flowsResets             // the endpoint resets each connection that it has accepted
	flowsBlocked            // another program of the node drops what goes to the endpoint
	flowsEnd
)

func flowsNames() []string {
	return []string{"", "web", "closed", "silent", "empty", "local", "fenced", "other", "resets", "blocked"}
}

// flowsWorld is a node with a proxy, clients at several places, and endpoints.
type flowsWorld struct {
	*testing.T
	*testnet.Topology
	places map[string]*testnet.Namespace
	addrs  map[string]testnet.Addrs
	// webAt are the pods behind web, and other is the annotation of the Service with that name.
	webAt    []string
	other    string
	manifest string
	nft      netfilter.NFT
	port     atomic.Uint32

	mu       sync.Mutex
	attempts []attempt // of the clients, since the process runs
}

func newFlowsWorld(t *testing.T, other string) *flowsWorld {
	w := &flowsWorld{T: t, Topology: testnet.NewForTest(t, testnet.Config{}), places: map[string]*testnet.Namespace{},
		addrs: map[string]testnet.Addrs{}, webAt: []string{"near", "far"}, other: other, nft: netfilter.NFTForTest(t)}
	for _, name := range []string{"client", "near", "far", "silent", "resets", "blocked"} {
		add := w.AddPod
		if name == "far" {
			add = w.AddRemotePod
		}
		pod, err := add(name)
		testnet.Require(t, err)
		w.places[name], w.addrs[name] = pod.NS, pod.Addrs
	}
	w.places["node"], w.addrs["node"] = w.Node, w.NodeAddrs
	w.places["outside"], w.addrs["outside"] = w.Outside, w.OutsideAddrs
	for i, cidr := range []string{"203.0.113.0/24", "2001:db8::/64"} {
		testnet.Require(t, w.Outside.AddRoute(netip.MustParsePrefix(cidr), w.NodeAddrs[i]))
	}
	for _, name := range []string{"near", "far"} {
		for _, a := range w.addrs[name] {
			for _, protocol := range []string{testnet.TCP, testnet.UDP, testnet.SCTP} {
				_, err := w.places[name].Serve(protocol, netip.AddrPortFrom(a, 8080), name)
				testnet.Require(t, err)
			}
		}
	}
	w.serveResets()
	testnet.Require(t, w.nft.Load(w.places["silent"], "table inet silent {\nchain input {\n"+
		"type filter hook input priority 0\nmeta l4proto { tcp, udp, sctp } drop\n}\n}\n"))
	w.block()
	// Their entries end within the test, so that it sees the bytes at the end.
	testnet.Require(t, w.Node.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "3"))
	w.manifest = manifest(t, "")
	w.write()
	return w
}

// serveResets accepts connections and resets them.
func (w *flowsWorld) serveResets() {
	for _, a := range w.addrs["resets"] {
		l, err := w.places["resets"].Listen(w.Context(), "tcp", netip.AddrPortFrom(a, 8080).String())
		testnet.Require(w, err)
		w.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
		}()
	}
}

// block has another program of the node drop what goes to an endpoint.
func (w *flowsWorld) block() {
	testnet.Require(w, w.nft.Load(w.Node, fmt.Sprintf("table inet firewall {\nchain forward {\n"+
		"type filter hook forward priority 0\nip daddr %s drop\nip6 daddr %s drop\n}\n}\n", w.addrs["blocked"].V4(),
		w.addrs["blocked"].V6())))
}

// write puts the Services into the manifest that the process reads.
func (w *flowsWorld) write() {
	var b strings.Builder
	for n := flowsWeb; n < flowsEnd; n++ {
		name := flowsNames()[n]
		annotation, more := "", ""
		at, port := []string{name}, 8080
		switch n {
		case flowsWeb:
			at = w.webAt
		case flowsClosed:
			at, port = []string{"near"}, 9
		case flowsEmpty:
			at = nil
		case flowsLocal:
			at, more = []string{"far"}, "externalTrafficPolicy: Local"
		case flowsFenced:
			at, more = []string{"near"}, `loadBalancerSourceRanges: [198.51.100.0/24, "2001:db8:ff::/48"]`
		case flowsOther:
			at, annotation = []string{"near"}, fmt.Sprintf(", annotations: {nftproxy.io/flows: %q}", w.other)
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: %s%s}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.%d, "fd00:96::%[3]d"]
  externalIPs: [203.0.113.%[4]d, "2001:db8::%[4]d"]
  ports:
  - {name: t, port: 80, nodePort: %[5]d}
  - {name: u, port: 80, protocol: UDP, nodePort: %[5]d}
  - {name: s, port: 80, protocol: SCTP, nodePort: %[5]d}
  %[6]s
status: {loadBalancer: {ingress: [{ip: 203.0.113.%[3]d}, {ip: "2001:db8::%[3]d"}]}}
`, name, annotation, n, n+100, 30000+n, more)
		for family, kind := range []string{"IPv4", "IPv6"} {
			fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%d, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: t, port: %[4]d}, {name: u, port: %[4]d, protocol: UDP}, {name: s, port: %[4]d, protocol: SCTP}]
endpoints:
`, name, family, kind, port)
			for _, pod := range at {
				node := map[bool]string{true: "node-2", false: "node-1"}[pod == "far"]
				fmt.Fprintf(&b, "- {addresses: [%q], nodeName: %s}\n", w.addrs[pod][family], node)
			}
		}
	}
	next := w.manifest + ".next"
	testnet.Require(w, errors.Join(os.WriteFile(next, []byte(b.String()), 0o600), os.Rename(next, w.manifest)))
}

// run starts the process, and returns when it follows connections, if it shall.
func (w *flowsWorld) run(share string) *running {
	if share == "off" {
		return w.runUntil(share, "synced", "serving")
	}
	return w.runUntil(share, "synced", "serving", "following connections")
}

// runUntil starts the process, and returns when it has logged all of the messages.
func (w *flowsWorld) runUntil(share string, messages ...string) *running {
	w.attempts = nil
	r := start(w.T, w.Node, "--nftproxy-manifests", w.manifest, "--cluster-cidr", "10.244.0.0/16,fd00:244::/56",
		"--nftproxy-flows="+share, "--metrics-bind-address="+defaultMetricsAddress)
	left := map[string]bool{}
	for _, m := range messages {
		left[m] = true
	}
	r.await("all of it", func(l logged) bool {
		if l.Msg != "serving" || l.Address == defaultMetricsAddress {
			delete(left, l.Msg)
		}
		return len(left) == 0
	})
	return r
}

// get asks the process for what its metrics server has at a path.
func (w *flowsWorld) get(path string) io.Reader {
	w.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context,
		_, a string) (net.Conn, error) {
		return w.Node.Dial(ctx, "tcp", a)
	}}}
	response, err := client.Get("http://" + defaultMetricsAddress + path)
	testnet.Require(w, err)
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	testnet.Require(w, err)
	if response.StatusCode != http.StatusOK {
		w.Fatalf("%s: %s: %s", path, response.Status, body)
	}
	return strings.NewReader(string(body))
}

// await asks the process for flows until they satisfy: no event tells of them.
func (w *flowsWorld) await(enough func([]modelflows.Flow) bool) []modelflows.Flow {
	w.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(awaitLimit)
	for {
		var a daemonflows.Answer
		testnet.Require(w, json.NewDecoder(w.get(daemonflows.Path)).Decode(&a))
		if enough(a.Flows) {
			return a.Flows
		}
		select {
		case <-ticker.C:
		case <-limit:
			text, _ := json.MarshalIndent(a.Flows, "", " ")
			w.Fatalf("not enough flows: %s", text)
		}
	}
}

// awaitTable waits until the table for answers is there.
func (w *flowsWorld) awaitTable() {
	w.Helper()
	w.await(func([]modelflows.Flow) bool {
		return w.Node.Run(exec.Command(w.nft.Path(), "list", "table", "inet", flowtable.Name("nftproxy"))) == nil
	})
}

// counted are the metrics of connections, by Service and result.
func (w *flowsWorld) counted() map[string]float64 {
	w.Helper()
	families, err := check.ParseMetrics(w.get("/metrics"))
	testnet.Require(w, err)
	counts := map[string]float64{}
	for _, m := range families["nftproxy_flow_connections_total"].GetMetric() {
		var words []string
		for _, l := range m.GetLabel() {
			words = append(words, l.GetValue())
		}
		slices.Sort(words)
		counts[strings.Join(words, " ")] += m.GetCounter().GetValue()
	}
	return counts
}

// route is a way from clients at a place to a Service, and what must come of it.
type route struct {
	from    string
	service int
	way     modelflows.Way
	port    uint16 // 0 for that of the Service
	only    string // the protocols; empty for all
	want    modelflows.Result
	cause   string
	// at is the pod that it leads to, where the client does not learn it.
	at string
	// reset says that the connection is reset after it has come up, and slow that it takes long until the result is known.
	reset, slow bool
}

func (r route) destination(w *flowsWorld, family int) netip.AddrPort {
	at := func(v4, v6 string, n int) netip.AddrPort {
		text := []string{v4, v6}[family] + fmt.Sprint(n)
		port := r.port
		if port == 0 {
			port = 80
		}
		return netip.AddrPortFrom(netip.MustParseAddr(text), port)
	}
	switch r.way {
	case modelflows.ByNodePort:
		return netip.AddrPortFrom(w.NodeAddrs[family], 30000+uint16(r.service))
	case modelflows.ByLoadBalancer:
		return at("203.0.113.", "2001:db8::", r.service)
	case modelflows.ByExternalIP:
		return at("203.0.113.", "2001:db8::", r.service+100)
	}
	return at("10.96.0.", "fd00:96::", r.service)
}

// attempt is what a client knows of its connection.
type attempt struct {
	route
	protocol string
	family   int
	from, to netip.AddrPort
	began    time.Time
	outcome  string
	// server is who answered, and answer how many bytes that were.
	server string
	answer int
}

// outcomeReset is the outcome of a connection that was reset after it had come up.
const outcomeReset = "reset"

// attempt makes a connection of a route.
func (w *flowsWorld) attempt(r route, protocol string, family int) attempt {
	a := w.newAttempt(r, protocol, family)
	patience := awaitLimit
	if r.want == modelflows.Unanswered || r.want == modelflows.Dropped {
		patience = time.Second
	}
	answer, err := w.places[r.from].AskFrom(w.Context(), protocol, a.from, a.to, patience)
	switch {
	case errors.Is(err, unix.ECONNRESET):
		a.outcome = outcomeReset
	case err != nil:
		w.Error(err)
	default:
		a.outcome, a.server = string(answer.Outcome), answer.ID
		a.answer = len(fmt.Sprintf("%s %v\n", answer.ID, answer.Peer))
	}
	want := string(testnet.TimedOut)
	if r.want == modelflows.Answered || r.want == modelflows.Refused {
		want = string(r.want) // The words are the same.
	}
	if r.reset {
		want = outcomeReset
	}
	if a.outcome != want {
		w.Errorf("%s: %s, and the test wants it %s", a, a.outcome, want)
	}
	return a
}

// newAttempt is an attempt that begins now, from a port that no other one has.
func (w *flowsWorld) newAttempt(r route, protocol string, family int) attempt {
	const first = 10_000
	return attempt{route: r, protocol: protocol, family: family, to: r.destination(w, family), began: time.Now(),
		from: netip.AddrPortFrom(w.addrs[r.from][family], uint16(first+w.port.Add(1)))}
}

func (a attempt) String() string {
	return fmt.Sprintf("%s %v to %v, %s of %s by %s", a.route.from, a.from, a.to, a.protocol, serviceName(a.service),
		a.way)
}

// endpoint is where the connection led; not valid if nowhere, or if nobody can know.
func (a attempt) endpoint(w *flowsWorld) netip.AddrPort {
	pod, port := a.at, uint16(8080)
	if a.outcome == string(testnet.Answered) {
		pod = a.server
	}
	if a.service == flowsClosed {
		port = 9
	}
	if pod == "" {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(w.addrs[pod][a.family], port)
}

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// ejectManifest returns a Service with an endpoint on each node.
func ejectManifest(annotation string, endpoints map[string]netip.Addr) string {
	text := `
apiVersion: v1
kind: Service
metadata: {name: web` + annotation + `}
spec: {clusterIPs: [10.96.0.10], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
`
	for node, a := range endpoints {
		text += fmt.Sprintf("- {addresses: [%q], nodeName: %s}\n", a, node)
	}
	return text
}

// outcome is a connection: when it began, how long it took to an answer, and whose.
type outcome struct {
	began time.Time
	took  time.Duration
	by    string
	err   error
}

// visit makes a connection to the Service.
func visit(ctx context.Context, from *testnet.Pod, patience time.Duration) (o outcome) {
	o.began = time.Now()
	defer func() { o.took = time.Since(o.began) }()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := from.NS.Dial(ctx, "tcp", "10.96.0.10:80")
	if err != nil {
		o.err = err
		return o
	}
	defer func() { _ = conn.Close() }()
	if o.err = conn.SetDeadline(o.began.Add(patience)); o.err != nil {
		return o
	}
	if _, o.err = conn.Write([]byte("?")); o.err != nil {
		return o
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if o.err = err; err == nil {
		o.by, _, o.err = testnet.ParseAnswer(strings.TrimSpace(line))
	}
	return o
}

// clientLoad makes a new connection every period, whatever became of those before, until stop is called. stop waits for
// all and returns them.
func clientLoad(ctx context.Context, from *testnet.Pod, period, patience time.Duration) (stop func() []outcome) {
	var mu sync.Mutex
	var all []outcome
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			wg.Go(func() {
				o := visit(ctx, from, patience)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, o)
			})
		}
	})
	return func() []outcome {
		close(done)
		wg.Wait()
		return all
	}
}

// ejectWorld is a topology with a client on the node and endpoints on as many nodes as there are, node-1 and others.
// Each answers until its Cut. visits has who connected to each, as far as somebody takes it out.
type ejectWorld struct {
	*testnet.Topology
	client    *testnet.Pod
	endpoints map[string]netip.Addr
	pods      map[string]*testnet.Pod
	visits    map[string]chan netip.Addr
}

func newEjectWorld(t *testing.T, nodes int) *ejectWorld {
	t.Helper()
	w := &ejectWorld{testnet.NewForTest(t, testnet.Config{}), nil, map[string]netip.Addr{}, map[string]*testnet.Pod{},
		map[string]chan netip.Addr{}}
	var err error
	if w.client, err = w.AddPod("client"); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		node, add := fmt.Sprintf("node-%d", i+1), w.AddRemotePod
		if i == 0 {
			add = w.AddPod
		}
		pod, err := add("on-" + node)
		if err != nil {
			t.Fatal(err)
		}
		w.pods[node], w.endpoints[node], w.visits[node] = pod, pod.Addrs.V4(), serveVisits(t, pod, 8080, node)
	}
	return w
}

// startEjecting starts a proxy that leaves out endpoints without an answer, and returns once it serves.
func (w *ejectWorld) startEjecting(t *testing.T) *running {
	t.Helper()
	r := start(t, w.Node, "--nftproxy-manifests", manifest(t, ejectManifest("", w.endpoints)), "--cluster-cidr",
		"10.244.0.0/16", "--nftproxy-eject=on")
	r.awaitSync()
	return r
}

// serveVisits answers on a port of all addresses of the pod with its name and the client's address, and says who
// connected.
func serveVisits(t *testing.T, pod *testnet.Pod, port uint16, id string) chan netip.Addr {
	t.Helper()
	l, err := pod.NS.Listen(t.Context(), "tcp", netip.AddrPortFrom(netip.IPv4Unspecified(), port).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	visits := make(chan netip.Addr, 64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			from := netip.MustParseAddrPort(conn.RemoteAddr().String())
			go func() {
				_, _ = fmt.Fprintf(conn, "%s %v\n", id, from) // The client may have gone.
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
			select {
			case visits <- from.Addr():
			default:
			}
		}
	}()
	return visits
}

// awaitVisit returns when an address has connected to an endpoint.
func awaitVisit(t *testing.T, visits <-chan netip.Addr, from netip.Addr) {
	t.Helper()
	limit := time.After(awaitLimit)
	for {
		select {
		case a := <-visits:
			if a == from {
				return
			}
		case <-limit:
			t.Fatalf("%v never connected", from)
		}
	}
}

// notAnswering is the line about an endpoint that is left out, and isBack the one about its return.
func notAnswering(l logged) bool {
	return strings.HasPrefix(l.Msg, "an endpoint does not answer; new connections")
}
func isBack(l logged) bool { return l.Msg == "an endpoint is no longer left out" }

// TestMeasureEject prints what clients notice of a node that does not answer, with EJECT=off or EJECT=on for 30 s: of
// 200 new connections a second to three endpoints, those that take more than a second and those that fail after 5 s, by
// the second in which they began after the cut.
func TestMeasureEject(t *testing.T) {
	mode := os.Getenv("EJECT")
	if mode == "" {
		t.Skip("EJECT=off or EJECT=on asks for it")
	}
	w := newEjectWorld(t, 3)
	r := start(t, w.Node, "--nftproxy-manifests", manifest(t, ejectManifest("", w.endpoints)), "--cluster-cidr",
		"10.244.0.0/16", "--nftproxy-eject="+mode)
	r.awaitSync()
	stop := clientLoad(t.Context(), w.client, 5*time.Millisecond, 5*time.Second)
	time.Sleep(10 * time.Second)
	if _, err := w.pods["node-2"].NS.Cut(netip.AddrPortFrom(w.endpoints["node-2"], 8080)); err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	time.Sleep(30 * time.Second)
	all, slow, failed := map[int]int{}, map[int]int{}, map[int]int{}
	last := time.Duration(0)
	for _, o := range stop() {
		second := int(o.began.Sub(cut)/time.Second) + 1
		if o.began.Before(cut) {
			second = 0
		}
		all[second]++
		switch {
		case o.err != nil:
			failed[second]++
			last = max(last, o.began.Sub(cut))
		case o.took > time.Second:
			slow[second]++
			last = max(last, o.began.Sub(cut))
		}
	}
	t.Logf("the last one that is slow or fails began %v after the cut", last)
	for second := range 31 {
		t.Logf("second %d: %d connections, %d slow, %d failed", second, all[second], slow[second], failed[second])
	}
}

// TestEject: a node does not answer any more. It is left out, all connections that have begun since are answered by
// others, those that hung first by the next packet of their client, and it is back after its first answer. The
// annotation goes before the flag.
func TestEject(t *testing.T) {
	w := newEjectWorld(t, 3)
	r := start(t, w.Node, "--nftproxy-manifests", manifest(t, ejectManifest(`, annotations: {nftproxy.io/eject: "on"}`,
		w.endpoints)), "--cluster-cidr", "10.244.0.0/16", "--nftproxy-eject=off")
	r.awaitSync()
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 2*time.Minute)
	repair, err := w.pods["node-2"].NS.Cut(netip.AddrPortFrom(w.endpoints["node-2"], 8080))
	if err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	r.await("that the endpoint is left out", func(l logged) bool {
		return strings.HasPrefix(l.Msg, "an endpoint does not answer; new connections")
	})
	left := time.Now()
	r.await("the end of half connections", func(l logged) bool { return l.Msg == "removed stale conntrack entries" })
	wantSight(t, w.Node, w.endpoints["node-2"], manifest(t, ejectManifest(`, annotations: {nftproxy.io/eject: "on"}`,
		w.endpoints)))
	all := stop()
	slow, last := 0, time.Duration(0) // of those that have begun since
	for _, o := range all {
		switch {
		case o.began.Before(cut): // It may have been accepted, and its answer was cut off.
		case o.err != nil:
			t.Errorf("a connection that began %v after the cut: %v", o.began.Sub(cut), o.err)
		case o.took > time.Second:
			slow, last = slow+1, max(last, o.began.Sub(cut))
		}
	}
	t.Logf("left out after %v; %d of %d connections took more than a second, the last of them began after %v, and the "+
		"slowest took %v",
		left.Sub(cut), slow, len(all), last, slices.MaxFunc(all, func(a, b outcome) int { return int(a.took - b.took) }).took)
	if err := repair(); err != nil {
		t.Fatal(err)
	}
	r.await("that the endpoint is back", isBack)
	visitAll(t, w.client, w.endpoints)
	r.end()
}

// wantSight wants the commands to know of an endpoint that is left out.
func wantSight(t *testing.T, node *testnet.Namespace, left netip.Addr, manifests string) {
	t.Helper()
	const reason = `since \d\d:\d\d:\d\d: \d+ connections? without answer, 2 tries of this node failed`
	endpoint := regexp.QuoteMeta(netip.AddrPortFrom(left, 8080).String())
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "endpoints", "--connections=false", "-o", "wide"}, endpoint + `\s+-\s+left-out\s+` + reason},
		{[]string{"explain", "10.96.0.10:80"}, "endpoint " + endpoint + " does not answer this node: left out " + reason},
		{[]string{"explain", "10.96.0.10:80", "--nftproxy-manifests", manifests, "--hostname-override", "node-1"},
			"endpoint " + endpoint + " does not answer this node: left out " + reason},
		{[]string{"verify", "--nftproxy-manifests", manifests, "--cluster-cidr", "10.244.0.0/16", "--hostname-override",
			"node-1"}, "same: "},
	} {
		out, notes, code := runIn(t, node, c.args...)
		if code != 0 || !regexp.MustCompile(c.want).MatchString(out) {
			t.Errorf("nftproxy %s: %d\n%s%s\nwant %s", strings.Join(c.args, " "), code, out, notes, c.want)
		}
	}
}

// TestEjectPolicy: a NetworkPolicy forbids one client to reach the endpoints, and this node to reach those on other
// nodes. The client finds all of them silent. Nothing is left out, and other clients are served by all.
func TestEjectPolicy(t *testing.T) {
	w := newEjectWorld(t, 3)
	forbidden := w.client
	other, err := w.AddPod("other")
	if err != nil {
		t.Fatal(err)
	}
	for node, pod := range w.pods {
		sources := forbidden.Addrs.V4().String()
		if node != "node-1" {
			sources += ", " + w.NodeAddrs.V4().String()
		}
		loadPolicy(t, pod.NS, sources)
	}
	r := w.startEjecting(t)
	stop := clientLoad(t.Context(), forbidden, 20*time.Millisecond, 2*time.Second)
	r.await("that nothing is left out", func(l logged) bool {
		if strings.HasPrefix(l.Msg, "an endpoint does not answer") {
			t.Errorf("left out: %s", r.lines.Text())
		}
		return notKept(l)
	})
	for _, o := range stop() {
		if o.err == nil {
			t.Fatal("the policy lets the client through")
		}
	}
	visitAll(t, other, w.endpoints)
	r.end()
}

// visitAll makes connections until each endpoint has answered one.
func visitAll(t *testing.T, from *testnet.Pod, endpoints map[string]netip.Addr) {
	t.Helper()
	by := map[string]bool{}
	for limit := time.Now().Add(awaitLimit); len(by) < len(endpoints); {
		o := visit(t.Context(), from, awaitLimit)
		if o.err != nil || time.Now().After(limit) {
			t.Fatalf("%v; answers came from %v only", o.err, by)
		}
		by[o.by] = true
	}
}

// loadPolicy drops what comes from the addresses to the server of a pod.
func loadPolicy(t *testing.T, ns *testnet.Namespace, sources string) {
	t.Helper()
	rules := "table inet forbids { chain arriving { type filter hook input priority 0; ip saddr { " + sources +
		" } tcp dport 8080 drop; }; }"
	if err := netfilter.NFTForTest(t).Load(ns, rules); err != nil {
		t.Fatal(err)
	}
}

// testServer is the name by which the test binary serves at an address, its only argument, for TestEjectFrozen.
const testServer = "test-server"

func serveAt() {
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	for {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintln(conn, "frozen", conn.RemoteAddr())
		conn.Close()
	}
}

// startServer starts a process in the pod that serves there.
func startServer(t *testing.T, pod *testnet.Pod, at netip.AddrPort) *os.Process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{testServer, at.String()}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.NS.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the server says %q, %v", line, err)
	}
	return cmd.Process
}

// TestEjectFrozen: a pod's processes are stopped (SIGSTOP), and the network of another one goes. The stopped one's
// kernel accepts connections: nothing is done about it. The other one is left out.
func TestEjectFrozen(t *testing.T) {
	w := newEjectWorld(t, 3)
	pod, err := w.AddRemotePod("frozen")
	if err != nil {
		t.Fatal(err)
	}
	frozen := netip.AddrPortFrom(pod.Addrs.V4(), 8080)
	process := startServer(t, pod, frozen)
	w.endpoints["node-4"] = frozen.Addr()
	r := w.startEjecting(t)
	if err := process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 2*time.Second)
	link, err := w.pods["node-2"].NS.Handle().LinkByName("eth0")
	if err == nil {
		err = w.pods["node-2"].NS.Handle().LinkSetDown(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	left := func(l logged) bool {
		if strings.HasPrefix(l.Msg, "an endpoint does not answer") {
			if strings.Contains(r.lines.Text(), frozen.String()) {
				t.Errorf("the stopped pod is left out: %s", r.lines.Text())
			}
			return true
		}
		return false
	}
	r.await("that the endpoint without a network is left out", left)
	stop()
	conn, err := w.client.NS.Dial(t.Context(), "tcp", frozen.String())
	if err != nil {
		t.Errorf("the stopped pod's kernel does not accept connections: %v", err)
	} else {
		conn.Close()
	}
	r.end()
}

// TestEjectOwnUplink: the node's own uplink goes. Nothing is left out, and the endpoint on the node serves.
func TestEjectOwnUplink(t *testing.T) {
	w := newEjectWorld(t, 3)
	r := w.startEjecting(t)
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 2*time.Second)
	// Its end of the link stays up, as with a switch that forwards nothing.
	link, err := w.Outside.Handle().LinkByName(w.OutsideLink)
	if err == nil {
		err = w.Outside.Handle().LinkSetDown(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.await("that nothing is left out", func(l logged) bool {
		if strings.HasPrefix(l.Msg, "an endpoint does not answer") {
			t.Errorf("left out: %s", r.lines.Text())
		}
		return notKept(l)
	})
	stop()
	// The others are chosen, too, and cannot be reached.
	for limit := time.Now().Add(awaitLimit); ; {
		o := visit(t.Context(), w.client, 2*time.Second)
		if o.err == nil && o.by == "node-1" {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the endpoint on the node does not answer: %v", o.err)
		}
	}
	r.end()
}

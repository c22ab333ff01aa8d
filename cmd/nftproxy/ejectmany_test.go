package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/ejection"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// hang begins connections from addresses that the pod gets. They wait for an answer until the test ends.
func hang(t *testing.T, pod *testnet.Pod, from []netip.Addr, to string) {
	t.Helper()
	if err := pod.NS.AddAddrs("lo", from...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	for _, a := range from {
		group.Go(func() {
			for ctx.Err() == nil {
				if conn, err := pod.NS.DialFrom(ctx, "tcp", netip.AddrPortFrom(a, 0).String(), to); err == nil {
					_ = conn.Close() // An endpoint on the node: its answers pass the node.
				}
			}
		})
	}
}

// TestEjectAttack: a tenant opens half connections to another's Service with senders that do not exist, so that the
// answers of endpoints on other nodes do not come by. The endpoints answer the node itself: none is left out. One that
// really stops to answer meanwhile is.
func TestEjectAttack(t *testing.T) {
	w := newEjectWorld(t, 3)
	attacker, err := w.AddPod("attacker")
	if err != nil {
		t.Fatal(err)
	}
	r := w.startEjecting(t)
	var senders []netip.Addr
	for i := range 24 {
		senders = append(senders, netip.AddrFrom4([4]byte{10, 244, 1, byte(200 + i)}))
	}
	hang(t, attacker, senders, "10.96.0.10:80")
	for _, node := range []string{"node-2", "node-3"} {
		awaitVisit(t, w.visits[node], w.NodeAddrs.V4())
	}
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 2*time.Minute)
	if _, err := w.pods["node-3"].NS.Cut(netip.AddrPortFrom(w.endpoints["node-3"], 8080)); err != nil {
		t.Fatal(err)
	}
	left := r.await("that an endpoint is left out", notAnswering)
	if want := netip.AddrPortFrom(w.endpoints["node-3"], 8080).String(); left.Endpoint != want {
		t.Errorf("%s is left out, want %s", left.Endpoint, want)
	}
	stop()
	awaitVisit(t, w.visits["node-2"], w.NodeAddrs.V4()) // The attack goes on, and so do the node's questions.
	r.end()
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, w.endpoints["node-2"].String()) || strings.Contains(line, w.endpoints["node-1"].String()) {
			t.Errorf("an endpoint that answers: %s", line)
		}
	}
}

// TestEjectClientPolicy: a NetworkPolicy forbids one client to reach the endpoints, and nobody else. They answer the
// node: nothing is left out, and others are served by all.
func TestEjectClientPolicy(t *testing.T) {
	w := newEjectWorld(t, 3)
	other, err := w.AddPod("other")
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range w.pods {
		loadPolicy(t, pod.NS, w.client.Addrs.V4().String())
	}
	r := w.startEjecting(t)
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 5*time.Second)
	for _, visits := range w.visits {
		for range 2 { // The second time it is suspected again.
			awaitVisit(t, visits, w.NodeAddrs.V4())
		}
	}
	visitAll(t, other, w.endpoints)
	r.end()
	stop()
	if log := r.log.String(); strings.Contains(log, "an endpoint does not answer") {
		t.Errorf("left out: %s", log)
	}
}

// freeze stops the proxy, does something, and lets the proxy go on: it sees the whole at once.
func (r *running) freeze(do func()) {
	r.Helper()
	if err := r.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		r.Fatal(err)
	}
	defer func() {
		if err := r.cmd.Process.Signal(unix.SIGCONT); err != nil {
			r.Error(err)
		}
	}()
	do()
}

// awaitHanging returns when there are some connections without an answer to each address.
func awaitHanging(t *testing.T, node *testnet.Namespace, to ...netip.Addr) {
	t.Helper()
	const some = 4
	table, err := conntrack.Open(conntrack.Config{NetNS: node.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for limit := time.Now().Add(awaitLimit); ; time.Sleep(20 * time.Millisecond) { // The table sends no events.
		hanging, lacking := map[netip.Addr]int{}, 0
		if _, err := table.Unanswered(t.Context(), func(f conntrack.Flow) error {
			hanging[f.Reply.Src.Addr()]++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, a := range to {
			lacking += max(0, some-hanging[a])
		}
		if lacking == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("connections without an answer: %v", hanging)
		}
	}
}

// partition drops at one moment all that the remote node forwards to a list of destinations. repair ends that.
func partition(t *testing.T, w *ejectWorld, to string) (repair func()) {
	t.Helper()
	nft := netfilter.NFTForTest(t)
	load := func(rules string) {
		t.Helper()
		if err := nft.Load(w.Remote, rules); err != nil {
			t.Fatal(err)
		}
	}
	load("table ip partition { chain forwarded { type filter hook forward priority 0; ip daddr { " + to + " } drop; }; }")
	return func() { load("delete table ip partition") }
}

// TestEjectPartition: half of the other nodes cannot be reached any more. Nothing is left out. When one of these two
// nodes is back, the other one is left out.
func TestEjectPartition(t *testing.T) {
	w := newEjectWorld(t, 5)
	// The API server is on the node itself: that it answers says nothing about the network.
	r := w.startWithServer(t, w.Node, netip.MustParseAddr("127.0.0.1"), ejectManifest("", w.endpoints)+w.nodes())
	two, three := w.endpoints["node-2"], w.endpoints["node-3"]
	var repair func()
	var stop func() []outcome
	r.freeze(func() {
		repair = partition(t, w, fmt.Sprint(two, ", ", three))
		stop = clientLoad(t.Context(), w.client, 20*time.Millisecond, 10*time.Second)
		awaitHanging(t, w.Node, two, three)
	})
	held := r.await("that nothing is left out", func(l logged) bool {
		if notAnswering(l) {
			t.Errorf("left out: %s", r.lines.Text())
		}
		return notKept(l)
	})
	if held.Reason != string(ejection.OwnNetwork) {
		t.Errorf("the reason is %q", held.Reason)
	}
	r.freeze(func() { repair(); partition(t, w, three.String()) })
	// A connection that the proxy began before the repair may still speak against the other for a moment.
	left := map[string]bool{}
	r.await("that only the endpoint behind the partition is left out", func(l logged) bool {
		switch {
		case notAnswering(l):
			left[l.Endpoint] = true
		case isBack(l):
			delete(left, l.Endpoint)
		}
		return len(left) == 1 && left[netip.AddrPortFrom(three, 8080).String()]
	})
	stop()
	r.end()
}

// TestEjectFlapping: an endpoint stops to answer again and again, as soon as it is back. It is left out each time, and
// no client waits in vain. After each return it stays for two seconds at least.
func TestEjectFlapping(t *testing.T) {
	w := newEjectWorld(t, 3)
	r := w.startEjecting(t)
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 2*time.Minute)
	back := time.Time{}
	for _, trusted := range []time.Duration{0, 2 * time.Second, 2 * time.Second} {
		repair, err := w.pods["node-2"].NS.Cut(netip.AddrPortFrom(w.endpoints["node-2"], 8080))
		if err != nil {
			t.Fatal(err)
		}
		// By the log's times, which do not depend on when this process reads them. A suspicion takes a second besides.
		if left := r.await("that the endpoint is left out", notAnswering); left.Time.Sub(back) < trusted {
			t.Errorf("left out %v after its return, want %v at least", left.Time.Sub(back), trusted)
		}
		if err := repair(); err != nil {
			t.Fatal(err)
		}
		back = r.await("that the endpoint is back", isBack).Time
	}
	for _, o := range stop() {
		// The endpoint is back at the moment when it is left out. A connection that it answers between the look at its entry
		// and the removal of that is reset (docs/eject.md).
		if o.err != nil && !errors.Is(o.err, unix.ECONNRESET) {
			t.Errorf("a connection that took %v: %v", o.took, o.err)
		}
	}
	r.end()
}

// addCrowds adds the nodes dead and living with 1,000 pods each, at crowdAt(0, i) and crowdAt(1, i).
func (w *ejectWorld) addCrowds(t *testing.T) {
	t.Helper()
	for i, node := range []string{"dead", "living"} {
		pod, err := w.AddRemotePod(node)
		if err != nil {
			t.Fatal(err)
		}
		many := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(4 + 4*i), 0}), 22)
		testnet.Require(t, w.Node.AddRoute(many, w.RemoteAddrs.V4()))
		testnet.Require(t, testnet.End{NS: w.Remote, Link: pod.HostInterface}.Route(many, pod.Addrs.V4()))
		testnet.Require(t, pod.NS.AddAddr("lo", many)) // all of them
		serveVisits(t, pod, 8080, node)
	}
}

func crowdAt(node, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, byte(4 + 4*node + i/250), byte(1 + i%250)})
}

// TestEjectAmongMany: a node with five of a Service's thirty endpoints, and with one of another's three, stops to
// answer. All of them are left out, and none waits since no other endpoint of its port had answered the node: they do.
func TestEjectAmongMany(t *testing.T) {
	const most, all = 5, 30
	w := newEjectWorld(t, 1)
	w.addCrowds(t)
	large := map[netip.Addr]string{}
	for i := range all {
		large[crowdAt(boolInt(i >= most), i)] = []string{"dead", "living"}[boolInt(i >= most)]
	}
	small := map[netip.Addr]string{crowdAt(0, all): "dead", crowdAt(1, all): "living", crowdAt(1, all+1): "living"}
	r := w.startWithServer(t, w.Outside, w.OutsideAddrs.V4(), serviceManifest("shop", "web", "10.96.0.10", large)+
		serviceManifest("shop", "small", "10.96.0.11", small)+nodeManifest("dead", crowdAt(0, 0))+
		nodeManifest("living", crowdAt(1, 0))+nodeManifest("node-1", w.NodeAddrs.V4()))
	stop := clientLoad(t.Context(), w.client, 10*time.Millisecond, 10*time.Second)
	partition(t, w, "10.244.4.0/22")
	var senders []netip.Addr
	for i := range 32 {
		senders = append(senders, netip.AddrFrom4([4]byte{10, 244, 0, byte(150 + i)}))
	}
	hang(t, w.client, senders, "10.96.0.11:80")
	n := 0
	r.await("that all endpoints of the node are left out", func(l logged) bool {
		if notKept(l) {
			t.Errorf("endpoints are kept: %s", l.Reason)
		}
		n += boolInt(notAnswering(l))
		if l.Msg == "further endpoints do not answer" {
			n += l.Endpoints
		}
		return n == most+1
	})
	for _, o := range stop() {
		if o.err != nil {
			t.Errorf("a connection that began before: %v", o.err)
		}
	}
	r.end()
}

// TestEjectThousand: a node with 1,000 endpoints of 100 Services in four namespaces stops to answer. All of them are
// left out, the Services are served by the other node, and all come back.
func TestEjectThousand(t *testing.T) {
	const services, each = 100, 10
	w := newEjectWorld(t, 1)
	var manifests strings.Builder
	w.addCrowds(t)
	at := func(node, i, j int) netip.Addr { return crowdAt(node, i*each+j) }
	for i := range services {
		fmt.Fprintf(&manifests, `
apiVersion: v1
kind: Service
metadata: {name: s%[1]d, namespace: ns%[2]d}
spec: {clusterIPs: [10.96.1.%[1]d], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%[1]d-1, namespace: ns%[2]d, labels: {kubernetes.io/service-name: s%[1]d}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
`, i, i%4)
		for j := range each {
			fmt.Fprintf(&manifests, "- {addresses: [%q], nodeName: dead}\n- {addresses: [%q], nodeName: living}\n", at(0, i, j),
				at(1, i, j))
		}
		manifests.WriteString("---\n")
	}
	manifests.WriteString(nodeManifest("dead", at(0, 0, 0)) + nodeManifest("living", at(1, 0, 0)) + nodeManifest("node-1",
		w.NodeAddrs.V4()))
	r := w.startWithServer(t, w.Outside, w.OutsideAddrs.V4(), manifests.String())
	visitServices := func(patience time.Duration, done <-chan struct{}) (err error) {
		for i := 0; ; i++ {
			select {
			case <-done:
				return err
			default:
			}
			if done == nil && i == services {
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			conn, failed := w.client.NS.Dial(ctx, "tcp", fmt.Sprintf("10.96.1.%d:80", i%services))
			if cancel(); failed != nil {
				err = failed
				continue
			}
			_ = conn.Close()
		}
	}
	repair := partition(t, w, "10.244.4.0/22")
	done := make(chan struct{})
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() { _ = visitServices(10*time.Second, done) })
	}
	n := 0
	r.await("that all endpoints of the node are left out", func(l logged) bool {
		switch {
		case notAnswering(l):
			n++
		case l.Msg == "further endpoints do not answer":
			n += l.Endpoints
		}
		return n == services*each
	})
	close(done)
	clients.Wait()
	if err := visitServices(awaitLimit, nil); err != nil {
		t.Errorf("a Service is not served: %v", err)
	}
	repair()
	n = 0
	r.await("that all are back", func(l logged) bool {
		switch {
		case isBack(l):
			n++
		case l.Msg == "further endpoints are back":
			n += l.Endpoints
		}
		return n == services*each
	})
	r.end()
}

// slowStartWorld has a proxy whose Service grows new endpoints over a time, and the endpoint on node-1 at first.
type slowStartWorld struct {
	*ejectWorld
	*running
	file string
}

func newSlowStartWorld(t *testing.T, over string, flags ...string) *slowStartWorld {
	t.Helper()
	w := &slowStartWorld{ejectWorld: newEjectWorld(t, 2)}
	w.file = manifest(t, w.text(over, "node-1"))
	w.running = start(t, w.Node, append(flags, "--nftproxy-manifests", w.file, "--cluster-cidr", "10.244.0.0/16")...)
	w.awaitSync()
	return w
}

func (w *slowStartWorld) text(over string, nodes ...string) string {
	endpoints := map[string]netip.Addr{}
	for _, n := range nodes {
		endpoints[n] = w.endpoints[n]
	}
	if over == "" {
		return ejectManifest("", endpoints)
	}
	return ejectManifest(", annotations: {nftproxy.io/slow-start: "+over+"}", endpoints)
}

// change replaces the objects.
func (w *slowStartWorld) change(over string, nodes ...string) {
	w.Helper()
	if err := os.WriteFile(w.file+".new", []byte(w.text(over, nodes...)), 0o600); err != nil {
		w.Fatal(err)
	}
	if err := os.Rename(w.file+".new", w.file); err != nil {
		w.Fatal(err)
	}
}

// command runs nftproxy on the node.
func (w *slowStartWorld) command(args ...string) string {
	w.Helper()
	out, notes, code := runIn(w.T, w.Node, args...)
	if code != 0 {
		w.Fatalf("nftproxy %s: %d\n%s%s", strings.Join(args, " "), code, out, notes)
	}
	return out
}

// second is the row of the endpoint on node-2; the zero row if there is none.
func (w *slowStartWorld) second() inspect.EndpointRow {
	w.Helper()
	var list endpointList
	if err := json.Unmarshal([]byte(w.command("get", "endpoints", "--connections=false", "-o", "json")),
		&list); err != nil {
		w.Fatal(err)
	}
	for _, r := range list.Endpoints {
		if r.Endpoint.Addr() == w.ejectWorld.endpoints["node-2"] {
			return r
		}
	}
	return inspect.EndpointRow{}
}

// awaitState waits until get has the endpoint on node-2 with a state, or "" for none.
func (w *slowStartWorld) awaitState(state string) inspect.EndpointRow {
	w.Helper()
	for {
		if row := w.second(); row.State == state {
			return row
		}
		w.awaitSync()
	}
}

// taken counts the connections that node-2 takes, of 400.
func (w *slowStartWorld) taken() (n int) {
	w.Helper()
	for range 400 {
		o := visit(w.running.Context(), w.client, awaitLimit)
		if o.err != nil {
			w.Fatal(o.err)
		}
		if o.by == "node-2" {
			n++
		}
	}
	return n
}

// TestSlowStart: a second endpoint joins. Its share grows and never shrinks until it is a half, the commands follow,
// and no connection fails meanwhile.
func TestSlowStart(t *testing.T) {
	w := newSlowStartWorld(t, "2s")
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 2*time.Minute)
	w.change("2s", "node-1", "node-2")
	last, seen := 0.0, []float64(nil)
	for {
		if row := w.second(); len(row.Shares) > 0 { // The objects are in force.
			share := row.Shares[0]
			if seen = append(seen, share); share < last || share == 0 || share > 0.5 {
				t.Errorf("the shares were %v", seen)
			}
			if last = share; last == 0.5 {
				break
			}
		}
		w.awaitSync()
	}
	all := stop()
	for _, o := range all {
		if o.err != nil {
			t.Errorf("a connection failed: %v", o.err)
		}
	}
	t.Logf("%d connections, and the looks at the tables found the shares %v", len(all), seen)
	w.awaitState(inspect.Active)
	visitAll(t, w.client, w.ejectWorld.endpoints)
	w.end()
}

// TestSlowStartShare: an endpoint that has begun to grow gets a fifth of the connections beside one of the same weight,
// and a half once its Service asks for nothing any more. The commands know of it; to verify the tables are right. So
// they are after a restart, which begins with whole weights.
func TestSlowStartShare(t *testing.T) {
	for _, eject := range []string{"off", "on"} {
		t.Run("eject="+eject, func(t *testing.T) {
			w := newSlowStartWorld(t, "1h", "--nftproxy-eject="+eject)
			verify := func() {
				t.Helper()
				out := w.command("verify", "--nftproxy-manifests", w.file, "--cluster-cidr", "10.244.0.0/16", "--hostname-override",
					"node-1")
				if !strings.HasPrefix(out, "same: ") {
					t.Errorf("verify says\n%s", out)
				}
			}
			w.change("1h", "node-1", "node-2")
			row := w.awaitState(inspect.Growing)
			// Of 400 draws with the chance 1/5, 80 and 8 more or less: beyond seven times that none of them comes in a billion
			// runs.
			if n := w.taken(); n < 24 || n > 136 {
				t.Errorf("the new endpoint took %d of 400 connections", n)
			}
			if !strings.HasSuffix(row.Why, ": 1/4 of its weight") || row.Shares[0] != 0.2 {
				t.Errorf("get has %+v", row)
			}
			endpoint := regexp.QuoteMeta(w.ejectWorld.endpoints["node-2"].String())
			if out := w.command("explain", "10.96.0.10:80"); !regexp.MustCompile(endpoint +
				`:8080 is growing since \d\d:\d\d:\d\d: 1/4 of its weight`).MatchString(out) {
				t.Errorf("explain says\n%s", out)
			}
			verify()
			w.change("", "node-1", "node-2")
			w.awaitState(inspect.Active)
			if n := w.taken(); n < 130 || n > 270 {
				t.Errorf("with its whole weight the endpoint took %d of 400 connections", n)
			}
			verify()
			w.change("1h", "node-1")
			w.awaitState("")
			w.change("1h", "node-1", "node-2")
			w.awaitState(inspect.Growing)
			w.end()
			verify()
			w.running = start(t, w.Node, "--nftproxy-manifests", w.file, "--cluster-cidr", "10.244.0.0/16", "--nftproxy-eject="+
				eject)
			w.awaitSync()
			verify()
			w.end()
		})
	}
}

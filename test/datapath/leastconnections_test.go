package datapath

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/balance"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// balanced is a node with our rules, and with a Balancer that changes them.
type balanced struct {
	network
	client  *testnet.Pod
	servers []*testnet.Pod
	conn    *kernel.Conn
	config  ruleset.Config
	reports chan counted
	stop    func() // the Balancer

	mu       sync.Mutex // of what follows
	builder  *snapshots.Builder
	balancer *balance.Balancer
	state    nft.State
	written  int  // elements, by the Balancer
	moved    bool // since its last report
}

// counted is a report of the Balancer, and whether slots have moved.
type counted struct {
	balance.Report
	moved bool
}

// newBalanced makes the node with servers that keep their connections, each of which says its name at first.
func newBalanced(t *testing.T, servers ...string) *balanced {
	w := &balanced{network: newNetwork(t), reports: make(chan counted, 1)}
	var err error
	w.client, err = w.AddPod("client")
	w.must(err)
	for _, name := range servers {
		pod, err := w.AddPod(name)
		w.must(err)
		w.servers = append(w.servers, pod)
		for _, a := range pod.Addrs {
			w.serve(pod, netip.AddrPortFrom(a, port))
		}
	}
	w.conn, err = kernel.Open(kernel.Config{NetNS: w.Node.Fd()})
	w.must(err)
	table, err := conntrack.Open(conntrack.Config{NetNS: w.Node.Fd()})
	w.must(err)
	addresses, err := service.ParseNodePortAddresses([]string{"0.0.0.0/0", "::/0"})
	w.must(err)
	w.config = ruleset.Config{Table: ruleset.DefaultTable,
		Settings: service.Settings{NodePortAddresses: addresses, ClusterCIDRs: w.ClusterCIDRs}}
	w.balancer = balance.New(balance.Config{Table: table, NodePortAddresses: addresses,
		Set: func(slots map[service.Name]service.Slotted) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.builder.SetSlots(slots)
			w.written, w.moved = w.written+w.apply(), true
		}, Observe: func(report balance.Report) {
			w.mu.Lock()
			r := counted{report, w.moved}
			w.moved = false
			w.mu.Unlock()
			select {
			case <-w.reports:
			default:
			}
			w.reports <- r
		}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.balancer.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		w.must(<-ended)
	})
	t.Cleanup(func() {
		w.stop()
		w.must(table.Close())
		w.must(w.conn.Close())
	})
	return w
}

func (w *balanced) serve(pod *testnet.Pod, at netip.AddrPort) {
	listener, err := pod.NS.Listen(w.Context(), "tcp", at.String())
	w.must(err)
	packets, err := pod.NS.ListenPacket(w.Context(), "udp", at.String())
	w.must(err)
	w.Cleanup(func() { listener.Close(); packets.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, pod.Name)
			go func() {
				_, _ = io.Copy(io.Discard, conn) // until the client closes it
				conn.Close()
			}()
		}
	}()
	go func() {
		b := make([]byte, 64)
		for {
			_, from, err := packets.ReadFrom(b)
			if err != nil {
				return // closed
			}
			_, _ = packets.WriteTo([]byte(pod.Name), from)
		}
	}()
}

// set applies the rules of these Services.
func (w *balanced) set(services string) {
	w.Helper()
	node := fmt.Sprintf("node n\n  address %v\n  address %v\n  host-address %[1]v\n  host-address %[2]v\n",
		w.NodeAddrs.V4(), w.NodeAddrs.V6())
	snapshot, err := gen.ReadSnapshot(strings.NewReader(node + services))
	w.must(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.builder == nil {
		w.builder = snapshots.NewBuilder(*snapshot.Node)
	}
	for _, s := range snapshot.Services.All() {
		w.builder.Set(s)
	}
	w.apply()
}

// apply applies the newest rules, and returns how many elements it adds. The caller holds the lock.
func (w *balanced) apply() (added int) {
	snapshot := w.builder.Snapshot()
	batch, next := w.state.Plan(ruleset.Compile(w.config, snapshot), time.Now())
	if err := w.conn.Apply(batch); err != nil {
		w.Errorf("apply: %v", err)
		return 0
	}
	for _, op := range batch.Ops {
		if add, ok := op.(nft.AddElements); ok {
			added += len(add.Elements)
		}
	}
	w.state = next
	w.balancer.Notify(snapshot)
	return added
}

// settled waits until the Balancer has counted at least so many connections, and moves nothing more.
func (w *balanced) settled(connections int) {
	w.Helper()
	for start := time.Now(); ; {
		select {
		case r := <-w.reports:
			w.must(r.Err)
			if r.Connections >= connections && !r.moved {
				return
			}
		case <-time.After(limit):
			w.Fatal("the Balancer is silent")
		}
		if time.Since(start) > limit {
			w.Fatal("the Balancer goes on moving")
		}
	}
}

// open opens a connection that stays, and returns the name of the server.
func (w *balanced) open(way way, protocol string) string {
	w.Helper()
	return w.openFrom(way, protocol, netip.Addr{})
}

// openFrom does it from an address of the client's; the zero address for any.
func (w *balanced) openFrom(way way, protocol string, from netip.Addr) string {
	w.Helper()
	source := ""
	if from.IsValid() {
		source = netip.AddrPortFrom(from, 0).String()
	}
	conn, err := way.from.DialFrom(w.Context(), protocol, source, way.to.String())
	w.must(err)
	w.Cleanup(func() { conn.Close() })
	w.must(conn.SetDeadline(time.Now().Add(limit)))
	if protocol == testnet.UDP {
		_, err = io.WriteString(conn, "?")
		w.must(err)
	}
	b := make([]byte, 64)
	n, err := conn.Read(b)
	w.must(err)
	return string(b[:n])
}

// TestLeastConnections: an endpoint that holds more connections than its part gets fewer new ones, in each family, of
// TCP and UDP, by cluster IPs with policy Cluster, node ports with policy Local and ranges of ports. One of weight 0
// gets none, and one of greater weight its greater part.
func TestLeastConnections(t *testing.T) {
	const before, after = 24, 400
	w := newBalanced(t, "busy", "idle", "heavy", "drained")
	text := func(ready string) string {
		list := func(port uint16) (text string) {
			for i, pod := range w.servers {
				state, weight := "ready serving", []int{100, 100, 200, 0}[i]
				if ready != "" && pod.Name != ready {
					state = "serving"
				}
				for _, a := range pod.Addrs {
					text += fmt.Sprintf("    endpoint %v n %s weight=%d\n", netip.AddrPortFrom(a, port), state, weight)
				}
			}
			return text
		}
		return fmt.Sprintf(`service a/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  cluster-ip fd00:96::1
  external-policy Local
  option balance least-connections
  option port-ranges %d/TCP
  port t tcp 80 node-port 30080
%[2]s  port u udp 80 node-port 30080
%[2]s  port ranges tcp ranges=%[1]d
%[3]s`, port, list(port), list(0))
	}
	w.set(text("busy"))
	type kind struct {
		way
		protocol string
	}
	var kinds []kind
	for i, cluster := range []string{"10.96.0.1", "fd00:96::1"} {
		at := func(n uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(cluster), n) }
		nodePort := netip.AddrPortFrom(w.NodeAddrs[i], 30080)
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			kinds = append(kinds, kind{way{"cluster IP", w.client.NS, at(80)}, protocol},
				kind{way{"node port", w.Outside, nodePort}, protocol})
		}
		kinds = append(kinds, kind{way{"range", w.client.NS, at(port)}, testnet.TCP})
	}
	for _, k := range kinds {
		for range before {
			if got := w.open(k.way, k.protocol); got != "busy" {
				t.Fatalf("%s leads to %s", k.name, got)
			}
		}
	}
	start := time.Now()
	w.set(text(""))
	w.settled(before * len(kinds))
	w.stop() // The new connections change nothing.
	t.Logf("settled after %v, with %d elements written", time.Since(start).Round(time.Millisecond), w.written)
	for _, k := range kinds {
		got := map[string]int{}
		for range after {
			got[w.open(k.way, k.protocol)]++
		}
		t.Logf("%s %s %v: %v", k.name, k.protocol, k.to, got)
		// By weight busy would get a quarter of them, a half of what the others get. The floor is a quarter of that, and up
		// to three slots of 48 stay.
		if got["busy"] > after*3/16 || got["drained"] > 0 || got["idle"] < after/5 || got["heavy"] < after*2/5 {
			t.Errorf("%s, %s: %v", k.name, k.protocol, got)
		}
	}
}

// TestLeastConnectionsAffinity: new clients follow connections, and remembered ones stay with their busy endpoint.
func TestLeastConnectionsAffinity(t *testing.T) {
	const old, clients = 40, 200
	w := newBalanced(t, "busy", "idle", "other")
	var addrs []netip.Addr
	addr := w.PodCIDRs[0].Addr().As4()
	for i := range clients {
		addr[3] = byte(50 + i)
		addrs = append(addrs, netip.AddrFrom4(addr))
	}
	pod, err := w.AddPod("clients", addrs...)
	w.must(err)
	text := func(ready int) string {
		list := ""
		for i, pod := range w.servers {
			if i < ready {
				list += fmt.Sprintf("    endpoint %v n ready serving\n", netip.AddrPortFrom(pod.Addrs.V4(), port))
			}
		}
		return `service a/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  affinity 10800s
  option balance least-connections
  port t tcp 80
` + list
	}
	to := way{"cluster IP", pod.NS, netip.MustParseAddrPort("10.96.0.1:80")}
	w.set(text(1))
	for _, from := range addrs[:old] {
		if got := w.openFrom(to, testnet.TCP, from); got != "busy" {
			t.Fatalf("%v is led to %s", from, got)
		}
	}
	w.set(text(len(w.servers)))
	w.settled(old)
	w.stop()
	got := map[string]int{}
	for i, from := range addrs {
		server := w.openFrom(to, testnet.TCP, from)
		if got[server]++; i < old && server != "busy" {
			t.Errorf("the remembered client %v is led to %s", from, server)
		}
	}
	t.Logf("%v, %d of them remembered", got, old)
	// At random a third of the new ones would be 53. The floor is 4 slots of 48, and up to three more stay.
	if fresh := got["busy"] - old; fresh > 37 {
		t.Errorf("%d of %d new clients go to the busy endpoint", fresh, clients-old)
	}
}

// settledAgain waits for the same after a change.
func (w *balanced) settledAgain(connections int) {
	w.Helper()
	for range 2 { // One may be of before, and one of a count that had begun.
		select {
		case r := <-w.reports:
			w.must(r.Err)
		case <-time.After(limit):
			w.Fatal("the Balancer is silent")
		}
	}
	w.settled(connections)
}

// adjust applies adjustments as they come from the ejection of endpoints and from a slow start.
func (w *balanced) adjust(name service.Name, ejected, growing *service.Adjusted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var none service.Adjustments
	w.builder.SetAdjustments(none.Set(name, ejected))
	w.builder.SetGrowing(none.Set(name, growing))
	w.apply()
}

// tell opens connections one after the other, and returns how many each server has had.
func (w *balanced) tell(way way, n int) map[string]int {
	w.Helper()
	got := map[string]int{}
	b := make([]byte, 64)
	for range n {
		conn, err := way.from.DialFrom(w.Context(), testnet.TCP, "", way.to.String())
		w.must(err)
		w.must(conn.SetDeadline(time.Now().Add(limit)))
		n, err := conn.Read(b)
		w.must(err)
		w.must(conn.Close())
		got[string(b[:n])]++
	}
	return got
}

// TestLeastConnectionsLifecycle: the busy endpoint gets few connections, and whoever may have none gets none, while
// endpoints are left out, grow, run elsewhere, are drained and terminate, by cluster IP and by node port with policy
// Local, in each family.
func TestLeastConnectionsLifecycle(t *testing.T) {
	const before, after, name = 24, 400, service.Name("a/web")
	w := newBalanced(t, "busy", "one", "two", "three")
	text := func(state map[string]string) string {
		list := ""
		for _, pod := range w.servers {
			for _, a := range pod.Addrs {
				list += fmt.Sprintf("    endpoint %v %s\n", netip.AddrPortFrom(a, port), cmp.Or(state[pod.Name], "n ready serving"))
			}
		}
		return `service a/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  cluster-ip fd00:96::1
  external-policy Local
  option balance least-connections
  port t tcp 80 node-port 30080
` + list
	}
	adjusted := func(server int, share service.Share) *service.Adjusted {
		var list []service.Adjustment
		for _, a := range w.servers[server].Addrs {
			at := service.PortEndpoint{Protocol: service.TCP, Port: 80, Addr: netip.AddrPortFrom(a, port)}
			list = append(list, service.Adjustment{Share: share, PortEndpoint: at})
		}
		return service.NewAdjusted(list)
	}
	var ways []way
	for i, cluster := range []string{"10.96.0.1", "fd00:96::1"} {
		ways = append(ways, way{"cluster IP", w.client.NS, netip.AddrPortFrom(netip.MustParseAddr(cluster), 80)},
			way{"node port", w.Outside, netip.AddrPortFrom(w.NodeAddrs[i], 30080)})
	}
	w.set(text(map[string]string{"one": "n serving", "two": "n serving", "three": "n serving"}))
	for _, way := range ways {
		for range before {
			if got := w.open(way, testnet.TCP); got != "busy" {
				t.Fatalf("%s leads to %s", way.name, got)
			}
		}
	}
	// Of those that get connections, the busy one has a quarter of its part, and up to three slots more.
	const few, none = after * 11 / 50, 0
	draining := "n serving terminating"
	for _, c := range []struct {
		what             string
		state            map[string]string
		ejected, growing *service.Adjusted
		// most bounds what servers get by any way, and byNodePort by node port.
		most, byNodePort map[string]int
	}{
		{what: "all are ready", most: map[string]int{"busy": few}},
		{what: "one is left out", ejected: adjusted(1, service.NoShare), most: map[string]int{"busy": few, "one": none}},
		{what: "one grows", growing: adjusted(1, service.ShareOf(1)), most: map[string]int{"busy": few, "one": after / 4}},
		{what: "one runs elsewhere", state: map[string]string{"one": "m ready serving"}, most: map[string]int{"busy": few},
			byNodePort: map[string]int{"one": none}},
		{what: "one is drained", state: map[string]string{"one": "n ready serving weight=0"},
			most: map[string]int{"busy": few, "one": none}},
		{what: "the busy one terminates", state: map[string]string{"busy": draining}, most: map[string]int{"busy": none}},
		{what: "all terminate", state: map[string]string{"busy": draining, "one": draining, "two": draining,
			"three": draining}, most: map[string]int{"busy": few}},
		{what: "all are ready again", most: map[string]int{"busy": few}},
	} {
		w.set(text(c.state))
		w.adjust(name, c.ejected, c.growing)
		w.settledAgain(before * len(ways))
		for _, way := range ways {
			got := w.tell(way, after)
			t.Logf("%s, %s %v: %v", c.what, way.name, way.to, got)
			for _, pod := range w.servers {
				most, bounded := c.most[pod.Name]
				if only, ok := c.byNodePort[pod.Name]; ok && way.name == "node port" {
					most, bounded = only, true
				}
				if n := got[pod.Name]; bounded && n > most || n == 0 && !(bounded && most == 0) {
					t.Errorf("%s, %s %v: %s gets %d of %d connections", c.what, way.name, way.to, pod.Name, n, after)
				}
			}
		}
	}
}

// associate has a pod keep associations of SCTP, of which it says its name in got.
func (w *balanced) associate(pod *testnet.Pod, at netip.AddrPort, got chan<- string) {
	listener := listen(w.T, pod.NS, at)
	w.Cleanup(func() { listener.Close() })
	go func() {
		for {
			peer, err := accept(listener)
			if err != nil {
				if w.T.Context().Err() == nil { // the end of the test closes the listener
					w.Errorf("%s at %v: %v", pod.Name, at, err)
				}
				return
			}
			w.Cleanup(func() { peer.Close() })
			got <- pod.Name
		}
	}()
}

// TestLeastConnectionsAssociations: associations of SCTP count as connections do.
func TestLeastConnectionsAssociations(t *testing.T) {
	const before, after = 24, 100
	w := newBalanced(t, "busy", "idle", "other")
	list, accepted := "", make(chan string, 1)
	for i, pod := range w.servers {
		for _, a := range pod.Addrs {
			w.associate(pod, netip.AddrPortFrom(a, 3868), accepted)
			list += fmt.Sprintf("    endpoint %v n %%[%d]s\n", netip.AddrPortFrom(a, 3868), min(2, 1+i))
		}
	}
	text := func(others string) string {
		return `service a/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  cluster-ip fd00:96::1
  option balance least-connections
  port m sctp 3868
` + fmt.Sprintf(list, "ready serving", others)
	}
	open := func(to netip.AddrPort) string {
		client := socket(t, w.client.NS, to.Addr())
		t.Cleanup(func() { client.Close() })
		w.must(connect(client, to, limit))
		select {
		case name := <-accepted:
			return name
		case <-time.After(limit):
			t.Fatalf("nobody has accepted an association with %v", to)
			return ""
		}
	}
	to := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:3868"), netip.MustParseAddrPort("[fd00:96::1]:3868")}
	w.set(text("serving"))
	for _, at := range to {
		for range before {
			if got := open(at); got != "busy" {
				t.Fatalf("%v leads to %s", at, got)
			}
		}
	}
	w.set(text("ready serving"))
	w.settledAgain(before * len(to))
	w.stop()
	for _, at := range to {
		got := map[string]int{}
		for range after {
			got[open(at)]++
		}
		t.Logf("%v: %v", at, got)
		// A third by chance, and 7 slots of 48 at most.
		if got["busy"] > after/4 || got["idle"] < after/5 || got["other"] < after/5 {
			t.Errorf("%v: %v", at, got)
		}
	}
}

// TestLeastConnectionsRefused: the kernel keeps no entry of a refused connection, so an endpoint that refuses looks
// idle. What it gets is bounded by the rows (share.LeastConnections).
func TestLeastConnectionsRefused(t *testing.T) {
	const tries = 5
	w := newBalanced(t, "refuses", "also")
	list := ""
	for _, pod := range w.servers {
		list += fmt.Sprintf("    endpoint %v n ready serving\n", netip.AddrPortFrom(pod.Addrs.V4(), otherPort))
	}
	w.set(`service a/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  option balance least-connections
  port t tcp 80
` + list)
	for range tries {
		a, err := w.client.NS.Ask(w.Context(), testnet.TCP, netip.MustParseAddrPort("10.96.0.1:80"), limit)
		w.must(err)
		if a.Outcome != testnet.Refused {
			t.Fatalf("%+v", a)
		}
	}
	select { // A report of before may be waiting.
	case <-w.reports:
	default:
	}
	if r := <-w.reports; r.Err != nil || r.Connections > 0 {
		t.Errorf("%+v", r)
	}
}

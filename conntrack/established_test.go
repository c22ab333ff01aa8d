package conntrack

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/testnet"
)

// rules are nftproxy's own rules in a namespace.
type rules struct {
	conn     *kernel.Conn
	compiler *ruleset.Compiler
	state    nft.State
}

func newRules(t testing.TB, ns *testnet.Namespace) *rules {
	t.Helper()
	r := &rules{compiler: ruleset.NewCompiler(ruleset.Config{Table: ruleset.DefaultTable})}
	err := ns.Do(func() (err error) {
		r.conn, err = kernel.Open(kernelmodel.Config(t, kernel.Config{}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	return r
}

// sync writes the snapshot's program to the kernel.
func (r *rules) sync(t testing.TB, s service.Snapshot) {
	t.Helper()
	batch, next := r.state.Plan(r.compiler.Compile(s), time.Now())
	if batch.Empty() {
		t.Fatal("nothing to sync")
	}
	if err := r.conn.Apply(batch); err != nil {
		t.Fatal(err)
	}
	r.state = next
}

// A client is connected to a pod that vanishes. If its established connection is left
// alone, it gets no answer. If the entry is removed, its next packet is answered by a
// reset, from another endpoint or from the rules. What the Service asks for goes before the node's flag.
func TestEstablishedConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("each case waits for a second")
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, test := range []struct {
			name        string
			established []service.Protocol
			option      string
			another     bool // endpoint is left
			reset       bool
		}{
			{"left alone", nil, "", true, false},
			{"removed", []service.Protocol{service.TCP}, "", true, true},
			{"removed, no endpoint left", []service.Protocol{service.TCP}, "", false, true},
			{"left alone, no endpoint left", nil, "", false, false},
			{"kept", []service.Protocol{service.TCP}, "keep", true, false},
			{"cut", nil, "cut", true, true},
			{"cut, no endpoint left", nil, "cut", false, true},
			{"cut later", nil, "cut-after=30s", true, true},
			{"cut later, no endpoint left", nil, "cut-after=30s", false, true},
			{"cut, no mid-stream entries", nil, "cut", true, false},
		} {
			t.Run(family+" "+test.name, func(t *testing.T) {
				w := worlds(t)[family]
				vanishing, staying := w.endpoint(t, "vanishing"), w.endpoint(t, "staying")
				r, table := newRules(t, w.Node), open(t, w.Node)
				if strings.HasSuffix(test.name, "no mid-stream entries") {
					if err := w.Node.Sysctl("net.netfilter.nf_conntrack_tcp_loose", "0"); err != nil {
						t.Fatal(err)
					}
				}
				before := w.asking(t, test.option, vanishing)
				r.sync(t, before)
				client := w.connect(t, "vanishing")

				var left []netip.AddrPort
				if test.another {
					left = append(left, staying)
				}
				// The link goes first: like a node without power, the pod does not
				// close its connections.
				end := testnet.End{NS: w.Node, Link: w.Pod("vanishing").HostInterface}
				if err := end.Remove(); err != nil {
					t.Fatal(err)
				}
				after := w.asking(t, test.option, left...)
				r.sync(t, after)
				index, whole := NewIndex(Options{Established: test.established}), newPass(Scope{Everything: true})
				index.Update(before)
				index.Update(after)
				if now := time.Now(); strings.HasPrefix(test.option, "cut-after") {
					index = w.later(t, table, before, after, now)
				}
				if err := NewCleaner(table, index, CleanerConfig{}).clean(t.Context(), whole); err != nil {
					t.Fatal(err)
				}
				if want := map[bool]int{true: 1}[test.reset || test.option == "cut"]; whole.run.Removed[EndpointGone] != want {
					t.Errorf("removed %v, want %d of them because the endpoint is gone", whole.run.Removed, want)
				}

				// A reset comes at once. Only a wait shows that none comes.
				patience := map[bool]time.Duration{true: 30 * time.Second, false: time.Second}[test.reset]
				if err := client.SetReadDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				// A late acknowledgement of the client's may already have been answered by a reset.
				_, err := client.Write([]byte("anybody there?\n"))
				if err == nil {
					_, err = client.Read(make([]byte, 1))
				}
				want := map[bool]error{true: syscall.ECONNRESET, false: os.ErrDeadlineExceeded}[test.reset]
				if !errors.Is(err, want) {
					t.Errorf("the client gets %v, want %v", err, want)
				}
			})
		}
	}
}

// endpoint is a pod that serves TCP.
func (w *world) endpoint(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	pod, err := w.AddPod(name)
	if err != nil {
		t.Fatal(err)
	}
	addr := pod.Addrs.V4()
	if w.podAddr.Is6() {
		addr = pod.Addrs.V6()
	}
	at := netip.AddrPortFrom(addr, 8080)
	server, err := pod.NS.Serve(testnet.TCP, at, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return at
}

// TestCutWhereRulesDrop: a client from outside loses the last endpoint of a node with externalTrafficPolicy Local, and
// its connection is cut. The rules drop its next packet, so it sees silence.
func TestCutWhereRulesDrop(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a second")
	}
	w := worlds(t)["IPv4"]
	vanishing := w.endpoint(t, "vanishing")
	r, table := newRules(t, w.Node), open(t, w.Node)
	node := w.NodeAddrs.V4()
	snapshot := func(endpoint string) service.Snapshot {
		return parse(t, fmt.Sprintf("node node\n  address %v\n  host-address %[1]v\nservice default/web created "+
			"2026-01-01T00:00:00Z\n  cluster-ip %v\n  external-policy Local\n"+
			"  option departed-connections cut\n  port http tcp 80 node-port 30080\n    endpoint 10.99.0.9:8080 other ready "+
			"serving\n", node, w.clusterIP)+endpoint)
	}
	before, after := snapshot(fmt.Sprintf("    endpoint %v node ready serving\n", vanishing)), snapshot("")
	r.sync(t, before)
	client, err := w.Outside.Dial(t.Context(), "tcp", netip.AddrPortFrom(node, 30080).String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := bufio.NewReader(client).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	r.sync(t, after)
	index, whole := NewIndex(Options{NodePortAddresses: nodePortAddresses(t, "primary")}), newPass(Scope{Everything: true})
	index.Update(before)
	index.Update(after)
	err = NewCleaner(table, index, CleanerConfig{}).clean(t.Context(), whole)
	if err != nil || whole.run.Removed[EndpointGone] != 1 {
		t.Fatalf("removed %v, %v", whole.run.Removed, err)
	}
	if err := client.SetDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err = client.Write([]byte("anybody there?\n")); err == nil {
		_, err = client.Read(make([]byte, 1))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the client gets %v, want silence", err)
	}
}

// later returns an index 30 s after an endpoint has left at some time, and checks that no entry was stale until then.
func (w *world) later(t *testing.T, table *Table, before, after service.Snapshot, left time.Time) *Index {
	t.Helper()
	index := NewIndex(Options{})
	index.Advance(left)
	index.Update(before)
	index.Update(after)
	const wait = 30 * time.Second
	index.Advance(left.Add(wait - 1))
	early := newPass(Scope{Everything: true})
	err := NewCleaner(table, index, CleanerConfig{}).clean(t.Context(), early)
	if err != nil || len(early.run.Removed) > 0 {
		t.Errorf("too early: removed %v, %v", early.run.Removed, err)
	}
	if scope := index.Advance(left.Add(wait)); len(scope.Filters) != 1 {
		t.Errorf("after %v the scope is %+v, want one filter", wait, scope)
	}
	return index
}

// web returns a snapshot of a Service with the endpoints.
func (w *world) web(t *testing.T, endpoints ...netip.AddrPort) service.Snapshot {
	t.Helper()
	return w.asking(t, "", endpoints...)
}

// asking returns a snapshot of a Service with the endpoints that asks for something about connections to departed ones.
func (w *world) asking(t *testing.T, departed string, endpoints ...netip.AddrPort) service.Snapshot {
	t.Helper()
	text := fmt.Sprintf("node node\nservice default/web created 2026-01-01T00:00:00Z\n  cluster-ip %v\n", w.clusterIP)
	if departed != "" {
		text += "  option departed-connections " + departed + "\n"
	}
	text += "  port http tcp 80\n"
	for _, e := range endpoints {
		text += fmt.Sprintf("    endpoint %v node ready serving\n", e)
	}
	return parse(t, text)
}

// connect connects the client to the Service and reads one answer.
func (w *world) connect(t *testing.T, want string) net.Conn {
	t.Helper()
	conn, err := w.pod.NS.Dial(t.Context(), "tcp", netip.AddrPortFrom(w.clusterIP, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("who is it?\n")); err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReader(conn)
	for _, wanted := range []string{want + " ", "who is it?\n"} {
		if line, err := answer.ReadString('\n'); err != nil || !strings.HasPrefix(line, wanted) {
			t.Fatalf("answer %q, %v, want %q", line, err, wanted)
		}
	}
	return conn
}

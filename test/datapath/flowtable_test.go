// Package datapath sends traffic through the rules and the kernel in ways that the scenarios do not have: associations
// of the kernel's own SCTP, a node with interfaces in a VRF, and two ways that nftproxy does not take: connections
// through the kernel's flowtable (docs/evidence/kernels.md has the figures, and the command that runs these tests on a
// kernel that has flowtables), and objects of time-outs (docs/internals/options.md).
//
// The tests are skipped where the kernel lacks what they need.
package datapath

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// limit is for all of a connection or association, on a slow computer.
const limit = 5 * time.Minute

// network is a node with pods, and the test that it belongs to.
type network struct {
	*testing.T
	*testnet.Topology
}

func newNetwork(t *testing.T) network { return network{t, testnet.NewForTest(t, testnet.Config{})} }

func (w network) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// routeBalancers has the client outside send what is for load balancers' addresses to the node.
func (w network) routeBalancers() {
	w.Helper()
	for i, to := range []string{"198.51.100.0/24", "fd00:99::/64"} {
		w.must(w.Outside.AddRoute(netip.MustParsePrefix(to), w.NodeAddrs[i]))
	}
}

// compile compiles Services in a snapshot's text, with node ports at these addresses.
func (w network) compile(services string, nodePorts ...string) *nft.Program {
	w.Helper()
	node := fmt.Sprintf("node n\n  address %v\n  address %v\n  host-address %[1]v\n  host-address %[2]v\n",
		w.NodeAddrs.V4(), w.NodeAddrs.V6())
	snapshot, err := gen.ReadSnapshot(strings.NewReader(node + services))
	w.must(err)
	addresses, err := service.ParseNodePortAddresses(nodePorts)
	w.must(err)
	return ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable,
		Settings: service.Settings{NodePortAddresses: addresses, ClusterCIDRs: w.ClusterCIDRs}}, snapshot)
}

// world is a node with our rules for a Service with one endpoint, and a pod as client.
type world struct {
	network
	nft            netfilter.NFT
	client, server *testnet.Pod
	clusterIP      netip.AddrPort
	conn           *kernel.Conn
	state          nft.State
}

// The endpoint's port, and that of one that takes its place.
const (
	port      = 8080
	otherPort = 8081
)

func newWorld(t *testing.T) *world {
	w := &world{network: newNetwork(t), nft: netfilter.NFTForTest(t), clusterIP: netip.MustParseAddrPort("10.96.0.1:80")}
	var err error
	w.client, err = w.AddPod("client")
	w.must(err)
	w.server, err = w.AddPod("server")
	w.must(err)
	w.conn, err = kernel.Open(kernel.Config{NetNS: w.Node.Fd()})
	w.must(err)
	t.Cleanup(func() { w.must(w.conn.Close()) })
	w.serve(port)
	w.serve(otherPort)
	w.lead(port)
	return w
}

func (w *world) endpoint(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(w.server.Addrs.V4(), port)
}

// lead makes the server's port the Service's only endpoint.
func (w *world) lead(port uint16) {
	w.Helper()
	endpoint := w.endpoint(port)
	snapshot, err := gen.ReadSnapshot(strings.NewReader(fmt.Sprintf(`node n
service a/b created 2026-01-01T00:00:00Z
cluster-ip %v
port t tcp %d
endpoint %v - ready serving
port u udp %[2]d
endpoint %[3]v - ready serving
`, w.clusterIP.Addr(), w.clusterIP.Port(), endpoint)))
	w.must(err)
	batch, next := w.state.Plan(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, snapshot), time.Time{})
	w.must(w.conn.Apply(batch))
	w.state = next
}

// serve answers the end of a TCP stream with its length, and each datagram that begins with '?' with the
// server's address.
func (w *world) serve(port uint16) {
	at := w.endpoint(port).String()
	listener, err := w.server.NS.Listen(w.Context(), "tcp", at)
	w.must(err)
	packets, err := w.server.NS.ListenPacket(w.Context(), "udp", at)
	w.must(err)
	w.Cleanup(func() { w.must(errors.Join(listener.Close(), packets.Close())) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				n, _ := io.Copy(io.Discard, conn)
				fmt.Fprintln(conn, n)
			}()
		}
	}()
	go func() {
		b := make([]byte, 2048)
		for {
			_, from, err := packets.ReadFrom(b)
			if err != nil {
				return // closed
			}
			if b[0] == '?' {
				_, _ = packets.WriteTo([]byte(at), from)
			}
		}
	}()
}

// The table of an operator who has connections to Services take the fast path, but for what counts:
// the packets that still come to the hook.
const (
	seen  = `table ip seen { chain forward { type filter hook forward priority 10; counter; }; }`
	rules = `table inet fast {
	flowtable f { hook ingress priority 0; devices = { %s, %s }; }
	chain forward { type filter hook forward priority 0; ct status dnat meta l4proto { tcp, udp } flow add @f; }
}`
)

// needFlowtables skips the test on kernels without flowtables.
func (w *world) needFlowtables() {
	w.Helper()
	const empty = "table inet probe { flowtable f { hook ingress priority 0; }; }"
	if err := w.nft.Load(w.Node, empty); err != nil {
		w.Skipf("this kernel has no flowtables: %v", err)
	}
	w.delete("inet", "probe")
}

// takeFastPath adds the flowtable.
func (w *world) takeFastPath() {
	w.Helper()
	w.must(w.nft.Load(w.Node, fmt.Sprintf(rules, w.client.HostInterface, w.server.HostInterface)))
}

func (w *world) leaveFastPath() {
	w.Helper()
	w.delete("inet", "fast")
}

// delete deletes a table.
func (w *world) delete(family, name string) {
	w.Helper()
	_, err := w.nft.Run(w.Node, "", "delete", "table", family, name)
	w.must(err)
}

// forwarded is the number of packets that the forward hook saw since the table "seen" was added.
func (w *world) forwarded() int {
	w.Helper()
	listing, err := w.nft.Run(w.Node, "", "list", "table", "ip", "seen")
	w.must(err)
	return w.number(listing, "counter packets ")
}

// number is the one in a text after some words.
func (w *world) number(text, words string) int {
	w.Helper()
	_, rest, _ := strings.Cut(text, words)
	digits, _, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(digits)
	if err != nil {
		w.Fatalf("no number after %q in %s: %v", words, text, err)
	}
	return n
}

// stream sends bytes through the Service until the server has them all.
func (w *world) stream(bytes int) {
	w.Helper()
	conn, err := w.client.NS.Dial(w.Context(), "tcp", w.clusterIP.String())
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(limit)))
	chunk := make([]byte, 64<<10)
	for left := bytes; left > 0; left -= len(chunk) {
		_, err := conn.Write(chunk[:min(left, len(chunk))])
		w.must(err)
	}
	w.must(conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	w.must(err)
	if got := strings.TrimSpace(string(answer)); got != strconv.Itoa(bytes) {
		w.Fatalf("the server has %s bytes, want %d", got, bytes)
	}
}

// datagrams sends small datagrams, and waits for the last of each burst to come back.
func (w *world) datagrams(n int) {
	w.Helper()
	const burst = 32
	conn, err := w.client.NS.Dial(w.Context(), "udp", w.clusterIP.String())
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(limit)))
	b := make([]byte, 64)
	for i := range n {
		b[0] = '.'
		if i%burst == 0 {
			b[0] = '?'
		}
		_, err := conn.Write(b)
		w.must(err)
		if b[0] == '?' {
			_, err := conn.Read(b)
			w.must(err)
		}
	}
}

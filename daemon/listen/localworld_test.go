package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/testnet"
)

// patience is how long a client waits before a test has failed.
const patience = time.Minute

// world is a node with the rules and LocalPorts.
type world struct {
	*testing.T
	*testnet.Topology
	ports   *LocalPorts
	config  ruleset.Config
	builder *snapshots.Builder
	conn    *kernel.Conn
	state   nft.State
	// changes has the number of listeners after each change of them.
	changes chan int
	log     *text
	stop    func()
}

// text is a log for a test.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *text) has(s string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Contains(t.b.String(), s)
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, Topology: testnet.NewForTest(t, testnet.Config{}), changes: make(chan int, 100), log: &text{}}
	w.config = ruleset.Config{Table: ruleset.DefaultTable}
	w.config.ClusterCIDRs = w.ClusterCIDRs
	w.config.NodePortAddresses = nodePorts(t, "localhost")
	w.builder = snapshots.NewBuilder(service.Node{Name: "node", Addresses: w.NodeAddrs, HostAddresses: w.NodeAddrs})
	var err error
	if w.conn, err = kernel.Open(kernel.Config{NetNS: w.Node.Fd()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close() })
	w.ports = NewLocalPorts(Config{
		NodePortAddresses: w.config.NodePortAddresses, Within: w.Node.Do,
		Log:     slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), w.log), nil)),
		Observe: func(open, _ int) { w.changes <- open },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.ports.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

// apply loads the rules of the Services, tells the LocalPorts, and waits until they listen as wanted.
func (w *world) apply(listeners int) {
	w.Helper()
	w.load()
	w.notify(listeners)
}

func (w *world) load() {
	w.Helper()
	batch, next := w.state.Plan(ruleset.Compile(w.config, w.builder.Snapshot()), time.Now())
	if err := w.conn.Apply(batch); err != nil {
		w.Fatal(err)
	}
	w.state = next
}

func (w *world) notify(listeners int) {
	w.Helper()
	w.ports.Notify(proxy.Sync{Snapshot: w.builder.Snapshot()})
	w.await(listeners)
}

// await waits until there are so many listeners.
func (w *world) await(listeners int) {
	w.Helper()
	for {
		select {
		case open := <-w.changes:
			if open == listeners {
				return
			}
		case <-time.After(patience):
			w.Fatalf("%+v, want %d listeners", w.ports.Counts(), listeners)
		}
	}
}

// serve makes pods with servers for TCP and UDP in both families, whose id is the pod's name.
func (w *world) serve(names ...string) (addrs []netip.Addr) {
	w.Helper()
	for _, name := range names {
		pod, err := w.AddPod(name)
		if err != nil {
			w.Fatal(err)
		}
		for _, a := range pod.Addrs {
			for _, protocol := range []string{testnet.TCP, testnet.UDP} {
				if _, err := pod.NS.Serve(protocol, netip.AddrPortFrom(a, 8080), name); err != nil {
					w.Fatal(err)
				}
			}
		}
		addrs = append(addrs, pod.Addrs...)
	}
	return addrs
}

// nodePort is a Service with the node port for TCP and UDP, and endpoints at port 8080.
func nodePort(name string, number uint16, endpoints ...netip.Addr) *service.Service {
	s := &service.Service{
		Name: service.NewName("default", name), Created: time.Unix(int64(number), 0),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(number >> 8), byte(number)}),
			netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x96, 14: byte(number >> 8), 15: byte(number)})},
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP} {
		var list []service.Endpoint
		for _, a := range endpoints {
			list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Node: "node", Ready: true, Serving: true})
		}
		s.Ports = append(s.Ports, service.Port{Name: p.String(), Protocol: p, Port: 80, NodePort: number,
			Endpoints: service.MergeEndpoints(list)})
	}
	return s
}

// ask returns the id of the server that answers on localhost, or the outcome.
func (w *world) ask(protocol, address string, port uint16) string {
	w.Helper()
	a, err := w.Node.Ask(w.Context(), protocol, netip.AddrPortFrom(netip.MustParseAddr(address), port), patience)
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case err != nil:
		return err.Error()
	case a.Outcome != testnet.Answered:
		return string(a.Outcome)
	}
	return a.ID
}

// want asks both protocols in both families.
func (w *world) want(when string, port uint16, want string) {
	w.Helper()
	for _, address := range []string{"127.0.0.1", "::1"} {
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			if got := w.ask(protocol, address, port); got != want {
				w.Errorf("%s: %s of %s, port %d: %s, want %s", when, protocol, address, port, got, want)
			}
		}
	}
}

// dial connects to a node port on localhost, for as long as the test lasts.
func (w *world) dial(network string, port uint16) net.Conn {
	w.Helper()
	c, err := w.Node.Dial(w.Context(), network, fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.Fatal(err)
	}
	return c
}

// wantReset connects and wants a reset, which may come before the connection is known to be there.
func (w *world) wantReset(port uint16) {
	w.Helper()
	c, err := w.Node.Dial(w.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		w.Errorf("the client sees %v", err)
	}
}

// line reads what a server says first, without the end of the line; empty where the connection ends before.
func line(c net.Conn) string {
	var b [200]byte
	n, _ := c.Read(b[:])
	id, _, _ := strings.Cut(string(b[:n]), " ")
	return id
}

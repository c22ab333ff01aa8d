package ipvs

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// way is how a client reaches a Service.
type way struct {
	from     *testnet.Namespace
	protocol string
	to       netip.AddrPort
	// loyal says that the Service has session affinity.
	loyal bool
}

func (y way) String() string { return fmt.Sprintf("%s to %v from %v", y.protocol, y.to, y.from) }

// ways are those that each proxy serves: from a pod and the node to cluster IPs, from outside to node ports, from a pod
// to itself, and pings of the node.
func (w *world) ways() (list []way) {
	for i, a := range w.web.addrs() {
		outside := netip.AddrPortFrom(w.NodeAddrs[i], w.web.nodePort)
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			cluster := netip.AddrPortFrom(a, port)
			list = append(list, way{from: w.client.NS, protocol: protocol, to: cluster}, way{from: w.Node, protocol: protocol,
				to: cluster},
				way{from: w.Outside, protocol: protocol, to: outside})
		}
		node := netip.AddrPortFrom(w.NodeAddrs[i], 0)
		list = append(list, way{from: w.client.NS, protocol: testnet.ICMP, to: node},
			way{from: w.Outside, protocol: testnet.ICMP, to: node},
			way{from: w.self.NS, protocol: testnet.TCP, to: netip.AddrPortFrom(w.hairpin.addrs()[i], port)},
			way{from: w.client.NS, protocol: testnet.TCP, to: netip.AddrPortFrom(w.loyal.addrs()[i], port), loyal: true},
			way{from: w.Outside, protocol: testnet.TCP, to: netip.AddrPortFrom(w.NodeAddrs[i], w.loyal.nodePort), loyal: true})
	}
	return list
}

// pings are echo requests to cluster IPs. kube-proxy's IPVS mode refuses them in its chain KUBE-IPVS-FILTER, which
// older versions did not have.
func (w *world) pings() (list []way) {
	for _, a := range w.web.addrs() {
		for _, from := range []*testnet.Namespace{w.client.NS, w.Node} {
			list = append(list, way{from: from, protocol: testnet.ICMP, to: netip.AddrPortFrom(a, 0)})
		}
	}
	return list
}

// freshSource is a source that no connection of the last five minutes had, for so long does IPVS remember one: a
// connection from such a port may be lost with that one's entry (TestReusedPort). At the pace of the clients a place
// needs longer for all its ports.
func (w *world) freshSource(y way) netip.AddrPort {
	const first, count = 2000, 28000 // below those that the kernel chooses, and below node ports
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources[y.from]++
	a := netip.IPv6Unspecified()
	if y.to.Addr().Is4() {
		a = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(a, uint16(first+w.sources[y.from]%count))
}

// dial connects from a fresh source.
func (w *world) dial(y way) (conn net.Conn, err error) {
	err = w.withSource(y, func(from netip.AddrPort) error {
		conn, err = y.from.DialFrom(w.Context(), y.protocol, from.String(), y.to.String())
		return err
	})
	return conn, err
}

// ask makes a new connection, or sends a ping.
func (w *world) ask(y way, patience time.Duration) (a testnet.Answer, err error) {
	if y.protocol == testnet.ICMP {
		return y.from.Ask(w.Context(), y.protocol, y.to, patience)
	}
	err = w.withSource(y, func(from netip.AddrPort) error {
		a, err = y.from.AskFrom(w.Context(), y.protocol, from, y.to, patience)
		return err
	})
	return a, err
}

// withSource connects from one fresh source after another, until one is free: some are taken by open connections and by
// servers of the node.
func (w *world) withSource(y way, connect func(from netip.AddrPort) error) error {
	for {
		if err := connect(w.freshSource(y)); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
}

// traffic is clients that connect anew and use an open connection, each again and again.
type traffic struct {
	*world
	name    string
	done    chan struct{}
	clients []*client
	running sync.WaitGroup
	// made counts new connections to the Service.
	made atomic.Int64
}

// client is one of them.
type client struct {
	way
	// conn stays open; nil for pings and with session affinity, where new connections are what counts.
	conn   net.Conn
	read   *bufio.Reader
	server string
	// moves is how often a client of session affinity has changed its server.
	moves int
	// steps gets a value after each step, and is closed after a failed one.
	steps chan struct{}
}

// startTraffic starts a client for each way, with a connection that is opened now.
func (w *world) startTraffic(name string) *traffic {
	w.Helper()
	tr := &traffic{world: w, name: name, done: make(chan struct{})}
	for _, y := range w.ways() {
		c := &client{way: y, steps: make(chan struct{})}
		if y.protocol != testnet.ICMP && !y.loyal {
			if err := c.open(w.dial(y)); err != nil {
				w.Fatalf("%s: %s: %v", name, y, err)
			}
		}
		tr.start(c)
	}
	w.Cleanup(tr.end)
	return tr
}

// open takes a new connection for the one that stays open.
func (c *client) open(conn net.Conn, err error) error {
	if err != nil {
		return err
	}
	c.conn = conn
	c.read = bufio.NewReader(c.conn)
	if c.protocol == testnet.TCP {
		if err := c.conn.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		_, err = c.read.ReadString('\n') // who the server is
	}
	return err
}

func (tr *traffic) start(c *client) {
	tr.clients = append(tr.clients, c)
	tr.running.Go(func() { tr.repeat(c) })
}

// repeat repeats steps until the traffic ends.
func (tr *traffic) repeat(c *client) {
	defer func() {
		if c.conn != nil {
			_ = c.conn.Close()
		}
	}()
	for {
		if err := c.step(tr.world); err != nil {
			tr.Errorf("%s: %s: %v", tr.name, c.way, err)
			close(c.steps)
			return
		}
		if c.protocol != testnet.ICMP {
			tr.made.Add(1)
		}
		select {
		case c.steps <- struct{}{}:
		case <-time.After(100 * time.Millisecond): // the pause between two steps while nobody waits for one
		case <-tr.done:
			return
		}
	}
}

// steps waits until each client has made so many steps more.
func (tr *traffic) steps(n int) {
	tr.Helper()
	for _, c := range tr.clients {
		for range n + 1 { // the first one may have begun before
			select {
			case _, goesOn := <-c.steps:
				if !goesOn {
					tr.FailNow()
				}
			case <-time.After(limit):
				tr.Fatalf("%s: %s: no step in %s", tr.name, c.way, limit)
			}
		}
	}
}

func (tr *traffic) end() {
	select {
	case <-tr.done:
	default:
		close(tr.done)
	}
	tr.running.Wait()
	for _, c := range tr.clients {
		// The proxy that begins to serve does not know whom the other one remembers.
		if c.moves > 1 {
			tr.Errorf("%s: %s: its server changed %d times, in spite of session affinity", tr.name, c.way, c.moves)
		}
	}
}

// step makes a new connection, and uses the open one. Its server does not change.
func (c *client) step(w *world) error {
	a, err := w.ask(c.way, limit)
	if err == nil && a.Outcome != testnet.Answered {
		err = fmt.Errorf("%s", a.Outcome)
	}
	if err != nil {
		return fmt.Errorf("new connection: %w", err)
	}
	if c.loyal {
		if c.server != "" && c.server != a.ID {
			c.moves++
		}
		c.server = a.ID
	}
	if c.conn == nil {
		return nil
	}
	return c.use(limit)
}

// use uses the open connection.
func (c *client) use(patience time.Duration) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	const said = "still there?\n"
	if _, err := c.conn.Write([]byte(said)); err != nil {
		return fmt.Errorf("open connection: %w", err)
	}
	heard, err := c.read.ReadString('\n')
	if err != nil {
		return fmt.Errorf("open connection: %w", err)
	}
	if c.protocol == testnet.TCP {
		if heard != said {
			return fmt.Errorf("said %q, heard %q", said, heard)
		}
		return nil
	}
	id, _, err := testnet.ParseAnswer(heard)
	if err == nil && c.server != "" && c.server != id {
		err = fmt.Errorf("open flow: answered by %s, before by %s", id, c.server)
	}
	c.server = id
	return err
}

func sorted(lines string) string {
	list := strings.Split(strings.TrimSpace(lines), "\n")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

package ipvs

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

// ways are all: from a pod and the node to cluster IPs, by connections and by pings, from outside to node ports, and from a pod to itself.
func (w *world) ways() (list []way) {
	for i, a := range w.web.addrs() {
		outside := netip.AddrPortFrom(w.NodeAddrs[i], w.web.nodePort)
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			cluster := netip.AddrPortFrom(a, port)
			list = append(list, way{from: w.client.NS, protocol: protocol, to: cluster}, way{from: w.Node, protocol: protocol, to: cluster},
				way{from: w.Outside, protocol: protocol, to: outside})
		}
		list = append(list, way{from: w.client.NS, protocol: testnet.ICMP, to: netip.AddrPortFrom(a, 0)}, way{from: w.Node, protocol: testnet.ICMP, to: netip.AddrPortFrom(a, 0)},
			way{from: w.self.NS, protocol: testnet.TCP, to: netip.AddrPortFrom(w.hairpin.addrs()[i], port)},
			way{from: w.client.NS, protocol: testnet.TCP, to: netip.AddrPortFrom(w.loyal.addrs()[i], port), loyal: true},
			way{from: w.Outside, protocol: testnet.TCP, to: netip.AddrPortFrom(w.NodeAddrs[i], w.loyal.nodePort), loyal: true})
	}
	return list
}

// freshSource is a source that no connection of the test has had: a connection from a port that a connection of IPVS had before may be
// lost with that one's entry (TestReusedPorts).
func (w *world) freshSource(to netip.AddrPort) netip.AddrPort {
	const first, count = 11000, 18000 // below those that the kernel chooses, and below node ports
	a := netip.IPv6Unspecified()
	if to.Addr().Is4() {
		a = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(a, uint16(first+w.connections.Add(1)%count))
}

// ask makes a new connection, or sends a ping.
func (w *world) ask(y way, patience time.Duration) (testnet.Answer, error) {
	if y.protocol == testnet.ICMP {
		return y.from.Ask(w.Context(), y.protocol, y.to, patience)
	}
	return y.from.AskFrom(w.Context(), y.protocol, w.freshSource(y.to), y.to, patience)
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
			if err := c.open(w, w.freshSource(y.to)); err != nil {
				w.Fatalf("%s: %s: %v", name, y, err)
			}
		}
		tr.start(c)
	}
	w.Cleanup(tr.end)
	return tr
}

// open opens the connection that stays open.
func (c *client) open(w *world, from netip.AddrPort) (err error) {
	if c.conn, err = c.from.DialFrom(w.Context(), c.protocol, from.String(), c.to.String()); err != nil {
		return err
	}
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
		case <-time.After(20 * time.Millisecond): // the pause between two steps while nobody waits for one
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

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

// way is how a client reaches the Service.
type way struct {
	from     *testnet.Namespace
	protocol string
	to       netip.AddrPort
}

func (y way) String() string { return fmt.Sprintf("%s to %v from %v", y.protocol, y.to, y.from) }

// ways are all: from a pod and the node to cluster IPs, and from outside to node ports.
func (w *world) ways() (list []way) {
	for _, protocol := range []string{testnet.TCP, testnet.UDP} {
		for i, a := range w.clusterIPs {
			list = append(list,
				way{w.client.NS, protocol, netip.AddrPortFrom(a, port)},
				way{w.Node, protocol, netip.AddrPortFrom(a, port)},
				way{w.Outside, protocol, netip.AddrPortFrom(w.NodeAddrs[i], nodePort)})
		}
	}
	return list
}

// traffic is clients that connect anew and use an open connection, each again and again.
type traffic struct {
	*world
	name    string
	done    chan struct{}
	clients []*client
	running sync.WaitGroup
	// made counts new connections.
	made atomic.Int64
}

// client is one of them.
type client struct {
	way
	conn   net.Conn
	read   *bufio.Reader
	server string
	// steps gets a value after each step, and is closed after a failed one.
	steps chan struct{}
}

// startTraffic starts a client for each way, with a connection that is opened now.
func (w *world) startTraffic(name string) *traffic {
	w.Helper()
	tr := &traffic{world: w, name: name, done: make(chan struct{})}
	for _, y := range w.ways() {
		conn, err := y.from.Dial(w.Context(), y.protocol, y.to.String())
		if err != nil {
			w.Fatalf("%s: %s: %v", name, y, err)
		}
		c := &client{way: y, conn: conn, read: bufio.NewReader(conn), steps: make(chan struct{})}
		if y.protocol == testnet.TCP {
			must(w.T, conn.SetDeadline(time.Now().Add(limit)))
			if _, err := c.read.ReadString('\n'); err != nil { // who the server is
				w.Fatalf("%s: %s: %v", name, y, err)
			}
		}
		tr.start(c)
	}
	w.Cleanup(tr.end)
	return tr
}

func (tr *traffic) start(c *client) {
	tr.clients = append(tr.clients, c)
	tr.running.Go(func() { tr.repeat(c) })
}

// repeat repeats steps until the traffic ends.
func (tr *traffic) repeat(c *client) {
	defer c.conn.Close()
	for {
		if err := c.step(tr.world); err != nil {
			tr.Errorf("%s: %s: %v", tr.name, c.way, err)
			close(c.steps)
			return
		}
		tr.made.Add(1)
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
}

// step makes a new connection, and uses the open one. Its server does not change.
func (c *client) step(w *world) error {
	a, err := c.from.Ask(w.Context(), c.protocol, c.to, limit)
	if err == nil && a.Outcome != testnet.Answered {
		err = fmt.Errorf("%s", a.Outcome)
	}
	if err != nil {
		return fmt.Errorf("new connection: %w", err)
	}
	if err := c.conn.SetDeadline(time.Now().Add(limit)); err != nil {
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

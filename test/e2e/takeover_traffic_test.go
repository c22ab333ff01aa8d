package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// traffic is clients that connect all the time, and connections that stay open.
type traffic struct {
	t       *testing.T
	done    chan struct{}
	running sync.WaitGroup
	clients []*trafficClient

	mu       sync.Mutex
	failures []string
	// again counts connections that needed a second SYN, and longest is the longest step.
	again   atomic.Int64
	longest time.Duration
}

// trafficClient does one thing again and again.
type trafficClient struct {
	name string
	// short says that each step is a new connection.
	short bool
	step  func() error
	steps atomic.Int64
	// loyal has the answers of a Service with session affinity; nil for others.
	loyal *loyalty
}

// loyalty counts how often a client's endpoint has changed.
type loyalty struct {
	server string
	moves  atomic.Int64
	// known is moves at the last look.
	known int64
}

// stepPeriod is the time between two steps of a client: so slow that the entries of connection
// tracking, which stay two minutes, do not fill the table.
const stepPeriod = 25 * time.Millisecond

// way is how a client reaches a server.
type way struct {
	from     *testnet.Namespace
	protocol string
	to       netip.AddrPort
}

func (y way) String() string { return fmt.Sprintf("%s to %v from %v", y.protocol, y.to, y.from) }

// startTraffic starts clients of the Services, each with new connections, and with one that stays open: in a pod, on
// the node and outside, for TCP and UDP of both families. A pod reaches itself by the Service self, whose slices have
// no nodeName in iptables mode. Clients on localhost are there where kube-proxy serves them.
func (w *takeoverWorld) startTraffic(pod, self *testnet.Namespace) *traffic {
	w.t.Helper()
	tr := &traffic{t: w.t, done: make(chan struct{})}
	for _, family := range ip.Families() {
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			ways := append(w.waysTo(w.web, pod, protocol, family), way{self, protocol, address(w.self, protocol, family)})
			if w.mode.mode == "iptables" && family == ip.V4 {
				ways = append(ways, way{w.Node, protocol, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}),
					nodePort(w.web, protocol))})
			}
			for _, y := range ways {
				tr.clients = append(tr.clients,
					&trafficClient{name: "new " + y.String(), short: true, step: func() error {
						return tr.connectOnce(w.node, y, nil)
					}},
					&trafficClient{name: "open " + y.String(), step: w.stayOpen(y.from, protocol, y.to)})
			}
		}
		for _, y := range w.waysTo(w.loyal, pod, testnet.TCP, family) {
			l := &loyalty{}
			tr.clients = append(tr.clients, &trafficClient{name: "loyal " + y.String(), short: true, loyal: l,
				step: func() error { return tr.connectOnce(w.node, y, l) }})
		}
		host := netip.AddrPortFrom(of(w.NodeAddrs, family), 0)
		for _, y := range []way{{pod, testnet.ICMP, host}, {w.Outside, testnet.ICMP, host}} {
			tr.clients = append(tr.clients, &trafficClient{name: y.String(), short: true, step: func() error {
				return tr.connectOnce(w.node, y, nil)
			}})
		}
	}
	for _, c := range tr.clients {
		tr.running.Go(func() { tr.repeat(c) })
	}
	w.t.Cleanup(tr.stop)
	return tr
}

// waysTo are those from a pod and the node to the cluster IP, and from outside to the node port.
func (w *takeoverWorld) waysTo(s *corev1.Service, pod *testnet.Namespace, protocol string, family ip.Family) []way {
	cluster := address(s, protocol, family)
	return []way{{pod, protocol, cluster}, {w.Node, protocol, cluster},
		{w.Outside, protocol, netip.AddrPortFrom(of(w.NodeAddrs, family), nodePort(s, protocol))}}
}

// longestStep is how long an answer may take. A busy machine is late by seconds; a datagram that is
// lost is lost for ever.
const longestStep = 30 * time.Second

// connectOnce returns an error unless a new connection is answered. l, unless nil, hears by whom.
func (tr *traffic) connectOnce(n *node, y way, l *loyalty) error {
	answer, err := y.from.Ask(n.ctx, y.protocol, y.to, longestStep)
	if err != nil {
		return err
	}
	if answer.Attempts > 1 {
		tr.again.Add(1)
	}
	if answer.Outcome != testnet.Answered {
		return errors.New(string(answer.Outcome))
	}
	if l != nil {
		if l.server != "" && l.server != answer.ID {
			l.moves.Add(1)
		}
		l.server = answer.ID
	}
	return nil
}

// stayOpen opens a connection, or a UDP flow, and returns the step that uses it.
func (n *node) stayOpen(from *testnet.Namespace, protocol string, to netip.AddrPort) func() error {
	n.t.Helper()
	conn, err := from.Dial(n.ctx, protocol, to.String())
	n.must(err)
	n.t.Cleanup(func() { conn.Close() })
	read := bufio.NewReader(conn)
	server := ""
	if protocol == testnet.TCP {
		_, err := read.ReadString('\n') // who the server is
		n.must(err)
	}
	return func() error {
		if err := conn.SetDeadline(time.Now().Add(longestStep)); err != nil {
			return err
		}
		if protocol == testnet.TCP {
			return echoLine(conn, read)
		}
		return sameServer(conn, &server)
	}
}

func echoLine(conn net.Conn, read *bufio.Reader) error {
	const said = "still there?\n"
	if _, err := conn.Write([]byte(said)); err != nil {
		return err
	}
	heard, err := read.ReadString('\n')
	if err == nil && heard != said {
		err = fmt.Errorf("said %q, heard %q", said, heard)
	}
	return err
}

// sameServer asks who the server is, and expects the one of before.
func sameServer(conn net.Conn, server *string) error {
	if _, err := conn.Write([]byte("who?\n")); err != nil {
		return err
	}
	answer := make([]byte, 256)
	length, err := conn.Read(answer)
	if err != nil {
		return err
	}
	id, _, err := testnet.ParseAnswer(string(answer[:length]))
	if err != nil {
		return err
	}
	if *server != "" && id != *server {
		return fmt.Errorf("answered by %s, before by %s", id, *server)
	}
	*server = id
	return nil
}

// repeat repeats a client's step until the traffic ends.
func (tr *traffic) repeat(c *trafficClient) {
	ticker := time.NewTicker(stepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-tr.done:
			return
		case <-ticker.C:
		}
		start := time.Now()
		err := c.step()
		tr.mu.Lock()
		tr.longest = max(tr.longest, time.Since(start))
		if err != nil {
			tr.failures = append(tr.failures, fmt.Sprintf("%s %s: %v", time.Now().Format(time.TimeOnly), c.name, err))
		}
		tr.mu.Unlock()
		c.steps.Add(1)
	}
}

// goesOn waits until each client has done ten steps more, and fails the test if one has failed.
func (tr *traffic) goesOn() {
	tr.t.Helper()
	const more = 10
	before := make([]int64, len(tr.clients))
	for i, c := range tr.clients {
		before[i] = c.steps.Load()
	}
	deadline := time.Now().Add(patience)
	ticker := time.NewTicker(stepPeriod)
	defer ticker.Stop()
	for i, c := range tr.clients {
		for c.steps.Load() < before[i]+more {
			if <-ticker.C; time.Now().After(deadline) {
				tr.t.Fatalf("%s does not go on", c.name)
			}
		}
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, f := range tr.failures {
		tr.t.Errorf("failed: %s", f)
	}
	if len(tr.failures) > 0 {
		tr.t.FailNow()
	}
}

// staysLoyal fails the test if a client of session affinity has changed its endpoint more than once since the last
// look: the proxies do not know whom the other one remembers, so the one that begins to serve may choose anew.
func (tr *traffic) staysLoyal() {
	tr.t.Helper()
	for _, c := range tr.clients {
		if c.loyal == nil {
			continue
		}
		now := c.loyal.moves.Load()
		if now-c.loyal.known > 1 {
			tr.t.Errorf("%s: its endpoint changed %d times", c.name, now-c.loyal.known)
		}
		c.loyal.known = now
	}
}

func (tr *traffic) stop() {
	select {
	case <-tr.done:
	default:
		close(tr.done)
	}
	tr.running.Wait()
}

// end ends the traffic and logs how much there was.
func (tr *traffic) end(of string) {
	tr.t.Helper()
	tr.stop()
	var opened, used int64
	for _, c := range tr.clients {
		if c.short {
			opened += c.steps.Load()
		} else {
			used += c.steps.Load()
		}
	}
	tr.t.Logf("%s: %d new connections (%d with a second SYN) and %d messages on open ones, %d failed; the longest took %v",
		of, opened, tr.again.Load(), used, len(tr.failures), tr.longest.Round(time.Millisecond))
	if len(tr.failures) > 0 {
		tr.t.Errorf("failed: %v", tr.failures)
	}
}

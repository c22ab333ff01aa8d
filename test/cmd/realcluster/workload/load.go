package workload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"nftproxy/test/lib/testnet"
)

// client makes a request again and again, with a pause before each.
type client struct {
	name  string
	pause time.Duration
	ask   func(context.Context) error
}

// Load is traffic without end, of many clients.
type Load struct {
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	clients []client
	// staying are the clients with connections that stay open.
	staying []*stayingClient

	mu sync.Mutex
	// ok counts the requests that went well; on connections that stay, too.
	ok, okStaying int
	slow          int // took longer than a second: a lost packet at the least
	longest       time.Duration
	failures      []Failure
}

// Failure is a request that failed.
type Failure struct {
	Began, Ended time.Time
	Client       string
	Err          error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("at %s %s after %v: %v", f.Ended.Format("15:04:05.000"), f.Client,
		f.Ended.Sub(f.Began).Round(time.Millisecond), f.Err)
}

// Unwrap returns the client's error.
func (f *Failure) Unwrap() error { return f.Err }

// UDP says that the request was a datagram.
func (f *Failure) UDP() bool { return strings.HasSuffix(f.Client, " by udp") }

// OpenBefore says that the client keeps its connection open.
func (f *Failure) OpenBefore() bool { return strings.HasSuffix(f.Client, openBefore) }

func newLoad(ctx context.Context) *Load {
	l := &Load{}
	l.ctx, l.stop = context.WithCancel(ctx)
	return l
}

// Each node gets requests from this many clients of NodePortLoad, each after a pause.
const (
	clientsPerNode = 2
	betweenAsks    = 10 * time.Millisecond
)

// NodePortLoad starts traffic from outside: connections to the node port of web on
// some nodes, with a request each.
func (w *Web) NodePortLoad(ctx context.Context, nodes ...string) *Load {
	l := newLoad(ctx)
	for _, node := range nodes {
		to := netip.AddrPortFrom(w.Addrs(node)[0], w.Port)
		for range clientsPerNode {
			l.add(betweenAsks, "outside to "+to.String(), func(ctx context.Context) error {
				_, err := w.Get(ctx, to, "/hostname")
				return err
			})
		}
	}
	l.start()
	return l
}

// betweenAllAsks is the pause of each client of AllLoad, of which there are many.
const betweenAllAsks = 100 * time.Millisecond

// AllLoad starts traffic of every kind that Services see, for each node and both
// families: from outside to node ports and from the node itself to cluster IPs, by
// new connections and by one that stays open; from a pod to cluster IPs by new
// connections of TCP and UDP. It returns once each client has had an answer: the
// Services are new, and a proxy may not have all of them yet.
func (w *Web) AllLoad(ctx context.Context, more ...func(*Load) error) (*Load, error) {
	pods, err := w.Clients(ctx)
	if err != nil {
		return nil, err
	}
	l := newLoad(ctx)
	for _, node := range w.Nodes() {
		for _, a := range w.Addrs(node) {
			l.both("outside", w.Outside, netip.AddrPortFrom(a, w.Port))
		}
		for _, a := range w.ClusterIPs {
			l.both(node, w.NetworkOf(node), netip.AddrPortFrom(a, 80))
			for protocol, port := range map[string]uint16{"http": 80, "udp": 81} {
				pod := pods[node][0]
				l.add(betweenAllAsks, fmt.Sprintf("pod on %s to %v by %s", node, a, protocol), func(ctx context.Context) error {
					_, err := w.Ask(ctx, pod, protocol, a.String(), port, 1)
					return err
				})
			}
		}
	}
	for _, add := range more {
		if err := add(l); err != nil {
			l.stop()
			return nil, err
		}
	}
	if err := l.awaitAnswers(); err != nil {
		l.stop()
		return nil, err
	}
	l.start()
	return l, nil
}

// awaitAnswers returns once each client has had an answer.
func (l *Load) awaitAnswers() error {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	for _, c := range l.clients {
		for err := c.ask(ctx); err != nil; err = c.ask(ctx) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s had no answer: %w", c.name, err)
			case <-time.After(c.pause):
			}
		}
	}
	return nil
}

// both adds a client with new connections, and one with a connection that stays.
func (l *Load) both(name string, from *testnet.Namespace, to netip.AddrPort) {
	l.add(betweenAllAsks, fmt.Sprintf("%s to %v", name, to), func(ctx context.Context) error {
		_, err := get(ctx, from, to, "/hostname")
		return err
	})
	c := &stayingClient{from: from, to: to}
	l.staying = append(l.staying, c)
	l.add(betweenAllAsks, fmt.Sprintf("%s to %v, %s", name, to, openBefore), c.ask)
}

// openBefore marks the names of clients whose connections stay open.
const openBefore = "open since before"

// stayingClient has a connection that stays open, always with the same server.
type stayingClient struct {
	from   *testnet.Namespace
	to     netip.AddrPort
	conn   *connection // nil before the first request
	server string
}

func (s *stayingClient) ask(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if s.conn == nil {
		if s.conn, err = dial(ctx, s.from, s.to); err != nil {
			return err
		}
		s.server = ""
	}
	server, err := s.conn.get(ctx, "/hostname", false)
	if err == nil && s.server != "" && server != s.server {
		err = fmt.Errorf("answered by %s, before by %s", server, s.server)
	}
	s.server = server
	if err != nil {
		s.close() // the next request finds out whether a new connection works
	}
	return err
}

// close ends the connection, if there is one. It may be broken already.
func (s *stayingClient) close() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}

func (l *Load) add(pause time.Duration, name string, ask func(context.Context) error) {
	l.clients = append(l.clients, client{name, pause, ask})
}

func (l *Load) start() {
	for _, c := range l.clients {
		l.done.Go(func() { l.repeat(c) })
	}
}

func (l *Load) repeat(c client) {
	tick := time.NewTicker(c.pause)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		// A request that has begun is not cut by the end of the load.
		err := c.ask(context.WithoutCancel(l.ctx))
		l.note(began, c.name, err)
	}
}

func (l *Load) note(began time.Time, name string, err error) {
	ended := time.Now()
	took := ended.Sub(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, took)
	switch {
	case err != nil:
		l.failures = append(l.failures, Failure{began, ended, name, err})
	case took > time.Second:
		l.slow++
		fallthrough
	default:
		l.ok++
		if strings.HasSuffix(name, openBefore) {
			l.okStaying++
		}
	}
}

// Seen says how many requests there were and how they went, until now.
func (l *Load) Seen() (requests, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ok + len(l.failures), len(l.failures)
}

// Slow says how many requests took longer than a second until now.
func (l *Load) Slow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slow
}

// Failures are the requests that failed until now, in the order of their ends.
func (l *Load) Failures() []Failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failures)
}

// leastRequests is how many requests a load must have made to say anything.
const leastRequests = 100

// End stops the traffic and says how it went. An error is a request that failed.
func (l *Load) End() (string, error) {
	l.stop()
	l.done.Wait()
	for _, c := range l.staying {
		c.close()
	}
	seen := fmt.Sprintf("%d of %d requests failed, %d took longer than a second, the longest %v",
		len(l.failures), l.ok+len(l.failures), l.slow, l.longest.Round(time.Millisecond))
	if len(l.staying) > 0 {
		seen += fmt.Sprintf("; %d of them on %d connections that stayed open", l.okStaying, len(l.staying))
	}
	var errs []error
	for i := range l.failures {
		errs = append(errs, &l.failures[i])
	}
	if l.ok < leastRequests {
		errs = append(errs, fmt.Errorf("only %d requests went well", l.ok))
	}
	if len(errs) == 0 {
		return seen, nil
	}
	return seen, fmt.Errorf("%s; the first: %w", seen, errors.Join(errs[:min(5, len(errs))]...))
}

// Under runs an action while traffic goes to the node ports of nodes.
func (w *Web) Under(ctx context.Context, nodes []string, action func() error) (string, error) {
	l := w.NodePortLoad(ctx, slices.Clone(nodes)...)
	failed := action()
	seen, err := l.End()
	return seen, errors.Join(failed, err)
}

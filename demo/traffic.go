package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"nftproxy/test/lib/testnet"
)

// askers is how many connections are under way at a time.
const askers = 4

// askMany connects n times, each time from a new socket, and expects answers. It stops at
// the first connection without one.
func askMany(ctx context.Context, from *testnet.Namespace, proto string, to netip.AddrPort,
	n int) ([]testnet.Answer, error) {
	return askFrom(ctx, from, make([]netip.AddrPort, n), proto, to)
}

// askFrom is askMany, once from each of the sources, as testnet.AskFrom has them. The
// answers are in the order of the sources.
func askFrom(ctx context.Context, from *testnet.Namespace, sources []netip.AddrPort, proto string,
	to netip.AddrPort) ([]testnet.Answer, error) {
	answers := make([]testnet.Answer, len(sources))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askers)
	for i := range answers {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			a, err := from.AskFrom(ctx, proto, sources[i], to, patience)
			if err == nil && a.Outcome != testnet.Answered {
				what := fmt.Sprintf("%d connections from %s to %v/%s", len(sources), from, to, proto)
				err = &mismatch{what, "all to be " + string(testnet.Answered), "one that was not: " + string(a.Outcome)}
			}
			answers[i] = a
			return err
		})
	}
	return answers, group.Wait()
}

// traffic makes new connections without end, from one namespace.
type traffic struct {
	from    *testnet.Namespace
	targets []netip.AddrPort
	cancel  context.CancelFunc
	askers  sync.WaitGroup
	start   time.Time

	mu      sync.Mutex
	changed *sync.Cond
	// begun and ended count each asker's connections.
	begun, ended [askers]int
	failures     []string
	slowest      time.Duration
	// out has the servers that must not get a connection which begins later.
	out map[string]time.Time
}

// trafficPause is the least time between two connections of one asker.
const trafficPause = 6 * time.Millisecond

// startTraffic connects to the targets in turn, over TCP, until stop.
func startTraffic(ctx context.Context, from *testnet.Namespace, targets ...netip.AddrPort) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{from: from, targets: targets, cancel: cancel, start: time.Now(), out: map[string]time.Time{}}
	t.changed = sync.NewCond(&t.mu)
	for i := range askers {
		t.askers.Go(func() { t.askInTurn(ctx, i) })
	}
	return t
}

// askInTurn connects to one target after the other until ctx ends.
func (t *traffic) askInTurn(ctx context.Context, asker int) {
	pace := time.NewTicker(trafficPause)
	defer pace.Stop()
	for n := asker; ; n++ {
		t.mu.Lock()
		t.begun[asker]++
		t.mu.Unlock()
		start := time.Now()
		answer, err := t.from.Ask(ctx, testnet.TCP, t.targets[n%len(t.targets)], patience)
		t.record(ctx, asker, start, answer, err)
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
	}
}

func (t *traffic) record(ctx context.Context, asker int, start time.Time, answer testnet.Answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out, isOut := t.out[answer.ID]
	switch {
	case ctx.Err() != nil: // stop has cut it short
		t.begun[asker]--
		t.changed.Broadcast()
		return
	case err != nil:
		t.failures = append(t.failures, err.Error())
	case answer.Outcome != testnet.Answered:
		t.failures = append(t.failures, string(answer.Outcome))
	case isOut && start.After(out):
		t.failures = append(t.failures, "answered by "+answer.ID+", which was replaced")
	}
	t.ended[asker]++
	t.slowest = max(t.slowest, answer.Took)
	t.changed.Broadcast()
}

// leave says that from now on a server must not get new connections.
func (t *traffic) leave(server string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.out[server] = time.Now()
}

// awaitMore waits for the end of every connection that is under way, and of n more
// connections.
func (t *traffic) awaitMore(ctx context.Context, n int) error {
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.changed.Broadcast()
	})
	defer stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	begun, total := t.begun, sum(t.ended)+n
	for ctx.Err() == nil {
		if allReached(t.ended, begun) && sum(t.ended) >= total {
			return nil
		}
		t.changed.Wait()
	}
	return context.Cause(ctx)
}

// failing says whether a connection has failed.
func (t *traffic) failing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0
}

// totals is the result of the traffic.
type totals struct {
	connections int
	failures    []string
	slowest     time.Duration
	took        time.Duration
}

// stop ends the traffic. It may be called several times.
func (t *traffic) stop() totals {
	took := time.Since(t.start)
	t.cancel()
	t.askers.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return totals{connections: sum(t.ended), failures: t.failures, slowest: t.slowest, took: took}
}

func allReached(counts, marks [askers]int) bool {
	for i, c := range counts {
		if c < marks[i] {
			return false
		}
	}
	return true
}

func sum(counts [askers]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// session is an open connection to a server that echoes.
type session struct {
	conn   net.Conn
	reader *bufio.Reader
	server string
	echoes int
	// forget keeps the connection open when the context ends.
	forget func() bool
}

func openSession(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) (*session, error) {
	conn, err := from.Dial(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, reader: bufio.NewReader(conn)}
	s.forget = context.AfterFunc(ctx, func() { _ = conn.Close() })
	line, err := s.read()
	if err == nil {
		s.server, _, err = testnet.ParseAnswer(line)
	}
	if err != nil {
		_ = s.close() // the earlier error counts
		return nil, err
	}
	return s, nil
}

func (s *session) read() (string, error) {
	if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	return s.reader.ReadString('\n')
}

// echo sends a line and expects the same line back.
func (s *session) echo() error {
	sent := fmt.Sprintf("still there? %d\n", s.echoes)
	if _, err := s.conn.Write([]byte(sent)); err != nil {
		return err
	}
	got, err := s.read()
	if err != nil {
		return err
	}
	if got != sent {
		return fmt.Errorf("sent %q and got %q back", sent, got)
	}
	s.echoes++
	return nil
}

func (s *session) close() error {
	s.forget()
	return s.conn.Close()
}

package conntrack

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// agingTable has one entry, whose time is set by the packets of a sender.
type agingTable struct {
	mu     sync.Mutex
	flow   Flow
	limit  time.Duration
	packet func(now time.Time) (last time.Time)
	gone   bool
}

func (a *agingTable) Size(context.Context) (entries, buckets int, err error) {
	return 1000, usualBuckets, nil
}

func (a *agingTable) Flows(_ context.Context, filter Filter, yield func(Flow) error) error {
	a.mu.Lock()
	f, now := a.flow, time.Now()
	f.Timeout = a.packet(now).Add(a.limit).Sub(now).Truncate(time.Second)
	gone := a.gone || f.Timeout <= 0
	a.mu.Unlock()
	if gone || !filter.Selects(&f) {
		return nil
	}
	return yield(f)
}

func (a *agingTable) Delete(context.Context, []Flow) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	return 1, nil
}

// untilDeparture is a table with an entry in use until the time at which departing has its endpoint leave. packet says
// when the last packet came since that start.
func untilDeparture(f Flow, limit time.Duration, packet func(start, now time.Time) time.Time) *agingTable {
	start := time.Now().Add(beforeDeparture)
	return &agingTable{flow: f, limit: limit, packet: func(now time.Time) time.Time {
		if now.Before(start) {
			return now
		}
		return packet(start, now)
	}}
}

// beforeDeparture is how long a Service has its endpoint.
const beforeDeparture = 10 * time.Minute

// departing starts a Cleaner, and has the endpoint of a Service with an option leave.
func departing(t *testing.T, table flowTable, option string, config CleanerConfig) *Cleaner {
	cleaner := NewCleaner(table, NewIndex(Options{}), config)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cleaner.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	cleaner.SyncDone(shop(t, true, option), false)
	time.Sleep(beforeDeparture)
	cleaner.SyncDone(shop(t, false, option), false)
	return cleaner
}

func (a *agingTable) isGone() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

// TestGivenUp: an answered connection to a departed endpoint goes once something is not acknowledged and no packet has
// come for half a minute, whatever the kernel's settings are. It takes 140 s if the endpoint answers the node, or may.
// One that lives stays.
func TestGivenUp(t *testing.T) {
	every := func(d time.Duration) func(start, now time.Time) time.Time {
		return func(start, now time.Time) time.Time { return start.Add(now.Sub(start).Truncate(d)) }
	}
	until := func(end time.Duration) func(start, now time.Time) time.Time {
		return func(start, now time.Time) time.Time {
			if last := start.Add(end); now.After(last) {
				return last
			}
			return now
		}
	}
	const never = time.Duration(-1)
	type entry struct {
		state   TCPState
		limit   time.Duration
		unacked bool
	}
	for name, c := range map[string]struct {
		entry
		dst    string
		option string
		packet func(start, now time.Time) time.Time
		// by is when it is gone at the latest.
		by time.Duration
		// answers says that the endpoint does.
		answers bool
	}{
		"as the endpoint leaves": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "", until(0),
			65 * time.Second, false},
		"10 s later": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "",
			until(10 * time.Second), 65 * time.Second, false},
		"a minute later": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "",
			until(time.Minute), 125 * time.Second, false},
		"15 min later": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "",
			until(15 * time.Minute), 16*time.Minute + 5*time.Second, false},
		"at the node port": {entry{TCPEstablished, 5 * time.Minute, true}, "192.168.0.2:30080", "", until(0),
			65 * time.Second, false},
		"closing": {entry{TCPFinWait, 2 * time.Minute, true}, "10.96.0.1:80", "", until(0),
			65 * time.Second, false},
		"the endpoint closed": {entry{TCPCloseWait, time.Hour, true}, "10.96.0.1:80", "", until(0),
			65 * time.Second, false},
		"both closed": {entry{TCPLastAck, 10 * time.Minute, true}, "10.96.0.1:80", "", until(0),
			65 * time.Second, false},
		"max_retrans is an hour": {entry{TCPEstablished, time.Hour, true}, "10.96.0.1:80", "", until(0),
			65 * time.Second, false},
		"timeouts of a minute and half": {entry{TCPEstablished, 90 * time.Second, true}, "10.96.0.1:80", "", until(0),
			65 * time.Second, false},
		"an idle one": {entry{TCPEstablished, 24 * time.Hour, false}, "10.96.0.1:80", "", until(0), never, false},
		"an idle one, little time": {entry{TCPEstablished, 5 * time.Minute, false}, "10.96.0.1:80", "",
			every(4 * time.Minute), never, false},
		"a busy one": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "", every(time.Second),
			never, false},
		"a busy one, little time": {entry{TCPEstablished, time.Minute, true}, "10.96.0.1:80", "", every(time.Second),
			never, false},
		"one that repeats": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "", every(25 * time.Second),
			never, false},
		"keep": {entry{TCPEstablished, 24 * time.Hour, true}, "10.96.0.1:80", "  option departed-connections keep\n",
			until(0), never, false},
		"the endpoint answers": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "", until(0),
			160 * time.Second, true},
		"an endpoint that takes nothing": {entry{TCPEstablished, 5 * time.Minute, true}, "10.96.0.1:80", "",
			every(133650 * time.Millisecond), never, true}, // TCP_RTO_MAX with 300 ticks a second
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := dnated(service.TCP, "10.0.0.9", c.dst, "10.0.0.2:80", SeenReply|Assured)
				f.TCPState, f.Unacknowledged, f.ID = c.state, c.unacked, 7
				table := untilDeparture(f, c.limit, c.packet)
				departing(t, table, c.option, CleanerConfig{Dead: func(_ context.Context, endpoint netip.AddrPort) bool {
					if endpoint != f.Reply.Src {
						t.Errorf("%s is asked", endpoint)
					}
					time.Sleep(2 * time.Second)
					return !c.answers
				}})
				start := time.Now()
				for time.Since(start) < 20*time.Minute {
					time.Sleep(time.Second)
					gone := table.isGone()
					if after := time.Since(start); gone && (c.by == never || after > c.by || c.answers && after < 2*time.Minute) {
						t.Fatalf("gone after %s", after)
					} else if gone {
						return
					} else if c.by != never && after > c.by {
						t.Fatalf("still there after %s", after)
					}
				}
			})
		})
	}
}

// TestFixedSourcePort: a client gives a connection up without a word when its pod vanishes, and connects again from the
// same port. It reaches the endpoint that is left.
func TestFixedSourcePort(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w := worlds(t)[family]
			vanishing, staying := w.endpoint(t, "vanishing"), w.endpoint(t, "staying")
			r, table := newRules(t, w.Node), open(t, w.Node)
			before, after := w.web(t, vanishing), w.web(t, staying)
			r.sync(t, before)
			from, to := netip.AddrPortFrom(w.podAddr, 833).String(), netip.AddrPortFrom(w.clusterIP, 80).String()
			client, err := w.pod.NS.DialFrom(t.Context(), "tcp", from, to)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			testnet.Require(t, socketOption(client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 2000))
			r.sync(t, after)
			index, pass := passesAfter(t, table, before, after, 5*time.Second)
			if n := pass(); n > 0 {
				t.Fatal("a living connection is removed")
			}
			end := testnet.End{NS: w.Node, Link: w.Pod("vanishing").HostInterface}
			if err := end.Remove(); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Write([]byte("anybody there?\n")); err != nil {
				t.Fatal(err)
			}
			for { // until the client gives up
				if _, err = client.Read(make([]byte, 100)); err != nil {
					break
				}
			}
			_ = client.Close()
			began := time.Now()
			again := make(chan error, 1)
			go func() {
				again <- func() error {
					c, err := w.pod.NS.DialFrom(t.Context(), "tcp", from, to)
					if err != nil {
						return err
					}
					defer c.Close()
					line, err := bufio.NewReader(c).ReadString('\n')
					if err == nil && !strings.HasPrefix(line, "staying ") {
						err = errors.New(line)
					}
					return err
				}()
			}()
			for n := 0; n == 0; n = pass() {
				if time.Since(began) > patience {
					t.Fatal("the entry is still there")
				}
				time.Sleep(500 * time.Millisecond)
				index.Advance(time.Now())
				for _, endpoint := range index.silence.take() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					if c, err := w.Node.DialFrom(ctx, "tcp", "", endpoint.String()); err == nil {
						t.Errorf("%s, which vanished, answers", endpoint)
						_ = c.Close()
					}
					cancel()
					index.silence.died(death{endpoint, time.Now()})
				}
			}
			if after := time.Since(began); after < index.silence.after-2*coarse {
				t.Errorf("removed after %s of silence", after)
			}
			if err := <-again; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEndpointThatTakesNothing: an endpoint has left, lives, and has no memory left for what it does not read. Its
// connection looks given up, but that the endpoint answers.
func TestEndpointThatTakesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	w := worlds(t)["IPv4"]
	leaving, err := w.AddPod("leaving")
	testnet.Require(t, err)
	endpoint := netip.AddrPortFrom(leaving.Addrs.V4(), 8080)
	l, err := leaving.NS.Listen(t.Context(), "tcp", endpoint.String())
	testnet.Require(t, err)
	defer l.Close()
	r, table := newRules(t, w.Node), open(t, w.Node)
	before, after := w.web(t, endpoint), w.web(t, w.endpoint(t, "staying"))
	r.sync(t, before)
	client, err := w.pod.NS.Dial(t.Context(), "tcp", netip.AddrPortFrom(w.clusterIP, 80).String())
	testnet.Require(t, err)
	defer client.Close()
	server, err := l.Accept()
	testnet.Require(t, err)
	defer server.Close()
	testnet.Require(t, socketOption(server, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	testnet.Require(t, client.SetDeadline(time.Now().Add(time.Second)))
	for err == nil {
		_, err = client.Write([]byte("x"))
	}
	r.sync(t, after)
	index, pass := passesAfter(t, table, before, after, 4*time.Second)
	// The sender pauses for four seconds, then for twice as long.
	began := time.Now()
	for asked := false; !asked; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the connection does not look given up")
		}
		index.Advance(time.Now())
		for range index.silence.take() {
			asked = true
			c, err := w.Node.Dial(t.Context(), "tcp", endpoint.String())
			testnet.Require(t, err)
			_ = c.Close()
		}
		if n := pass(); n > 0 {
			t.Fatal("a living connection is removed")
		}
	}
	index.silence.died(death{endpoint, time.Now()})
	if n := pass(); n != 1 {
		t.Errorf("%d removed after the endpoint has died, want the connection: it did not look given up", n)
	}
}

// passesAfter returns an index for which a snapshot has just followed another, and what makes passes by it, which
// return how many connections to departed endpoints they remove. A silence counts after a time.
func passesAfter(t *testing.T, table flowTable, before, after service.Snapshot, silence time.Duration) (*Index,
	func() int) {
	index := NewIndex(Options{})
	index.silence.after = silence
	index.Advance(time.Now())
	index.Update(before)
	index.Update(after)
	cleaner := NewCleaner(table, index, CleanerConfig{})
	return index, func() int {
		t.Helper()
		whole := newPass(Scope{Everything: true})
		testnet.Require(t, cleaner.clean(t.Context(), whole))
		return whole.run.Removed[EndpointGone]
	}
}

func socketOption(c net.Conn, level, name, value int) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, name, value) })
	return errors.Join(err, failed)
}

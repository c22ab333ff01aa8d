package watch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/test/lib/testnet"

	"golang.org/x/net/dns/dnsmessage"
)

// TestConnector: each address has its own time to answer, and the search for addresses takes none of it.
func TestConnector(t *testing.T) {
	refused, unknown := errors.New("refused"), errors.New("no such host")
	type way struct {
		after time.Duration // 0 for never
		err   error
	}
	silent := way{}
	for name, c := range map[string]struct {
		host    string
		lookup  time.Duration
		failed  error
		addrs   []string
		answers map[string]way
		want    string // the address or the error
		within  time.Duration
	}{
		"an address": {host: "192.0.2.1",
			answers: map[string]way{"192.0.2.1:6443": {after: time.Second}}, want: "192.0.2.1:6443", within: time.Second},
		"an address of IPv6": {host: "[2001:db8::1]",
			answers: map[string]way{"[2001:db8::1]:6443": {after: time.Second}}, want: "[2001:db8::1]:6443",
			within: time.Second},
		"two dead nameservers": {host: "api", lookup: 10 * time.Second, addrs: []string{"192.0.2.1"},
			answers: map[string]way{"192.0.2.1:6443": {after: 4 * time.Second}}, want: "192.0.2.1:6443",
			within: 14 * time.Second},
		"dead nameservers, five names": {host: "api", lookup: 50 * time.Second, addrs: []string{"192.0.2.1"},
			answers: map[string]way{"192.0.2.1:6443": {after: 4 * time.Second}}, want: "192.0.2.1:6443",
			within: 54 * time.Second},
		"a resolver that hangs": {host: "api", lookup: time.Hour, want: context.DeadlineExceeded.Error(),
			within: lookupLimit},
		"no such name": {host: "api", lookup: time.Second, failed: unknown, want: unknown.Error(),
			within: time.Second},
		"the first address is silent": {host: "api", addrs: []string{"192.0.2.1", "192.0.2.2"},
			answers: map[string]way{"192.0.2.1:6443": silent, "192.0.2.2:6443": {after: time.Second}}, want: "192.0.2.2:6443",
			within: connectLimit + time.Second},
		"one family is silent": {host: "api", addrs: []string{"2001:db8::1", "2001:db8::2", "192.0.2.1"},
			answers: map[string]way{"[2001:db8::1]:6443": silent, "[2001:db8::2]:6443": silent,
				"192.0.2.1:6443": {after: time.Second}}, want: "192.0.2.1:6443", within: fallbackDelay + time.Second},
		"one family is refused": {host: "api", addrs: []string{"2001:db8::1", "192.0.2.1"},
			answers: map[string]way{"[2001:db8::1]:6443": {after: 1, err: refused}, "192.0.2.1:6443": {after: time.Second}},
			want:    "192.0.2.1:6443", within: time.Second + 1},
		"both answer, the first comes first": {host: "api", addrs: []string{"192.0.2.1", "2001:db8::1"},
			answers: map[string]way{"192.0.2.1:6443": {after: fallbackDelay + 1}, "[2001:db8::1]:6443": {after: time.Second}},
			want:    "192.0.2.1:6443", within: fallbackDelay + 1},
		"all are silent": {host: "api", addrs: []string{"192.0.2.1", "192.0.2.2"},
			answers: map[string]way{"192.0.2.1:6443": silent, "192.0.2.2:6443": silent}, want: os.ErrDeadlineExceeded.Error(),
			within: 2 * connectLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var open []*tracked
				connector := connector{
					lookup: func(ctx context.Context, network, host string) ([]netip.Addr, error) {
						if network != "ip" || host != "api" {
							t.Errorf("looked up %s of %s", network, host)
						}
						var list []netip.Addr
						for _, a := range c.addrs {
							list = append(list, netip.MustParseAddr(a))
						}
						return list, errors.Join(sleep(ctx, c.lookup), c.failed)
					},
					dial: func(ctx context.Context, network, address string) (net.Conn, error) {
						way, ok := c.answers[address]
						if !ok || network != "tcp" {
							t.Errorf("dialed %s %s", network, address)
						}
						if way == silent {
							if err := sleep(ctx, connectLimit); err != nil {
								return nil, err
							}
							return nil, os.ErrDeadlineExceeded
						}
						// Not ended by ctx: a connection that is made at this very moment is made.
						if time.Sleep(way.after); way.err != nil {
							return nil, way.err
						}
						mu.Lock()
						defer mu.Unlock()
						open = append(open, &tracked{address: address})
						return open[len(open)-1], nil
					},
				}
				start := time.Now()
				conn, err := connector.connect(t.Context(), "tcp", c.host+":6443")
				took := time.Since(start)
				var got string
				if err != nil {
					got = err.Error()
				} else {
					got = conn.(*tracked).address
				}
				if got != c.want || took != c.within {
					t.Errorf("%s after %s, want %s after %s", got, took, c.want, c.within)
				}
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				for _, o := range open {
					if o.closed.Load() == (conn == net.Conn(o)) {
						t.Errorf("%s is closed: %t", o.address, o.closed.Load())
					}
				}
			})
		})
	}
}

// sleep waits, or returns the error of a context that ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// tracked is a connection to an address.
type tracked struct {
	net.Conn
	address string
	closed  atomic.Bool // the race detector does not know the order of time in a bubble
}

func (c *tracked) Close() error {
	c.closed.Store(true)
	return nil
}

// TestDeadNameserver: a nameserver that does not answer, as the first of resolv.conf on a node whose link to it is
// down, costs 5 s and not the connection.
func TestDeadNameserver(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes as long as the resolver waits for a nameserver")
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	live, dead := nameserver(t, netip.MustParseAddr("127.0.0.1")), nameserver(t, netip.Addr{})
	var mu sync.Mutex
	asked := map[string]int{}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		at := live
		if asked["dead"] < 2 { // one question for each family
			at = dead
			asked["dead"]++
		}
		return new(net.Dialer).DialContext(ctx, "udp", at)
	}}
	c := newConnector()
	c.lookup = resolver.LookupNetIP
	start := time.Now()
	conn, err := c.connect(t.Context(), "tcp", strings.Replace(server.Listener.Addr().String(), "127.0.0.1",
		"api.example.", 1))
	if err != nil {
		t.Fatalf("after %s: %v", time.Since(start), err)
	}
	conn.Close()
	if took := time.Since(start); took < 4*time.Second {
		t.Errorf("took %s: the dead nameserver was not asked first", took)
	}
}

// nameserver answers each question for an address of its family with addr, and others with none. It answers nothing if
// addr is not valid. It returns its own address.
func nameserver(t *testing.T, addr netip.Addr) string {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if !addr.IsValid() || m.Unpack(buffer[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
					Body:   &dnsmessage.AResource{A: addr.As4()},
				}}
			}
			answer, err := m.Pack()
			if err != nil {
				t.Error(err)
			}
			_, _ = conn.WriteTo(answer, from)
		}
	}()
	return conn.LocalAddr().String()
}

// pairForTest has two network namespaces with a link, and a server in one that greets.
func pairForTest(t *testing.T) (server, client *testnet.Namespace, to netip.AddrPort) {
	t.Helper()
	server, client = testnet.NamespaceForTest(t, "server"), testnet.NamespaceForTest(t, "client")
	here, there := testnet.End{NS: server, Link: "eth0"}, testnet.End{NS: client, Link: "eth0"}
	addr := netip.MustParsePrefix("192.0.2.1/24")
	if err := errors.Join(testnet.Pair(here, there), server.AddAddr("eth0", addr),
		client.AddAddr("eth0", netip.MustParsePrefix("192.0.2.2/24"))); err != nil {
		t.Fatal(err)
	}
	to = netip.AddrPortFrom(addr.Addr(), 6443)
	if _, err := server.Serve(testnet.TCP, to, "api"); err != nil {
		t.Fatal(err)
	}
	return server, client, to
}

// TestAnswers: a server that takes or refuses connections answers, one that is lost does not.
func TestAnswers(t *testing.T) {
	server, client, to := pairForTest(t)
	answers := func(at netip.AddrPort, within time.Duration) (is bool) {
		c := Connection{dialer: &dialer{server: at.String()}}
		_ = client.Do(func() error { // a literal address: no other goroutine connects
			is = c.Answers(t.Context(), within)
			return nil
		})
		return is
	}
	if !answers(to, patience) || !answers(netip.AddrPortFrom(to.Addr(), 1), patience) {
		t.Error("one that takes, or refuses, does not answer")
	}
	if _, err := server.Cut(to); err != nil {
		t.Fatal(err)
	}
	if answers(to, 100*time.Millisecond) {
		t.Error("one that is lost answers")
	}
}

// TestSilentPeer: a connection whose peer falls silent without a word ends, at rest and with a request under way, so
// that watches go on by another one. client-go's pings would take 45 s.
func TestSilentPeer(t *testing.T) {
	server, client, to := pairForTest(t)
	connect := func() (conn net.Conn) {
		err := client.Do(func() (err error) { // a literal address: no other goroutine connects
			conn, err = newConnector().connect(context.Background(), "tcp", to.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Read(make([]byte, 100)); err != nil { // the server's greeting
			t.Fatal(err)
		}
		return conn
	}
	resting, asking := connect(), connect()
	if _, err := server.Cut(to); err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	if _, err := asking.Write([]byte("list\n")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for _, conn := range []net.Conn{resting, asking} {
		go func() {
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
	}
	for range 2 {
		select {
		case err := <-ended:
			t.Logf("after %s: %v", time.Since(cut).Round(time.Millisecond), err)
			if !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(patience):
			t.Fatal("not noticed")
		}
	}
}

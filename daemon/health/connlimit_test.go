package health_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"nftproxy/daemon/health"
)

// door is a listener whose accepted connections the test holds.
type door struct {
	*testing.T
	address  string
	accepted chan net.Conn
	closed   chan net.Addr
}

func newDoor(t *testing.T, network, address string, bounds ...*health.Bound) *door {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	d := &door{t, l.Addr().String(), make(chan net.Conn, 10), make(chan net.Addr, 10)}
	limited := health.LimitConnections(l, func(a net.Addr) { d.closed <- a }, bounds...)
	go func() {
		for {
			c, err := limited.Accept()
			if err != nil {
				return
			}
			d.accepted <- c
		}
	}()
	return d
}

// enter connects from an address, and returns both ends, or no server's end if the server refused.
func (d *door) enter(from string) (client, server net.Conn) {
	d.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.DialContext(d.Context(), "tcp", d.address)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { c.Close() })
	for {
		select {
		case a := <-d.accepted:
			d.Cleanup(func() { a.Close() })
			return c, a
		case who := <-d.closed:
			if who.String() == c.LocalAddr().String() {
				wantEnd(d.T, c)
				return c, nil
			}
		}
	}
}

func wantEnd(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c); n > 0 {
		t.Errorf("a client whose connection was closed got %d bytes, %v", n, err)
	}
}

func (d *door) want(from string, admitted bool) (client, server net.Conn) {
	d.Helper()
	c, s := d.enter(from)
	if (s != nil) != admitted {
		d.Errorf("from %s: admitted %v, want %v", from, s != nil, admitted)
	}
	return c, s
}

// TestBounds: one client cannot take the places of others, and all together have a bound. A place is free
// again when its connection ends, and only once. The server's ends are really closed.
func TestBounds(t *testing.T) {
	d := newDoor(t, "tcp", "127.0.0.1:0", health.NewBound(4, 2))
	_, first := d.want("127.0.0.1", true)
	oldest, _ := d.want("127.0.0.1", true)
	d.want("127.0.0.1", false)
	d.want("127.0.0.2", true)
	for range 2 {
		_ = first.Close()
	}
	d.want("127.0.0.2", true)
	d.want("127.0.0.1", true)
	d.want("127.0.0.1", false)
	d.want("127.0.0.3", true)
	wantEnd(t, oldest)
}

// TestSharedBound: listeners have bounds of their own and one in common. What the second bound refuses has no
// place in the first, and a connection that loses its place at one listener for another's loses all its places.
func TestSharedBound(t *testing.T) {
	common := health.NewBound(3, 2)
	one := newDoor(t, "tcp", "127.0.0.1:0", health.NewBound(2, 2), common)
	two := newDoor(t, "tcp", "127.0.0.1:0", health.NewBound(2, 1), common)
	lost, _ := one.want("127.0.0.1", true)
	two.want("127.0.0.1", true)
	one.want("127.0.0.1", false)
	one.want("127.0.0.2", true)
	two.want("127.0.0.3", true)
	wantEnd(t, lost)
	if got := (<-one.closed).String(); got != lost.LocalAddr().String() {
		t.Errorf("the first listener heard of %s, want %s", got, lost.LocalAddr())
	}
	if n := len(two.closed); n > 0 {
		t.Errorf("the second listener heard of %d connections that were not its own", n)
	}
	one.want("127.0.0.4", true) // It takes the place of the oldest of three that have one each.
	if n := len(two.closed); n != 1 {
		t.Errorf("the second listener lost %d connections, want 1", n)
	}
}

// TestClients: what counts as one client.
func TestClients(t *testing.T) {
	for _, c := range []struct {
		one, other string
		same       bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8::1", "2001:db8::2:0:0:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1%eth0", "fe80::1%eth1", true},
	} {
		l := health.LimitConnections(&replay{[]string{c.one, c.other}}, func(net.Addr) {}, health.NewBound(9, 1))
		for i := range 2 {
			_, err := l.Accept()
			if refused := err != nil; refused != (i == 1 && c.same) {
				t.Errorf("%s and %s: connection %d refused: %v", c.one, c.other, i, refused)
			}
		}
	}
}

// replay is a listener with connections from a list of addresses.
type replay struct{ from []string }

func (r *replay) Accept() (net.Conn, error) {
	if len(r.from) == 0 {
		return nil, fmt.Errorf("no more")
	}
	a, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(r.from[0], "1"))
	r.from = r.from[1:]
	return from{addr: a}, err
}
func (r *replay) Close() error   { return nil }
func (r *replay) Addr() net.Addr { return nil }

type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }
func (f from) Close() error         { return nil }

// Package connlimit promises a listener with a bounded number of connections at once: of all clients together,
// and of each. A client that opens more loses the new one at once, so the others find room.
//
// It limits neither rates nor how long a connection lasts: that is for the time-outs of the server.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
)

// Bound counts open connections. Several listeners may share one.
type Bound struct {
	all, client int

	mu      sync.Mutex
	open    int
	clients map[netip.Prefix]int
}

// New makes a bound for all clients and for each. A client is an address of IPv4, or the 64 bits of an address
// of IPv6 that one machine may have all to itself.
func New(all, client int) *Bound {
	return &Bound{all: all, client: client, clients: map[netip.Prefix]int{}}
}

func (b *Bound) take(client netip.Prefix) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open >= b.all || b.clients[client] >= b.client {
		return false
	}
	b.open++
	b.clients[client]++
	return true
}

func (b *Bound) give(client netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	if b.clients[client]--; b.clients[client] == 0 {
		delete(b.clients, client)
	}
}

// Listen returns a listener that accepts what all bounds admit. It calls refused for each other connection, after
// its end.
func Listen(l net.Listener, refused func(client net.Addr), bounds ...*Bound) net.Listener {
	return &listener{l, refused, bounds}
}

type listener struct {
	net.Listener
	refused func(net.Addr)
	bounds  []*Bound
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(c.RemoteAddr())
		if give := l.take(client); give != nil {
			return &conn{Conn: c, give: sync.OnceFunc(give)}, nil
		}
		_ = c.Close() // It has no data.
		l.refused(c.RemoteAddr())
	}
}

// take returns the function that ends the claim on all bounds, or nil if one of them is reached.
func (l *listener) take(client netip.Prefix) (give func()) {
	for i, b := range l.bounds {
		if !b.take(client) {
			for _, taken := range l.bounds[:i] {
				taken.give(client)
			}
			return nil
		}
	}
	return func() {
		for _, b := range l.bounds {
			b.give(client)
		}
	}
}

// clientOf is the client that an address belongs to. All that are not of TCP count as one.
func clientOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	const shared = 64
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = shared
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}

// conn gives its place back when it is closed, however often that is.
type conn struct {
	net.Conn
	give func()
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.give()
	return err
}

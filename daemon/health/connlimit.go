package health

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
)

// LimitConnections returns a listener that accepts what all bounds admit. A connection beyond a bound closes another
// one: of the client that has most, the one that waits longest for a request, or else that had its last request longest
// ago. A client that has most itself, or as many as it may, loses one of its own that waits for a request. If none
// does, the new connection is closed.
//
// closed is called for each connection of the listener that a bound ended, after its end. Listeners that share
// several bounds must have them in the same order.
//
// It limits neither rates nor how long a connection lasts: that is for the time-outs of the server. Clients that
// are as many as the places may take turns.
func LimitConnections(l net.Listener, closed func(client net.Addr), bounds ...*Bound) net.Listener {
	return &listener{l, closed, bounds}
}

// ConnState tells the bounds which connections wait for a request. It is for the field ConnState of a http.Server that
// serves the listener.
func ConnState(c net.Conn, s http.ConnState) {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	limited, ok := c.(*conn)
	if !ok || s != http.StateActive && s != http.StateIdle {
		return
	}
	state := busy
	if s == http.StateIdle {
		state = idle
	}
	for _, p := range limited.places {
		p.bound.move(p, state)
	}
}

type listener struct {
	net.Listener
	closed func(net.Addr)
	bounds []*Bound
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, listener: l, client: clientOf(accepted.RemoteAddr())}
		leaving, admitted := l.admit(c)
		if !admitted {
			leaving = []*conn{c}
		}
		for _, v := range leaving {
			_ = v.Close() // Nobody needs its data.
			if v.reported.CompareAndSwap(false, true) {
				v.listener.closed(v.RemoteAddr())
			}
		}
		if admitted {
			return c, nil
		}
	}
}

// admit gives a connection a place in all bounds or in none. Others lose theirs for it, and are to be closed.
func (l *listener) admit(c *conn) (leaving []*conn, admitted bool) {
	// No bound may change before all have agreed: nobody loses a place for a connection that is refused.
	for _, b := range l.bounds {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	for _, b := range l.bounds {
		v, ok := b.room(c.client, leaving)
		if !ok {
			return nil, false
		}
		if v != nil {
			leaving = append(leaving, v)
		}
	}
	for _, v := range leaving {
		for _, p := range v.places {
			// The lock of a bound of another listener is not held. Close gives that place back.
			// Another listener may have taken this one, and be about to close the connection.
			if slices.Contains(l.bounds, p.bound) && p.key != "" {
				p.bound.remove(p)
			}
		}
	}
	for _, b := range l.bounds {
		c.places = append(c.places, b.add(c))
	}
	return leaving, true
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

// conn gives its places back when it is closed, however often that is.
type conn struct {
	net.Conn
	listener *listener
	client   netip.Prefix
	places   []*place // constant once admitted
	reported atomic.Bool
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	for _, p := range c.places {
		p.bound.give(p)
	}
	return err
}

package listen

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// bufferSize is the size of a TCP socket's buffers, which the kernel doubles for its own records. It bounds what a slow
// reader makes the kernel keep for it.
const bufferSize = 64 << 10

// LocalCounts are what LocalPorts have, and what they did since the start.
type LocalCounts struct {
	// Listeners are open. Failures counts attempts to listen that failed. Both are for each family.
	Listeners, Failures ip.PerFamily[int]
	// Connections (TCP) and Sessions (UDP) are open. Refused counts the connections that were one too many, Closed the
	// sessions that were closed for another one.
	Connections, Sessions, Refused, Closed int
}

// LocalPorts has a listener for each node port of the loopback addresses.
type LocalPorts struct {
	*listeners[service.Name]
	indexes  ip.PerFamily[*localIndex]
	sessions *sessions
	buffers  sync.Pool // of *buffer
	leftOut  int       // when Run last looked

	// The mutex of listeners is for these, too.
	counts      LocalCounts
	connections map[address]int // TCP
}

// NewLocalPorts makes local ports without listeners.
func NewLocalPorts(c Config) *LocalPorts {
	v4, v6 := newLocalIndex(c.NodePortAddresses, ip.V4), newLocalIndex(c.NodePortAddresses, ip.V6)
	s := &LocalPorts{
		indexes: ip.PerFamily[*localIndex]{v4, v6}, connections: map[address]int{},
		sessions: &sessions{log: c.Log, all: map[sessionKey]*session{}, of: map[address]int{}},
		buffers:  sync.Pool{New: func() any { return new(buffer) }},
	}
	s.listeners = newListeners(c, kind[service.Name]{
		families: ip.PerFamily[follower[service.Name]]{v4, v6},
		open:     s.open,
		opened:   "serving a node port on localhost",
		failed:   "cannot serve a node port on localhost, trying again; whatever process has the port serves its clients",
		about: func(at address, name service.Name) []any {
			return []any{"service", name, "address", at.at, "protocol", at.protocol.String()}
		},
		eager: true,
	})
	observe := s.config.Observe
	s.config.Observe = func(open, failed int) {
		s.logLeftOut()
		observe(open, failed)
	}
	return s
}

// Counts returns the present counts.
func (s *LocalPorts) Counts() LocalCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.Sessions, c.Closed = s.sessions.counts()
	return c
}

func (s *LocalPorts) count(change func(*LocalCounts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.counts)
}

// logLeftOut logs that more node ports than before have no listener.
func (s *LocalPorts) logLeftOut() {
	s.mu.Lock()
	leftOut := s.indexes[0].leftOut + s.indexes[1].leftOut
	s.mu.Unlock()
	if leftOut > s.leftOut {
		s.config.Log.Warn("the node ports of the youngest Services are not served on localhost: there are too many",
			"left_out", leftOut, "most_of_a_family", maxListeners)
	}
	s.leftOut = leftOut
}

// localPort is what the listeners of both protocols have.
type localPort struct {
	server *LocalPorts
	at     address
}

// set does nothing: the rules choose the endpoints, by the port alone.
func (*localPort) set(service.Name) {}

func (s *LocalPorts) open(ctx context.Context, at address, _ service.Name) (l listener[service.Name], err error) {
	if at.protocol == service.UDP {
		l, err = s.listenUDP(ctx, at)
	} else {
		l, err = s.listenTCP(ctx, at)
	}
	family := ip.Of(at.at.Addr())
	s.count(func(c *LocalCounts) {
		if err != nil {
			*c.Failures.Of(family)++
		} else {
			*c.Listeners.Of(family)++
		}
	})
	return l, err
}

func (p *localPort) stopped() {
	p.server.count(func(c *LocalCounts) { *c.Listeners.Of(ip.Of(p.at.at.Addr()))-- })
}

// from is the address to connect from for a client of the listener.
func (s *LocalPorts) from(at netip.AddrPort) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := (*s.indexes.Of(ip.Of(at.Addr()))).from; a.IsValid() {
		return netip.AddrPortFrom(a, 0), nil
	}
	return netip.AddrPort{}, errors.New("the node has no address to connect from")
}

// stranger says that a listener's client is not on loopback. It is this process itself, whose connection the rules
// should have translated, or it would also have been translated.
func (s *LocalPorts) stranger(at address, client netip.AddrPort) bool {
	if client.Addr().Unmap().IsLoopback() {
		return false
	}
	s.config.Log.Warn("closed a connection to a node port on localhost that did not come from there: the rules have not "+
		"translated it", "address", at.at, "client", client)
	return true
}

// bounded sets the sizes of a socket's buffers.
func bounded() []option {
	return []option{{unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize}, {unix.SOL_SOCKET, unix.SO_SNDBUF, bufferSize}}
}

// portless is bounded, and has the kernel choose the port when the socket connects: a port can then serve several
// connections to different node ports, and one that ended a moment ago is not in the way.
func portless() []option {
	return append(bounded(), option{unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1})
}

package localport

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// retryPeriod is the time after which the Server tries again to listen where another process does. It also tries again
// after each change.
const retryPeriod = 5 * time.Second

// bufferSize is the size of a TCP socket's buffers, which the kernel doubles for its own records. It bounds what a slow
// reader makes the kernel keep for it.
const bufferSize = 64 << 10

// Config says where to listen.
type Config struct {
	// NodePortAddresses says whether to listen on loopback.
	NodePortAddresses service.NodePortAddresses
	// Observe is called after each change of the listeners. It may be nil.
	Observe func(Counts)
	// Within runs a function that opens a socket, for example in another network namespace. Nil means to run it directly.
	Within func(func() error) error
	Log    *slog.Logger
}

// Counts are what the Server has, and what it did since the start.
type Counts struct {
	// Listeners are open. Failures counts attempts to listen that failed. Both are for each family.
	Listeners, Failures ip.PerFamily[int]
	// Connections (TCP) and Sessions (UDP) are open. Refused counts the connections that were one too many, Closed the
	// sessions that were closed for another one.
	Connections, Sessions, Refused, Closed int
}

// listener is a socket that serves a node port.
type listener interface {
	// stop frees the address before it returns.
	stop()
}

// address is where a listener listens.
type address struct {
	protocol service.Protocol
	at       netip.AddrPort
}

func (a address) compare(b address) int {
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.protocol, b.protocol))
}

// Server has a listener for each node port of the loopback addresses. A listener stays as long as any Service wants it.
type Server struct {
	config Config

	// Only Run uses these. failed has the wanted addresses that are not open, with the reason.
	listeners map[address]listener
	failed    map[address]string
	leftOut   int
	tasks     sync.WaitGroup

	wake     chan struct{} // holds one token while Run does not know of a wish that has changed
	sessions *sessions
	buffers  sync.Pool // of *buffer

	mu       sync.Mutex
	families ip.PerFamily[*index]
	counts   Counts
	open     map[address]int // TCP connections
}

// New makes a server without listeners.
func New(c Config) *Server {
	if c.Observe == nil {
		c.Observe = func(Counts) {}
	}
	if c.Within == nil {
		c.Within = func(open func() error) error { return open() }
	}
	s := &Server{
		config: c, listeners: map[address]listener{}, failed: map[address]string{}, wake: make(chan struct{}, 1),
		sessions: newSessions(c.Log), open: map[address]int{},
		buffers: sync.Pool{New: func() any { return new(buffer) }},
	}
	for _, f := range ip.Families() {
		*s.families.Of(f) = newIndex(c.NodePortAddresses, f)
	}
	return s
}

// Notify takes note of a sync. The listeners of a family follow only a snapshot that is in force there. Notify never
// blocks; of several syncs the latest counts.
func (s *Server) Notify(latest proxy.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for _, f := range ip.Families() {
		if latest.InForce(f) && (*s.families.Of(f)).update(latest.Snapshot, latest.Quarantined) {
			changed = true
		}
	}
	if changed {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// Counts returns the present counts.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.Sessions, c.Closed = s.sessions.counts()
	return c
}

// Run listens and serves until the context ends, closes all connections, and returns nil.
func (s *Server) Run(ctx context.Context) error {
	retry := time.NewTicker(retryPeriod)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			s.follow(ctx, map[address]service.Name{})
			s.tasks.Wait()
			return nil
		case <-s.wake:
		case <-retry.C:
			if len(s.failed) == 0 {
				continue
			}
		}
		s.follow(ctx, s.wanted())
		s.config.Observe(s.Counts())
	}
}

// wanted returns the addresses to listen on, with their Services.
func (s *Server) wanted() map[address]service.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted, leftOut := map[address]service.Name{}, 0
	for _, x := range s.families {
		for p, name := range x.wish.ports {
			wanted[address{p.protocol, netip.AddrPortFrom(x.wish.at, p.number)}] = name
		}
		leftOut += x.wish.leftOut
	}
	if leftOut > s.leftOut {
		s.config.Log.Warn("the node ports of the youngest Services are not served on localhost: there are too many", "left_out", leftOut, "most_of_a_family", maxListeners)
	}
	s.leftOut = leftOut
	return wanted
}

// follow closes the listeners that are not wanted, and opens those that are missing.
func (s *Server) follow(ctx context.Context, wanted map[address]service.Name) {
	for at, l := range s.listeners {
		if _, ok := wanted[at]; !ok {
			delete(s.listeners, at)
			l.stop()
			s.count(func(c *Counts) { *c.Listeners.Of(ip.Of(at.at.Addr()))-- })
		}
	}
	maps.DeleteFunc(s.failed, func(at address, _ string) bool {
		_, ok := wanted[at]
		return !ok
	})
	// In order, so that equal failures give equal logs.
	for _, at := range slices.SortedFunc(maps.Keys(wanted), address.compare) {
		if s.listeners[at] == nil {
			s.add(ctx, at, wanted[at])
		}
	}
}

// add opens a listener.
func (s *Server) add(ctx context.Context, at address, name service.Name) {
	family := ip.Of(at.at.Addr())
	var l listener
	err := s.config.Within(func() (err error) {
		if at.protocol == service.UDP {
			l, err = s.listenUDP(ctx, at)
		} else {
			l, err = s.listenTCP(ctx, at)
		}
		return err
	})
	log := s.config.Log.With("service", name, "address", at.at, "protocol", at.protocol.String())
	before, failed := s.failed[at]
	if err != nil {
		s.count(func(c *Counts) { *c.Failures.Of(family)++ })
		if s.failed[at] = err.Error(); before != err.Error() {
			log.Warn("cannot serve a node port on localhost, trying again; whatever process has the port serves its clients", "retry", retryPeriod, "err", err)
		}
		return
	}
	delete(s.failed, at)
	level := slog.LevelDebug
	if failed {
		level = slog.LevelInfo // The log has a warning that it did not listen.
	}
	log.Log(ctx, level, "serving a node port on localhost")
	s.listeners[at] = l
	s.count(func(c *Counts) { *c.Listeners.Of(family)++ })
}

func (s *Server) count(change func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.counts)
}

// from is the address to connect from for a client of the listener.
func (s *Server) from(at netip.AddrPort) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := (*s.families.Of(ip.Of(at.Addr()))).wish.from; a.IsValid() {
		return netip.AddrPortFrom(a, 0), nil
	}
	return netip.AddrPort{}, errors.New("the node has no address to connect from")
}

// stranger says that a listener's client is not on loopback. It is this process itself, whose connection the rules should
// have translated, or it would also have been translated.
func (s *Server) stranger(at address, client netip.AddrPort) bool {
	if client.Addr().Unmap().IsLoopback() {
		return false
	}
	s.config.Log.Warn("closed a connection to a node port on localhost that did not come from there: the rules have not translated it", "address", at.at, "client", client)
	return true
}

// bounded sets the sizes of a socket's buffers.
func bounded(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, bufferSize))
	})
	return errors.Join(err, failed)
}

// portless is bounded, and has the kernel choose the port when the socket connects: a port can then serve several
// connections to different node ports, and one that ended a moment ago is not in the way.
func portless(network, to string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
	return errors.Join(err, failed, bounded(network, to, c))
}

package listen

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
)

const (
	// maxSessions is how many sessions all listeners have at once, and maxSessionsOfPort how many of them one has. One
	// more closes another one: that of the port with the most that is idle for longest.
	maxSessions, maxSessionsOfPort = 1024, 256
	// unansweredFor and answeredFor are how long a session may be idle, before and after its first answer: the kernel's
	// defaults for its own (nf_conntrack_udp_timeout, nf_conntrack_udp_timeout_stream).
	unansweredFor, answeredFor = 30 * time.Second, 2 * time.Minute
	// maxDatagram is the length of the longest datagram.
	maxDatagram = 1<<16 - 1
)

type udpPort struct {
	localPort
	socket socket
}

func (s *LocalPorts) listenUDP(ctx context.Context, at address) (listener[service.Name], error) {
	c, err := new(net.ListenConfig).ListenPacket(ctx, "udp", at.at.String())
	if err != nil {
		return nil, err
	}
	p := &udpPort{localPort: localPort{s, at}}
	if p.socket, err = s.newSocket(c.(*net.UDPConn)); err != nil {
		return nil, err
	}
	s.tasks.Go(func() {
		// It ends when the socket is closed.
		_ = p.socket.receive(func(datagram []byte, client netip.AddrPort) { p.take(ctx, datagram, client) })
	})
	return p, nil
}

// stop closes the sessions too: none has an endpoint any more.
func (p *udpPort) stop() {
	_ = p.socket.Close()
	p.server.sessions.closeAll(p.at)
	p.stopped()
}

// take sends a client's datagram on.
func (p *udpPort) take(ctx context.Context, datagram []byte, client netip.AddrPort) {
	if p.server.stranger(p.at, client) {
		return
	}
	v := p.server.sessions.get(sessionKey{p.at, client})
	if v == nil {
		var err error
		if v, err = p.begin(ctx, client); err != nil {
			p.server.config.Log.Debug("cannot begin a session of a node port on localhost", "address", p.at.at, "err", err)
			return
		}
	}
	v.touch()
	if v.socket.send(datagram, netip.AddrPort{}) != nil {
		p.server.sessions.close(v) // such as when the node has lost the address; the next datagram begins another one
	}
}

// begin begins the session of a client, and sends answers back to it.
func (p *udpPort) begin(ctx context.Context, client netip.AddrPort) (*session, error) {
	from, err := p.server.from(p.at.at)
	if err != nil {
		return nil, err
	}
	v := &session{key: sessionKey{p.at, client}}
	err = p.server.config.Within(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(p.at.at))
		if err != nil {
			return err
		}
		v.socket, err = p.server.newSocket(c)
		return err
	})
	if err != nil {
		return nil, err
	}
	v.touch()
	p.server.sessions.add(v)
	p.server.tasks.Go(func() {
		defer p.server.sessions.close(v)
		defer context.AfterFunc(ctx, func() { p.server.sessions.close(v) })()
		v.answer(p.socket)
	})
	return v, nil
}

// sessionKey is a client of a listener.
type sessionKey struct {
	address
	client netip.AddrPort
}

// session is one client's socket to its endpoint.
type session struct {
	key      sessionKey
	socket   socket
	last     atomic.Int64 // when the last datagram came, in nanoseconds since 1970
	answered atomic.Bool
}

func (v *session) touch() { v.last.Store(time.Now().UnixNano()) }

// expiry is when the session ends if no datagram comes.
func (v *session) expiry() time.Time {
	limit := unansweredFor
	if v.answered.Load() {
		limit = answeredFor
	}
	return time.Unix(0, v.last.Load()).Add(limit)
}

// answer sends what the endpoint answers to the client until the session is closed or idle for too long.
func (v *session) answer(to socket) {
	for {
		expiry := v.expiry()
		if !expiry.After(time.Now()) || v.socket.SetReadDeadline(expiry) != nil {
			return
		}
		err := v.socket.receive(func(datagram []byte, _ netip.AddrPort) {
			v.touch()
			v.answered.Store(true)
			_ = to.send(datagram, v.key.client) // What does not go out is lost, as with any datagram.
		})
		if err != nil && !isTimeout(err) {
			return
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// sessions has the sessions of all listeners. Sockets are closed without the lock: closing waits for what is taken from
// the socket at that moment.
type sessions struct {
	log *slog.Logger

	mu     sync.Mutex
	all    map[sessionKey]*session
	of     map[address]int
	closed int // for another session
}

func (s *sessions) counts() (open, closed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all), s.closed
}

func (s *sessions) get(k sessionKey) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[k]
}

// add adds a session, and closes another one if there is no room.
func (s *sessions) add(v *session) {
	leaves := s.exchange(v)
	if leaves == nil {
		return
	}
	_ = leaves.socket.Close()
	s.log.Warn("closed a session of a node port on localhost: too many are open", "address", leaves.key.at,
		"client", leaves.key.client, "most", maxSessions, "most_of_a_port", maxSessionsOfPort)
}

// exchange adds a session, and removes and returns the one that has to leave for it, or nil.
func (s *sessions) exchange(v *session) (leaves *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := v.key.address
	if s.of[full] < maxSessionsOfPort {
		for at, n := range s.of {
			if n > s.of[full] {
				full = at
			}
		}
	}
	if s.of[v.key.address] >= maxSessionsOfPort || len(s.all) >= maxSessions {
		for k, o := range s.all {
			if k.address == full && (leaves == nil || o.last.Load() < leaves.last.Load()) {
				leaves = o
			}
		}
		s.remove(leaves)
		s.closed++
	}
	s.all[v.key] = v
	s.of[v.key.address]++
	return leaves
}

// close closes a session, once.
func (s *sessions) close(v *session) {
	s.mu.Lock()
	s.remove(v)
	s.mu.Unlock()
	_ = v.socket.Close()
}

func (s *sessions) remove(v *session) {
	if s.all[v.key] != v {
		return
	}
	delete(s.all, v.key)
	if s.of[v.key.address]--; s.of[v.key.address] == 0 {
		delete(s.of, v.key.address)
	}
}

func (s *sessions) closeAll(at address) {
	var removed []*session
	s.mu.Lock()
	for k, v := range s.all {
		if k.address == at {
			s.remove(v)
			removed = append(removed, v)
		}
	}
	s.mu.Unlock()
	for _, v := range removed {
		_ = v.socket.Close()
	}
}

// socket sends and receives without waiting with a datagram in hand: an idle socket has no buffer in this process.
type socket struct {
	*net.UDPConn
	raw     syscall.RawConn
	buffers *sync.Pool // of *buffer
}

func (s *LocalPorts) newSocket(c *net.UDPConn) (socket, error) {
	raw, err := c.SyscallConn()
	return socket{c, raw, &s.buffers}, err
}

type buffer [maxDatagram]byte

// receive waits for datagrams and hands on each until an error ends it, such as that the socket is closed. A datagram
// that a peer refused is no error.
func (s socket) receive(take func(datagram []byte, from netip.AddrPort)) error {
	for {
		if err := s.receiveOne(take); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
	}
}

// receiveOne hands on one datagram, and no more even where more wait: Close waits for it, whatever comes in.
func (s socket) receiveOne(take func(datagram []byte, from netip.AddrPort)) error {
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		b := s.buffers.Get().(*buffer)
		defer s.buffers.Put(b)
		n, from, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if failed = err; err == nil {
			take(b[:n], addrPort(from))
		}
		return true
	})
	return errors.Join(err, failed)
}

// send sends a datagram to an address, or to the one that the socket is connected to. A full buffer loses it. The
// kernel reports at the next sending that a peer has refused an earlier datagram.
func (s socket) send(datagram []byte, to netip.AddrPort) error {
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		for range 2 {
			failed = unix.Sendto(int(fd), datagram, unix.MSG_DONTWAIT, sockaddr(to))
			if !errors.Is(failed, unix.ECONNREFUSED) {
				break
			}
		}
		return true
	})
	if errors.Is(failed, unix.EAGAIN) || errors.Is(failed, unix.ENOBUFS) || errors.Is(failed, unix.ECONNREFUSED) ||
		errors.Is(failed, unix.EPERM) {
		failed = nil
	}
	return errors.Join(err, failed)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	switch {
	case !a.IsValid():
		return nil
	case a.Addr().Is4():
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

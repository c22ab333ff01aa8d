package testnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
)

// Protocols of servers and questions; the kernel itself answers ICMP.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp"
	ICMP = "icmp"
)

// Server answers every TCP connection, UDP datagram or SCTP INIT with its id
// and the peer address it saw.
type Server struct {
	ns       *Namespace
	id       string
	addr     netip.AddrPort
	socket   io.Closer // listens
	answered atomic.Uint64
	loops    sync.WaitGroup

	mu    sync.Mutex
	done  bool // Close was called
	conns map[net.Conn]struct{}
	err   error // why serving ended, unless by Close
}

// Serve starts a server on address in the namespace. Port 0 picks one, except
// for SCTP. The id has no spaces.
//
// TCP: one line "id peer" as soon as the connection is accepted; then the
// connection echoes until either side closes it. UDP: one such line for each
// datagram. SCTP: an INIT ACK with such a line as its state cookie. UDP and
// SCTP servers on an unspecified address may answer from another address than
// was asked.
func (ns *Namespace) Serve(proto string, address netip.AddrPort, id string) (*Server, error) {
	if id == "" || strings.ContainsAny(id, " \n") {
		return nil, fmt.Errorf("serve %s on %v in %s: id %q is not one word", proto, address, ns, id)
	}
	s := &Server{ns: ns, id: id, addr: address, conns: map[net.Conn]struct{}{}}
	loop, err := s.listen(proto)
	if err != nil {
		return nil, fmt.Errorf("serve %s on %v in %s: %w", proto, address, ns, err)
	}
	s.loops.Go(func() {
		err := loop()
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.done {
			s.err = fmt.Errorf("serve %s on %v in %s: %w", proto, s.addr, ns, err)
		}
	})
	ns.own(s)
	return s, nil
}

// listen opens the server's socket and returns the loop that serves it until
// it is closed.
func (s *Server) listen(proto string) (loop func() error, err error) {
	ctx := context.Background() // listening does not wait
	switch proto {
	case TCP:
		l, err := s.ns.Listen(ctx, "tcp", s.addr.String())
		if err != nil {
			return nil, err
		}
		s.socket, s.addr = l, addrPort(l.Addr())
		return func() error { return s.serveTCP(l) }, nil
	case UDP:
		c, err := s.ns.ListenPacket(ctx, "udp", s.addr.String())
		if err != nil {
			return nil, err
		}
		s.socket, s.addr = c, addrPort(c.LocalAddr())
		return func() error { return s.serveUDP(c) }, nil
	case SCTP:
		if s.addr.Port() == 0 {
			return nil, errors.New("SCTP needs a port")
		}
		r, err := s.ns.receiveSCTP(s.addr)
		if err != nil {
			return nil, err
		}
		s.socket = r
		return func() error { return s.serveSCTP(r) }, nil
	}
	return nil, fmt.Errorf("protocol %q is not one of %s, %s, %s", proto, TCP, UDP, SCTP)
}

func (s *Server) serveTCP(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.done {
			s.mu.Unlock()
			return conn.Close()
		}
		s.conns[conn] = struct{}{}
		s.loops.Go(func() { s.echo(conn) })
		s.mu.Unlock()
	}
}

// echo serves one connection. What goes wrong with it is the client's to see.
func (s *Server) echo(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
	}()
	s.answered.Add(1)
	if _, err := io.WriteString(conn, s.line(addrPort(conn.RemoteAddr()))); err != nil {
		return
	}
	// Hidden, the connection's ReadFrom does not take a pipe for each connection.
	_, _ = io.Copy(struct{ io.Writer }{conn}, conn)
}

func (s *Server) serveUDP(c net.PacketConn) error {
	buf := make([]byte, 65536)
	for {
		_, peer, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		s.answered.Add(1)
		// A datagram that cannot be sent is lost, as others may be.
		_, _ = c.WriteTo([]byte(s.line(addrPort(peer))), peer)
	}
}

func (s *Server) serveSCTP(r *SCTPReceiver) error {
	for {
		init, err := r.Next(context.Background())
		if err != nil {
			return err
		}
		s.answered.Add(1)
		_ = r.reply(init, s.line(init.From)) // as for UDP
	}
}

func (s *Server) line(peer netip.AddrPort) string { return fmt.Sprintf("%s %v\n", s.id, peer) }

// ParseAnswer reads the line that a server sends: its id and the peer it saw.
func ParseAnswer(line string) (id string, peer netip.AddrPort, err error) {
	id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	peer, err = netip.ParseAddrPort(rest)
	if err != nil {
		return "", netip.AddrPort{}, fmt.Errorf("answer %q is not an id and a peer: %w", line, err)
	}
	return id, peer, nil
}

// ID returns the id given to Serve.
func (s *Server) ID() string { return s.id }

// Addr returns the address that the server listens on.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Answered returns how many connections, datagrams or INITs were answered.
func (s *Server) Answered() uint64 { return s.answered.Load() }

// Close stops the server, closes its connections and waits until it has ended.
// The error is also what made it end before, if anything.
func (s *Server) Close() error {
	s.ns.disown(s)
	s.mu.Lock()
	again := s.done
	s.done = true
	var errs []error
	if !again {
		errs = append(errs, s.err, s.socket.Close())
		for conn := range s.conns {
			_ = conn.Close() // the client may have reset it
		}
	}
	s.mu.Unlock()
	s.loops.Wait()
	return errors.Join(errs...)
}

// addrPort converts an address of the net package; IPv4 in IPv6 becomes IPv4.
func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	case *net.IPAddr:
		ip, _ := netip.AddrFromSlice(a.IP)
		ap = netip.AddrPortFrom(ip.WithZone(a.Zone), 0)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

package listen

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"nftproxy/model/service"
)

const (
	// maxConnections is how many connections all listeners have at once, and maxOfPort how many of them one has: so no
	// Service's clients keep those of all others out. A connection takes two sockets, two goroutines and up to four
	// descriptors of pipes.
	maxConnections, maxOfPort = 1024, 256
	// dialTimeout is how long an endpoint may take to accept a connection.
	dialTimeout = 30 * time.Second
	// acceptPause is the time between two attempts to accept a connection, if the process has no descriptor for one.
	acceptPause = time.Second
)

type tcpPort struct {
	localPort
	listener *net.TCPListener
}

func (s *LocalPorts) listenTCP(ctx context.Context, at address) (listener[service.Name], error) {
	config := net.ListenConfig{Control: setOptions(bounded()...)}
	config.SetMultipathTCP(false) // The copying in the kernel needs plain TCP.
	l, err := config.Listen(ctx, "tcp", at.at.String())
	if err != nil {
		return nil, err
	}
	p := &tcpPort{localPort{s, at}, l.(*net.TCPListener)}
	s.tasks.Go(func() { p.accept(ctx) })
	return p, nil
}

// stop leaves the connections alone: those to endpoints go on elsewhere too when their Service is gone.
func (p *tcpPort) stop() {
	_ = p.listener.Close()
	p.stopped()
}

func (p *tcpPort) accept(ctx context.Context) {
	for {
		c, err := p.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			p.server.config.Log.Warn("cannot accept a connection to a node port on localhost, trying again", "address", p.at.at,
				"err", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		case p.server.stranger(p.at, c.RemoteAddr().(*net.TCPAddr).AddrPort()):
			reset(c)
		case !p.server.admit(p.at):
			reset(c)
			p.server.config.Log.Warn("closed a connection to a node port on localhost: too many are open", "address", p.at.at,
				"most", maxConnections, "most_of_a_port", maxOfPort)
		default:
			p.server.tasks.Go(func() {
				defer p.server.leave(p.at)
				p.serve(ctx, c)
			})
		}
	}
}

// admit counts a connection if there is room for it.
func (s *LocalPorts) admit(at address) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts.Connections == maxConnections || s.connections[at] == maxOfPort {
		s.counts.Refused++
		return false
	}
	s.counts.Connections++
	s.connections[at]++
	return true
}

func (s *LocalPorts) leave(at address) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Connections--
	if s.connections[at]--; s.connections[at] == 0 {
		delete(s.connections, at)
	}
}

// serve connects a client and copies both ways until both have ended. A client whose connection fails sees a reset, and
// so does an endpoint: neither takes what came so far for all.
func (p *tcpPort) serve(ctx context.Context, client *net.TCPConn) {
	endpoint, err := p.dial(ctx)
	if err != nil {
		p.server.config.Log.Debug("cannot connect a client of a node port on localhost", "address", p.at.at, "err", err)
		reset(client)
		return
	}
	stop := context.AfterFunc(ctx, func() { reset(client, endpoint) })
	defer stop()
	// Whichever way fails ends the other one at once: that may wait for a peer that has nothing more to say.
	copyAll := func(to, from *net.TCPConn) {
		if stream(to, from) != nil {
			reset(client, endpoint)
		}
	}
	ended := make(chan struct{})
	go func() { copyAll(endpoint, client); close(ended) }()
	copyAll(client, endpoint)
	<-ended
	_, _ = client.Close(), endpoint.Close()
}

// dial connects to the node port as the node's rules have it.
func (p *tcpPort) dial(ctx context.Context) (conn *net.TCPConn, err error) {
	from, err := p.server.from(p.at.at)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: dialTimeout, Control: setOptions(portless()...)}
	err = p.server.config.Within(func() error {
		c, err := d.DialContext(ctx, "tcp", p.at.at.String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

// stream copies what one end sends, and its end, to the other. The kernel does so without a copy in this process
// (splice).
func stream(to, from *net.TCPConn) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.CloseWrite()
}

// reset closes connections so that their peers see a reset.
func reset(conns ...*net.TCPConn) {
	for _, c := range conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

package ipvs

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// endpoint is a server that knows how many connections it has open. A client says first how long it is to take; it
// answers after that time, and the client closes the connection.
type endpoint struct {
	manner manner
	// found is closed at the first connection.
	found   chan struct{}
	once    sync.Once
	ctx     context.Context // ends with the endpoint
	end     func()
	open    atomic.Int64
	running sync.WaitGroup
}

// startEndpoint starts one at an address.
func startEndpoint(ctx context.Context, ns *testnet.Namespace, at netip.AddrPort, m manner) (*endpoint, error) {
	e := &endpoint{manner: m, found: make(chan struct{})}
	e.ctx, e.end = context.WithCancel(ctx)
	if m == refuses {
		return e, nil
	}
	listener, err := ns.Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	context.AfterFunc(e.ctx, func() { _ = listener.Close() }) // so that accept ends
	e.running.Go(func() { e.accept(listener) })
	return e, nil
}

// close ends the endpoint with all its connections.
func (e *endpoint) close() {
	e.end()
	e.running.Wait()
}

func (e *endpoint) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed
		}
		e.once.Do(func() { close(e.found) })
		if e.manner == resets {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
			continue
		}
		e.open.Add(1)
		e.running.Go(func() {
			defer e.open.Add(-1)
			defer conn.Close()
			e.serve(conn)
		})
	}
}

// serve serves one connection. What goes wrong with it is the client's to see.
func (e *endpoint) serve(conn net.Conn) {
	defer context.AfterFunc(e.ctx, func() { _ = conn.Close() })()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	hold, err := time.ParseDuration(strings.TrimSpace(line))
	if err != nil {
		return
	}
	if e.manner == isBusy {
		hold *= busyFactor
	}
	select {
	case <-time.After(hold):
	case <-e.ctx.Done():
		return
	}
	if _, err := io.WriteString(conn, answered); err == nil {
		_, _ = io.Copy(io.Discard, conn) // until the client closes it
	}
}

const answered = "done\n"

// fate is how a connection ended.
type fate int

const (
	served fate = iota
	refused
	ended // by its server, without an answer
)

// load is the clients of one Service.
type load struct {
	situation
	sockets
	sources []netip.Addr
	to      netip.AddrPort
	// changing is closed when the rollout begins.
	changing chan struct{}

	running sync.WaitGroup
	fates   [3]atomic.Int64 // of the first tries, until the rollout
	again   atomic.Int64    // tries after the server went away
	late    time.Duration   // the most that a connection came too late

	mu     sync.Mutex
	errors []error // the first ones
}

// run opens the connections of the schedule when they are due.
func (l *load) run(ctx context.Context, start time.Time, schedule []arrival) {
	for _, a := range schedule {
		select {
		case <-time.After(time.Until(start.Add(a.at))):
		case <-ctx.Done():
			return
		}
		l.late = max(l.late, time.Since(start.Add(a.at)))
		l.running.Go(func() { l.visit(ctx, a) })
	}
}

// visit makes a connection and, after the rollout, another one if its server has gone.
func (l *load) visit(ctx context.Context, a arrival) {
	f, err := l.connect(ctx, a)
	for ctx.Err() == nil && isClosed(l.changing) && err == nil && f != served && !l.fails() {
		l.again.Add(1)
		select {
		case <-time.After(a.pause):
		case <-ctx.Done():
			return
		}
		f, err = l.connect(ctx, a)
	}
	switch {
	case ctx.Err() != nil:
	case err == nil && f != served && !l.fails():
		err = fmt.Errorf("%s: a connection to %v was refused, or ended without an answer", l, l.to)
		fallthrough
	case err != nil:
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.errors) < 5 {
			l.errors = append(l.errors, err)
		}
	case !isClosed(l.changing):
		l.fates[f].Add(1)
	}
}

// connect makes one connection.
func (l *load) connect(ctx context.Context, a arrival) (fate, error) {
	conn, err := l.sockets.open(ctx, l.sources[a.client], l.to)
	if err != nil {
		return ended, fmt.Errorf("%s: open a socket: %w", l, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	switch err := established(conn); {
	case errors.Is(err, unix.ECONNREFUSED):
		return refused, nil
	case errors.Is(err, unix.ECONNRESET):
		return ended, nil
	case err != nil:
		return ended, fmt.Errorf("%s: connect: %w", l, err)
	}
	if _, err := io.WriteString(conn, a.hold.String()+"\n"); err != nil {
		return ended, nil
	}
	line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	if err != nil || line != answered {
		return ended, nil
	}
	return served, nil
}

// sockets opens sockets on one thread in a namespace: testnet's Dial takes a thread for each connection.
type sockets chan func()

func startSockets(ctx context.Context, ns *testnet.Namespace) sockets {
	s := make(sockets)
	go func() {
		_ = ns.Do(func() error { // it has no error once it has opened the first one
			for {
				select {
				case open := <-s:
					open()
				case <-ctx.Done():
					return nil
				}
			}
		})
	}()
	return s
}

// open opens a socket that connects.
func (s sockets) open(ctx context.Context, from netip.Addr, to netip.AddrPort) (conn *os.File, err error) {
	done := make(chan struct{})
	select {
	case s <- func() { conn, err = connecting(from, to); close(done) }:
		<-done
		return conn, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func connecting(from netip.Addr, to netip.AddrPort) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	conn := os.NewFile(uintptr(fd), "connection")
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), conn.Close())
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), conn.Close())
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(os.NewSyscallError("connect", err), conn.Close())
	}
	return conn, nil
}

// established waits until a socket is connected.
func established(conn *os.File) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || code != 0 {
			failed = cmp.Or(err, error(unix.Errno(code)))
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil
	})
	return cmp.Or(err, failed)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

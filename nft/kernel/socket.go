package kernel

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// readBuffer holds a whole datagram of a dump, in bytes. The kernel fills at most 32 KiB,
// once it has seen that the reader takes as much. For each datagram of a dump of elements
// it searches its place from the set's start, so small datagrams cost much.
const readBuffer = 64 << 10

// errTruncated should not happen: the kernel keeps below 32 KiB, and sends whole messages.
var errTruncated = errors.New("netlink datagram cut short")

// socket is a netlink socket to nf_tables. mdlayher/netlink opens and configures it. socket
// sends and receives by itself, since mdlayher/netlink keeps neither all errors of a batch
// nor the errno of capped acknowledgements. The kernel answers during the send, so nobody waits for
// the descriptor, and Go's poller does not know it: otherwise each acknowledgement would wake a thread
// of the process that waits in epoll_wait for something else.
type socket struct {
	// open is held while a system call uses fd, which is -1 once the socket is closed.
	open sync.RWMutex
	fd   int
	// port is the number by which the kernel knows the socket, as an owner of tables.
	port uint32
	buf  []byte
	// calls carry the datagrams.
	calls Syscalls
	// sendBuffer is the size of the send buffer, 0 if it was not asked for yet. Nobody makes it smaller.
	sendBuffer int
}

func dial(config Config) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: config.NetNS})
	if err != nil {
		return nil, err
	}
	defer conn.Close() // The socket lives on by its other descriptor.
	s := &socket{fd: -1, port: conn.PID(), buf: make([]byte, readBuffer), calls: systemCalls{}}
	if config.Syscalls != nil {
		s.calls = config.Syscalls()
	}
	// CapAcknowledge: without it the kernel echoes each failed message, and
	// three of 60 KB fill the receive buffer.
	for _, o := range []netlink.ConnOption{netlink.ExtendedAcknowledge, netlink.CapAcknowledge} {
		if err := conn.SetOption(o, true); err != nil {
			return nil, err
		}
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) { s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if controlErr != nil {
		return nil, controlErr
	}
	return s, os.NewSyscallError("fcntl", err)
}

func (s *socket) closeConn() error {
	s.open.Lock()
	defer s.open.Unlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// use calls a function with the descriptor, again while a signal interrupts it.
func (s *socket) use(call func(fd int) error) error {
	s.open.RLock()
	defer s.open.RUnlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	for {
		if err := call(s.fd); err != unix.EINTR {
			return err
		}
	}
}

// send sends the buffers as one datagram. When send returns, nf_tables has carried it out.
func (s *socket) send(buffers ...[]byte) error {
	return os.NewSyscallError("sendmsg", s.use(func(fd int) error { return s.calls.Send(fd, buffers) }))
}

// queued returns the next datagram that the kernel has queued, or io.EOF. The
// datagram is valid until the next call.
func (s *socket) queued() ([]byte, error) {
	var n int
	err := s.use(func(fd int) (err error) {
		n, err = s.calls.Read(fd, s.buf)
		return err
	})
	switch {
	case err == unix.EAGAIN: // A netlink socket is non-blocking here, so this is an empty queue.
		return nil, io.EOF
	case err != nil:
		return nil, os.NewSyscallError("recvmsg", err)
	case n == len(s.buf) || !wholeMessages(s.buf[:n]):
		return nil, errTruncated
	}
	return s.buf[:n], nil
}

// drain discards all queued datagrams, and a pending error.
func (s *socket) drain() {
	for {
		_, err := s.queued()
		if err != nil && err != errTruncated && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

// writeLimit returns how long a datagram may be, in bytes. It first grows the send buffer
// as far as wanted. Beyond wmem_max that needs CAP_NET_ADMIN over the first user
// namespace. Only one goroutine may call it at a time.
func (s *socket) writeLimit(want int) (int, error) {
	// netlink_sendmsg keeps so much for itself.
	const reserve = 32
	if s.sendBuffer == 0 {
		if err := s.readSendBuffer(); err != nil {
			return 0, err
		}
	}
	if want+reserve > s.sendBuffer {
		// The kernel doubles the size that it is given, and reports the double.
		if err := s.use(func(fd int) error { return growSendBuffer(fd, want+reserve) }); err != nil {
			return 0, fmt.Errorf("set send buffer size: %w", err)
		}
		if err := s.readSendBuffer(); err != nil {
			return 0, err
		}
	}
	return s.sendBuffer - reserve, nil
}

func (s *socket) readSendBuffer() error {
	err := s.use(func(fd int) (err error) {
		s.sendBuffer, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		return err
	})
	if err != nil {
		return fmt.Errorf("read send buffer size: %w", os.NewSyscallError("getsockopt", err))
	}
	return nil
}

// growSendBuffer sets the size beyond wmem_max if it may, and otherwise up to that.
func growSendBuffer(fd, size int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size))
}

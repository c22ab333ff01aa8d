package nfnetlink

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ReadBuffer holds a whole datagram of a dump, in bytes. The kernel fills at most 32 KiB, once it has seen that the
// reader takes as much. For each datagram of a dump of elements it searches its place from the set's start, so small
// datagrams cost much.
const ReadBuffer = 64 << 10

// ErrTruncated should not happen: the kernel keeps below 32 KiB, and sends whole messages.
var ErrTruncated = errors.New("netlink datagram cut short")

// Syscalls are the system calls that carry a socket's datagrams. They are those of package unix, or a test's that
// lets some of them fail.
type Syscalls interface {
	// Send sends the buffers as one datagram.
	Send(fd int, buffers [][]byte) error
	// Read reads the next datagram; unix.EAGAIN if none is queued.
	Read(fd int, b []byte) (int, error)
}

// Kernel is the kernel's own system calls.
type Kernel struct{}

// Send is a Syscalls' Send.
func (Kernel) Send(fd int, buffers [][]byte) error {
	_, err := unix.SendmsgBuffers(fd, buffers, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
	return err
}

// Read is a Syscalls' Read.
func (Kernel) Read(fd int, b []byte) (int, error) { return unix.Read(fd, b) }

// Config says where to work.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in. 0 stands for the namespace of the calling
	// thread. The caller can close it after Dial.
	NetNS int
	// Syscalls makes the system calls of each socket; nil stands for the kernel's own. It is for tests of the
	// kernel's faults.
	Syscalls func() Syscalls
}

// Socket is a netlink socket to netfilter. mdlayher/netlink opens and configures it. Socket sends and receives by
// itself (see the package's comment). The kernel answers during the send, so nobody waits for the descriptor, and Go's
// poller does not know it: otherwise each acknowledgement would wake a thread of the process that waits in epoll_wait
// for something else.
type Socket struct {
	// Port is the number by which the kernel knows the socket, as an owner of tables.
	Port uint32
	// Calls carry the datagrams.
	Calls Syscalls

	// open is held while a system call uses fd, which is -1 once the socket is closed.
	open sync.RWMutex
	fd   int
	buf  []byte
	// sendBuffer is the size of the send buffer, 0 if it was not asked for yet. Nobody makes it smaller.
	sendBuffer int
}

// New makes a Socket of a descriptor, which does not block. It is for tests; see Dial.
func New(fd int, calls Syscalls) *Socket {
	return &Socket{fd: fd, buf: make([]byte, ReadBuffer), Calls: calls}
}

// Dial opens a socket. It needs no rights; requests need CAP_NET_ADMIN in the namespace.
func Dial(config Config) (*Socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: config.NetNS})
	if err != nil {
		return nil, err
	}
	defer conn.Close() // The socket lives on by its other descriptor.
	s := New(-1, Kernel{})
	s.Port = conn.PID()
	if config.Syscalls != nil {
		s.Calls = config.Syscalls()
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
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return s, nil
}

// Close closes the socket.
func (s *Socket) Close() error {
	s.open.Lock()
	defer s.open.Unlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// Use calls a function with the descriptor, again while a signal interrupts it.
func (s *Socket) Use(call func(fd int) error) error {
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

// Send sends the buffers as one datagram. When Send returns, the kernel has carried it out.
func (s *Socket) Send(buffers ...[]byte) error {
	return os.NewSyscallError("sendmsg", s.Use(func(fd int) error { return s.Calls.Send(fd, buffers) }))
}

// Queued returns the next datagram that the kernel has queued, or io.EOF. The datagram has whole messages only. It is
// valid until the next call.
func (s *Socket) Queued() ([]byte, error) {
	var n int
	err := s.Use(func(fd int) (err error) {
		n, err = s.Calls.Read(fd, s.buf)
		return err
	})
	switch {
	case err == unix.EAGAIN: // A netlink socket is non-blocking here, so this is an empty queue.
		return nil, io.EOF
	case err != nil:
		return nil, os.NewSyscallError("recvmsg", err)
	case n == len(s.buf) || !Whole(s.buf[:n]):
		return nil, ErrTruncated
	}
	return s.buf[:n], nil
}

// Drain discards all queued datagrams, and a pending error.
func (s *Socket) Drain() {
	for {
		_, err := s.Queued()
		if err != nil && err != ErrTruncated && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

// WriteLimit returns how long a datagram may be, in bytes. It first grows the send buffer as far as wanted. Beyond
// net.core.wmem_max that needs CAP_NET_ADMIN over the first user namespace. Only one goroutine may call it at a time.
func (s *Socket) WriteLimit(want int) (int, error) {
	// netlink_sendmsg keeps so much for itself.
	const reserve = 32
	if s.sendBuffer == 0 {
		if err := s.readSendBuffer(); err != nil {
			return 0, err
		}
	}
	if want+reserve > s.sendBuffer {
		// The kernel doubles the size that it is given, and reports the double.
		if err := s.grow(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, want+reserve); err != nil {
			return 0, fmt.Errorf("set send buffer size: %w", err)
		}
		if err := s.readSendBuffer(); err != nil {
			return 0, err
		}
	}
	return s.sendBuffer - reserve, nil
}

func (s *Socket) readSendBuffer() error {
	err := s.Use(func(fd int) (err error) {
		s.sendBuffer, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		return err
	})
	if err != nil {
		return fmt.Errorf("read send buffer size: %w", os.NewSyscallError("getsockopt", err))
	}
	return nil
}

// SetReadBuffer makes room for so many bytes of answers. Beyond net.core.rmem_max that needs CAP_NET_ADMIN over the
// first user namespace.
func (s *Socket) SetReadBuffer(size int) error {
	return s.grow(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, size)
}

// grow sets a buffer's size beyond the sysctl's limit if it may, and otherwise up to that.
func (s *Socket) grow(force, option, size int) error {
	return s.Use(func(fd int) error {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
			return nil
		}
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size))
	})
}

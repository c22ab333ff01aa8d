package kernel

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

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
// nor the errno of capped acknowledgements.
type socket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	buf  []byte
	// calls carry the datagrams.
	calls Syscalls
}

func dial(config Config) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: config.NetNS})
	if err != nil {
		return nil, err
	}
	s := &socket{conn: conn, buf: make([]byte, readBuffer), calls: systemCalls{}}
	if config.Syscalls != nil {
		s.calls = config.Syscalls()
	}
	// CapAcknowledge: without it the kernel echoes each failed message, and
	// three of 60 KB fill the receive buffer.
	for _, o := range []netlink.ConnOption{netlink.ExtendedAcknowledge, netlink.CapAcknowledge} {
		if err := conn.SetOption(o, true); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	if s.raw, err = conn.SyscallConn(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

func (s *socket) closeConn() error { return s.conn.Close() }

// send sends the buffers as one datagram. When send returns, nf_tables has carried it out.
func (s *socket) send(buffers ...[]byte) error {
	var err error
	controlErr := s.raw.Control(func(fd uintptr) {
		for {
			if err = s.calls.Send(int(fd), buffers); err != unix.EINTR {
				return
			}
		}
	})
	if controlErr != nil {
		return controlErr
	}
	return os.NewSyscallError("sendmsg", err)
}

// queued returns the next datagram that the kernel has queued, or io.EOF. The
// datagram is valid until the next call.
func (s *socket) queued() ([]byte, error) {
	var n int
	var err error
	controlErr := s.raw.Control(func(fd uintptr) {
		for {
			// A netlink socket is non-blocking here, so an empty queue is EAGAIN.
			if n, err = s.calls.Read(int(fd), s.buf); err != unix.EINTR {
				return
			}
		}
	})
	switch {
	case controlErr != nil:
		return nil, controlErr
	case err == unix.EAGAIN:
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
// namespace.
func (s *socket) writeLimit(want int) (int, error) {
	// netlink_sendmsg keeps so much for itself.
	const reserve = 32
	have, err := s.conn.WriteBuffer()
	if err != nil {
		return 0, fmt.Errorf("read send buffer size: %w", err)
	}
	if want+reserve > have {
		// The kernel doubles the size that it is given, and reports the double.
		if err := s.conn.SetWriteBuffer(want + reserve); err != nil {
			return 0, fmt.Errorf("set send buffer size: %w", err)
		}
		if have, err = s.conn.WriteBuffer(); err != nil {
			return 0, fmt.Errorf("read send buffer size: %w", err)
		}
	}
	return have - reserve, nil
}

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

// readBuffer holds a whole datagram of a dump. The kernel fills at most 32 KiB
// once it has seen a reader that takes as much. Each datagram of a dump of
// elements is looked for from the set's start, so small ones cost much.
const readBuffer = 64 << 10

// errTruncated should not happen: the kernel keeps below 32 KiB.
var errTruncated = errors.New("netlink datagram larger than the buffer")

// socket is a netlink socket to nf_tables. mdlayher/netlink opens and sets it
// up; messages are sent and received past it, since it keeps neither all errors
// of a batch nor the errno of capped acknowledgements.
type socket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	buf  []byte
}

func dial(netns int) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	s := &socket{conn: conn, buf: make([]byte, readBuffer)}
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

func (s *socket) close() error { return s.conn.Close() }

// send sends the parts as one datagram. nf_tables has carried it out when send
// returns.
func (s *socket) send(parts ...[]byte) error {
	var err error
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	controlErr := s.raw.Control(func(fd uintptr) {
		for {
			if _, err = unix.SendmsgBuffers(int(fd), parts, nil, kernel, 0); err != unix.EINTR {
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
			if n, err = unix.Read(int(fd), s.buf); err != unix.EINTR {
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
	case n == len(s.buf):
		return nil, errTruncated
	}
	return s.buf[:n], nil
}

// drain throws away what is queued, the pending error included.
func (s *socket) drain() {
	for {
		_, err := s.queued()
		if err != nil && err != errTruncated && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

// writeLimit returns how long a datagram may be, after trying to make it as
// long as wanted. Past wmem_max this needs CAP_NET_ADMIN over the first user
// namespace.
func (s *socket) writeLimit(want int) (int, error) {
	// What netlink_sendmsg keeps for itself.
	const reserve = 32
	have, err := s.conn.WriteBuffer()
	if err != nil {
		return 0, fmt.Errorf("read send buffer size: %w", err)
	}
	if want+reserve > have {
		// The kernel doubles what is asked for, and reports the double.
		if err := s.conn.SetWriteBuffer(want + reserve); err != nil {
			return 0, fmt.Errorf("set send buffer size: %w", err)
		}
		if have, err = s.conn.WriteBuffer(); err != nil {
			return 0, fmt.Errorf("read send buffer size: %w", err)
		}
	}
	return have - reserve, nil
}

package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// readBuffer is the largest datagram of a dump, in bytes. The kernel fills it once it
// has seen a reader with such a buffer.
const readBuffer = 32 << 10

// socket is a netlink socket to ctnetlink. mdlayher/netlink opens it and sends the
// requests. The package reads the answers itself: the library copies each entry of a
// dump. It also waits for ever after the answer to a count, since the kernel marks
// that answer as one of several.
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
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &socket{conn: conn, raw: raw, buf: make([]byte, readBuffer)}, nil
}

// message is one netlink message as it was received.
type message struct {
	kind     netlink.HeaderType
	flags    netlink.HeaderFlags
	sequence uint32
	data     []byte
}

// receive waits for a datagram and yields its messages. They are valid until the next
// call.
func (s *socket) receive() iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		b, err := s.read()
		if err != nil {
			yield(message{}, err)
			return
		}
		for len(b) > 0 {
			if len(b) < unix.SizeofNlMsghdr {
				yield(message{}, errMalformed)
				return
			}
			length := int(binary.NativeEndian.Uint32(b))
			if length < unix.SizeofNlMsghdr || length > len(b) {
				yield(message{}, errMalformed)
				return
			}
			m := message{
				kind:     netlink.HeaderType(binary.NativeEndian.Uint16(b[4:])),
				flags:    netlink.HeaderFlags(binary.NativeEndian.Uint16(b[6:])),
				sequence: binary.NativeEndian.Uint32(b[8:]),
				data:     b[unix.SizeofNlMsghdr:length],
			}
			if !yield(m, nil) {
				return
			}
			b = b[min((length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
		}
	}
}

func (s *socket) read() ([]byte, error) {
	var n int
	var err error
	readErr := s.raw.Read(func(fd uintptr) bool {
		for {
			if n, err = unix.Read(int(fd), s.buf); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if readErr != nil {
		return nil, readErr
	}
	return s.buf[:n], os.NewSyscallError("recvmsg", err)
}

// err returns the error in the message, or nil. An acknowledgement and the end of a
// dump can have one.
func (m message) err() error {
	if m.kind != netlink.Error && m.kind != netlink.Done {
		return nil
	}
	if len(m.data) < 4 {
		return fmt.Errorf("%w: no error number", errMalformed)
	}
	if number := int32(binary.NativeEndian.Uint32(m.data)); number != 0 {
		return unix.Errno(-number)
	}
	return nil
}

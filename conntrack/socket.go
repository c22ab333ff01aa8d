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

// errUnanswered should not happen: the kernel has queued its answers when it has taken a
// request, or says that it had no room for them. It queues each further datagram of a dump
// when the one before is read.
var errUnanswered = errors.New("the kernel's answer is missing")

// socket is a netlink socket to ctnetlink. mdlayher/netlink opens it. The package sends
// and receives itself: the library copies each entry of a dump. It also waits for ever
// after the answer to a count, since the kernel marks that answer as one of several. No
// answer is worth a wait.
type socket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	buf  []byte
	// calls carry the datagrams.
	calls Syscalls
	// sequence is the number of the last request.
	sequence uint32
}

func dial(netns int, calls func() Syscalls) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &socket{conn: conn, raw: raw, buf: make([]byte, readBuffer), calls: systemCalls{}}
	if calls != nil {
		s.calls = calls()
	}
	return s, nil
}

// send sends the requests as one datagram, and returns the sequence numbers of the first
// and the last one. When it returns, the kernel has handled them.
func (s *socket) send(requests ...netlink.Message) (first, last uint32, err error) {
	first = s.sequence + 1
	var datagram []byte
	for _, m := range requests {
		s.sequence++
		m.Header.Sequence = s.sequence
		m.Header.Length = uint32(unix.SizeofNlMsghdr + len(m.Data))
		b, err := m.MarshalBinary()
		if err != nil {
			return 0, 0, err
		}
		datagram = append(datagram, b...)
	}
	controlErr := s.raw.Control(func(fd uintptr) {
		for {
			if err = s.calls.Send(int(fd), [][]byte{datagram}); err != unix.EINTR {
				return
			}
		}
	})
	if controlErr != nil {
		return 0, 0, controlErr
	}
	return first, s.sequence, os.NewSyscallError("sendmsg", err)
}

// message is one netlink message as it was received.
type message struct {
	kind     netlink.HeaderType
	flags    netlink.HeaderFlags
	sequence uint32
	data     []byte
}

// receive yields the messages of the next datagram. They are valid until the next call.
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
	controlErr := s.raw.Control(func(fd uintptr) {
		for {
			if n, err = s.calls.Read(int(fd), s.buf); err != unix.EINTR {
				return
			}
		}
	})
	switch {
	case controlErr != nil:
		return nil, controlErr
	case err == unix.EAGAIN:
		return nil, errUnanswered
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

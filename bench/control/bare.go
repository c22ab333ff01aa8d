package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// bareSocket sends batches that were encoded earlier, so that only the kernel's time is
// measured.
type bareSocket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
}

// dialBare opens a socket in the network namespace of a file descriptor, with
// room for batches of the given size.
func dialBare(netns, room int) (*bareSocket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open a bare socket: %w", err)
	}
	s := &bareSocket{conn: conn}
	if err = conn.SetWriteBuffer(room + 64); err == nil {
		s.raw, err = conn.SyscallConn()
	}
	if err != nil {
		return nil, joinClose(fmt.Errorf("open a bare socket: %w", err), conn.Close)
	}
	return s, nil
}

func (s *bareSocket) close() error { return s.conn.Close() }

// encoded is a batch as datagrams, one for each transaction.
type encoded [][]byte

func encode(b nft.Batch) (encoded, error) {
	var e encoded
	for _, t := range b.Transactions() {
		datagram, err := kernel.Encode(t)
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		e = append(e, datagram)
	}
	return e, nil
}

// send lets the kernel apply a batch, and returns how long that took.
func (s *bareSocket) send(e encoded) (time.Duration, error) {
	var took time.Duration
	for _, datagram := range e {
		var err error
		controlErr := s.raw.Control(func(fd uintptr) {
			start := time.Now()
			err = unix.Sendto(int(fd), datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
			took += time.Since(start)
		})
		if err = errors.Join(controlErr, os.NewSyscallError("sendto", err), s.refusal()); err != nil {
			return took, fmt.Errorf("send a bare batch: %w", err)
		}
	}
	return took, nil
}

// refusal reads what the kernel has queued during the send: an acknowledgement, or
// errors.
func (s *bareSocket) refusal() error {
	buf := make([]byte, 64<<10)
	for {
		var n int
		var err error
		if controlErr := s.raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }); controlErr != nil {
			return controlErr
		}
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("recvmsg", err)
		}
		// struct nlmsghdr, then the negative errno of struct nlmsgerr.
		const errno = unix.SizeofNlMsghdr
		if n < errno+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
			continue
		}
		if code := -int32(binary.NativeEndian.Uint32(buf[errno:])); code != 0 {
			return syscall.Errno(code)
		}
	}
}

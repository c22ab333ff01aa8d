package netfilter

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Notices is what the kernel tells a multicast group of netfilter, until it is closed.
type Notices struct {
	conn  *netlink.Conn
	ended sync.WaitGroup
}

// Follow listens to a group in the network namespace of a file descriptor, with a buffer of that many bytes. take gets
// each datagram, which it must not keep, with the time of its arrival, or an error that the socket had: ENOBUFS says
// that notices were lost. take says whether to go on. Follow needs CAP_NET_ADMIN in the first user namespace, for the
// size of the buffer.
func Follow(netns int, group uint, buffer int, take func(datagram []byte, at time.Time, err error) bool) (*Notices,
	error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns, Groups: 1 << (group - 1)})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = conn.SetReadBuffer(buffer)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	n := &Notices{conn: conn}
	n.ended.Go(func() { read(raw, take) })
	return n, nil
}

// Close ends it: take is not called any more.
func (n *Notices) Close() error {
	err := n.conn.Close()
	n.ended.Wait()
	return err
}

// read reads datagrams by itself: the library would ask for the size of each first, and decode it.
func read(raw syscall.RawConn, take func([]byte, time.Time, error) bool) {
	buf := make([]byte, 1<<20)
	for {
		var n int
		var err error
		closed := raw.Read(func(fd uintptr) bool {
			for {
				if n, _, err = unix.Recvfrom(int(fd), buf, 0); err != unix.EINTR {
					return err != unix.EAGAIN
				}
			}
		})
		if closed != nil || !take(buf[:max(0, n)], time.Now(), os.NewSyscallError("recvfrom", err)) {
			return
		}
	}
}

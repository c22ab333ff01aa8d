package testnet

import (
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketCopy is a second descriptor of a TCP socket, which outlives a failed
// attempt to connect and so can still be asked why it failed.
type socketCopy struct {
	fd   int
	open bool
}

// of makes the copy. It has the socket keep the ICMP errors it gets, which
// changes nothing for the client.
func (c *socketCopy) of(socket syscall.RawConn, to netip.Addr) error {
	var failed error
	err := socket.Control(func(fd uintptr) {
		level, option := unix.IPPROTO_IP, unix.IP_RECVERR
		if to.Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
		}
		if failed = os.NewSyscallError("set RECVERR", unix.SetsockoptInt(int(fd), level, option, 1)); failed != nil {
			return
		}
		c.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		failed = os.NewSyscallError("dup", failed)
		c.open = failed == nil
	})
	return errors.Join(err, failed)
}

// close tells, given how connecting ended, whether a reset refused it, and how
// often the SYN was sent.
func (c *socketCopy) close(connected error) (reset bool, attempts int) {
	if !c.open {
		return false, 0
	}
	defer func() { _ = unix.Close(c.fd) }() // nothing was written
	if info, err := unix.GetsockoptTCPInfo(c.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		attempts = 1 + int(info.Total_retrans)
	}
	if errors.Is(connected, unix.ECONNREFUSED) {
		// A reset leaves nothing in the queue of errors, an ICMP error does.
		_, _, _, _, err := unix.Recvmsg(c.fd, nil, make([]byte, 512), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		reset = errors.Is(err, unix.EAGAIN)
	}
	return reset, attempts
}

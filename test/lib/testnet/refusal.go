package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
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
		if failed = keepErrors(fd, to); failed != nil {
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

// keepErrors has a socket towards an address keep the ICMP errors it gets.
func keepErrors(fd uintptr, to netip.Addr) error {
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if to.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	return os.NewSyscallError("set RECVERR", unix.SetsockoptInt(int(fd), level, option, 1))
}

// rawSocket is a connected raw socket. The kernel gives such a socket all
// errors about its protocol and peer, whichever socket sent the packet; this
// one returns those about packets of its own.
type rawSocket struct {
	conn *net.IPConn
	// own tells a packet of the socket by its beginning, after the IP header.
	own func(packet []byte) bool
}

// raw prepares a connected raw socket.
func raw(conn net.Conn, to netip.Addr, own func([]byte) bool) (*rawSocket, error) {
	c, ok := conn.(*net.IPConn)
	if !ok {
		return nil, fmt.Errorf("a raw socket is a %T", conn)
	}
	socket, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = socket.Control(func(fd uintptr) { failed = keepErrors(fd, to) })
	return &rawSocket{c, own}, errors.Join(err, failed)
}

// send is what the function send does.
func (r *rawSocket) send(packet []byte) error {
	for {
		if err := r.ownError(send(r.conn, packet)); err != errForeign {
			return err
		}
	}
}

// read reads a packet without its IP header.
func (r *rawSocket) read(buf []byte) (int, error) {
	for {
		n, _, err := r.conn.ReadFrom(buf) // Read would leave the header of IPv4 on
		if err = r.ownError(err); err != errForeign {
			return n, err
		}
	}
}

// errForeign stands for an ICMP error about a packet of another socket.
var errForeign = errors.New("about a packet of another socket")

// ownError returns err, unless an ICMP error about a packet of another socket caused it.
// Then it returns errForeign.
func (r *rawSocket) ownError(err error) error {
	var number syscall.Errno
	if !errors.As(err, &number) {
		return err
	}
	socket, failed := r.conn.SyscallConn()
	if failed != nil {
		return failed
	}
	verdict := error(errForeign)
	failed = socket.Control(func(fd uintptr) {
		packet, control := make([]byte, 256), make([]byte, 512)
		for {
			n, m, _, _, err := unix.Recvmsg(int(fd), packet, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return // EAGAIN: that was all
			}
			if number, found := extendedError(control[:m]); found && r.own(packet[:n]) {
				verdict = os.NewSyscallError("ICMP", number)
			}
		}
	})
	if failed != nil {
		return err
	}
	return verdict
}

// extendedError is the error number of a struct sock_extended_err, where it
// comes first.
func extendedError(control []byte) (syscall.Errno, bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < 4 {
		return 0, false
	}
	return syscall.Errno(binary.NativeEndian.Uint32(messages[0].Data)), true
}

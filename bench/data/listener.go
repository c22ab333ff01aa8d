package data

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// backlog is how many connections a listener keeps until they are accepted.
const backlog = 65535

// listener is a TCP server without a thread of its own: the kernel completes
// connections, and drain takes them off later. What a client measures then has
// no wake-up of a server in it, which is most of the noise and the same for all.
type listener struct{ fd int }

// listen serves a port on all IPv4 addresses of the namespace.
func listen(ns *testnet.Namespace, port uint16) (*listener, error) {
	if err := ns.Sysctl("net.core.somaxconn", fmt.Sprint(backlog)); err != nil {
		return nil, err
	}
	l := &listener{fd: -1}
	err := ns.Do(func() (err error) {
		if l.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		return errors.Join(
			os.NewSyscallError("bind", unix.Bind(l.fd, &unix.SockaddrInet4{Port: int(port)})),
			os.NewSyscallError("listen", unix.Listen(l.fd, backlog)),
		)
	})
	if err != nil {
		err = fmt.Errorf("listen on port %d in %s: %w", port, ns, err)
		if l.fd >= 0 {
			err = errors.Join(err, l.close())
		}
		return nil, err
	}
	return l, nil
}

func (l *listener) close() error { return os.NewSyscallError("close", unix.Close(l.fd)) }

// accept takes the next connection that is complete; ok is false if there is
// none.
func (l *listener) accept() (fd int, ok bool, err error) {
	for {
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return -1, false, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return -1, false, os.NewSyscallError("accept4", err)
		}
		return fd, true, nil
	}
}

// drain closes all connections that are complete, and returns their number.
func (l *listener) drain() (int, error) {
	for n := 0; ; n++ {
		fd, ok, err := l.accept()
		if !ok || err != nil {
			return n, err
		}
		if err := unix.Close(fd); err != nil {
			return n, os.NewSyscallError("close", err)
		}
	}
}

// endpoints is drain that counts the connections of each of the server's
// addresses.
func (l *listener) endpoints() (map[netip.Addr]int, error) {
	counts := map[netip.Addr]int{}
	for {
		fd, ok, err := l.accept()
		if !ok || err != nil {
			return counts, err
		}
		local, err := unix.Getsockname(fd)
		if err = errors.Join(os.NewSyscallError("getsockname", err),
			os.NewSyscallError("close", unix.Close(fd))); err != nil {
			return counts, err
		}
		if a, ok := local.(*unix.SockaddrInet4); ok {
			counts[netip.AddrFrom4(a.Addr)]++
		}
	}
}

package conntrack

import "golang.org/x/sys/unix"

// Syscalls are the system calls that carry a socket's datagrams. They are those of package
// unix, or a test's that lets some of them fail.
type Syscalls interface {
	// Send sends the buffers as one datagram.
	Send(fd int, buffers [][]byte) error
	// Read reads the next datagram; unix.EAGAIN if none is queued.
	Read(fd int, b []byte) (int, error)
}

// systemCalls is the kernel's own.
type systemCalls struct{}

func (systemCalls) Send(fd int, buffers [][]byte) error {
	_, err := unix.SendmsgBuffers(fd, buffers, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
	return err
}

func (systemCalls) Read(fd int, b []byte) (int, error) { return unix.Read(fd, b) }

package data

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// patience is how long a connect() waits. What takes longer is an error.
const patience = 5 * time.Second

// client connects to one address, one connection after the other. Its methods
// must be called on a thread that is in the client's namespace.
type client struct {
	to     unix.SockaddrInet4
	linger unix.Linger
	wait   unix.Timeval
}

func newClient(to netip.AddrPort) *client {
	return &client{
		to:     unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()},
		linger: unix.Linger{Onoff: 1}, // close by a reset: no port stays behind in TIME_WAIT
		wait:   unix.NsecToTimeval(int64(patience)),
	}
}

// socket opens a socket.
func (c *client) socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = errors.Join(
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &c.linger),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &c.wait),
	)
	if err != nil {
		return -1, errors.Join(os.NewSyscallError("setsockopt", err), unix.Close(fd))
	}
	return fd, nil
}

// connect connects a socket and returns how long that took. A connection that
// is refused is the error ECONNREFUSED, one that gets no answer EINPROGRESS.
func (c *client) connect(fd int) (time.Duration, error) {
	start := time.Now()
	err := unix.Connect(fd, &c.to)
	for errors.Is(err, unix.EINTR) { // the runtime's signals; it goes on where it was
		err = unix.Connect(fd, &c.to)
	}
	return time.Since(start), os.NewSyscallError("connect", err)
}

// once opens a connection and resets it.
func (c *client) once() (time.Duration, error) {
	fd, err := c.socket()
	if err != nil {
		return 0, err
	}
	took, err := c.connect(fd)
	if closed := unix.Close(fd); err == nil {
		err = os.NewSyscallError("close", closed)
	}
	return took, err
}

// burst opens connections until there were as many as samples has room for, and
// at least some of them and time is up. It returns the time that each connect()
// took.
func burst(ns *testnet.Namespace, to netip.AddrPort, samples []time.Duration, least int,
	most time.Duration) ([]time.Duration, error) {
	samples = samples[:0]
	err := ns.Do(func() error {
		return undisturbed(func() error {
			c := newClient(to)
			start := time.Now()
			for len(samples) < cap(samples) && (len(samples) < least || time.Since(start) < most) {
				took, err := c.once()
				if err != nil {
					return err
				}
				samples = append(samples, took)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %v from %s: %w", to, ns, err)
	}
	return samples, nil
}

// undisturbed runs a function on a locked thread at a real-time priority, where
// that is permitted: on a busy machine most of what is above the median would
// else be the time that other processes run.
func undisturbed(fn func() error) error {
	const self = 0
	before, err := unix.SchedGetAttr(self, 0)
	if err == nil {
		err = unix.SchedSetAttr(self, &unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: 1,
		}, 0)
	}
	if err != nil {
		return fn()
	}
	err = fn()
	before.Size = unix.SizeofSchedAttr
	return errors.Join(err, os.NewSyscallError("sched_setattr", unix.SchedSetAttr(self, before, 0)))
}

package data

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// chunk is how much is written at once.
const chunk = 256 << 10

// stream is an established connection: its two ends.
type stream struct{ client, server int }

// flow is what a stream carried, and what that cost.
type flow struct {
	bytes int64
	took  time.Duration
	// cpu is that of both ends' threads, and of all that the kernel does for the
	// packets on top of them.
	cpu time.Duration
}

// gigabits are those of a second.
func (f flow) gigabits() float64 { return float64(f.bytes) * 8 / 1e9 / f.took.Seconds() }

// cpuPerGigabyte is in seconds.
func (f flow) cpuPerGigabyte() float64 { return f.cpu.Seconds() / (float64(f.bytes) / 1e9) }

// newStream connects to an address behind which the listener is.
func newStream(ns *testnet.Namespace, to netip.AddrPort, l *listener) (*stream, error) {
	s := &stream{client: -1, server: -1}
	err := ns.Do(func() (err error) {
		c := newClient(to)
		if s.client, err = c.socket(); err != nil {
			return err
		}
		_, err = c.connect(s.client)
		return err
	})
	if err == nil {
		var ok bool
		if s.server, ok, err = l.accept(); err == nil && !ok {
			err = errors.New("the server does not see the connection")
		}
	}
	if err == nil {
		wait := unix.NsecToTimeval(int64(patience))
		err = os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(s.server, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %v from %s: %w", to, ns, err), s.close())
	}
	return s, nil
}

func (s *stream) close() error {
	var errs []error
	for _, fd := range []int{s.client, s.server} {
		if fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	return errors.Join(errs...)
}

// send fills the stream for some time, and returns when all has arrived.
func (s *stream) send(in *testnet.Namespace, most time.Duration) (flow, error) {
	var f flow
	var began, ended time.Time // the first write, the last read
	sent := make(chan int64, 1)
	reader := make(chan struct{})
	there := sync.OnceFunc(func() { close(reader) })
	var reading, writing time.Duration
	var group errgroup.Group
	group.Go(func() error {
		<-reader // is there: two threads take their time to start
		return onOwnThread(in, &writing, func() error {
			began = time.Now()
			n, err := fill(s.client, most)
			// Tells the reader that there is no more, and wakes it up if it waits
			// already.
			sent <- n
			if _, last := unix.Write(s.client, []byte{0}); err == nil {
				err = os.NewSyscallError("write", last)
			}
			return err
		})
	})
	group.Go(func() error {
		defer there() // a thread that fails must not keep the other one waiting
		return onOwnThread(in, &reading, func() (err error) {
			there()
			f.bytes, err = empty(s.server, sent)
			ended = time.Now()
			return err
		})
	})
	err := group.Wait()
	f.took, f.cpu = ended.Sub(began), reading+writing
	if err != nil {
		return f, fmt.Errorf("send from %s: %w", in, err)
	}
	return f, nil
}

// fill writes for some time, and returns how much.
func fill(fd int, most time.Duration) (int64, error) {
	buf := make([]byte, chunk)
	var sum int64
	for start := time.Now(); time.Since(start) < most; {
		n, err := unix.Write(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return sum, os.NewSyscallError("write", err)
		}
		sum += int64(n)
	}
	return sum, nil
}

// empty reads until there is all that was sent, and one byte more.
func empty(fd int, sent <-chan int64) (int64, error) {
	buf := make([]byte, chunk)
	var sum int64
	for expected := int64(-1); expected < 0 || sum < expected+1; {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return sum, os.NewSyscallError("read", err)
		}
		sum += int64(n)
		select {
		case expected = <-sent:
		default:
		}
	}
	return sum, nil
}

// onOwnThread runs a function on a thread in the namespace, undisturbed, and
// says what CPU time that used.
func onOwnThread(ns *testnet.Namespace, cpu *time.Duration, fn func() error) error {
	return ns.Do(func() error {
		return undisturbed(func() error {
			before, err := threadCPU()
			if err != nil {
				return err
			}
			err = fn()
			after, clockErr := threadCPU()
			*cpu = after - before
			return errors.Join(err, clockErr)
		})
	})
}

func threadCPU() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
	return time.Duration(now.Nano()), os.NewSyscallError("clock_gettime", err)
}

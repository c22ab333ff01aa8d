package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"

	"github.com/vishvananda/netns"
)

// netNS is an operating-system thread in a network namespace, which calls functions
// there.
//
// A cluster keeps one thread for its whole life. A child's parent-death signal fires when
// the thread that forked it ends, and threads of the Go scheduler may end at any time: a
// goroutine that returns while locked takes its thread with it.
type netNS struct {
	calls chan func()
	quit  chan struct{}
	once  sync.Once
}

var errNamespaceClosed = errors.New("the control plane is stopped")

// openNetNS starts the thread. An empty path means the namespace of the calling thread.
func openNetNS(path string) (*netNS, error) {
	runtime.LockOSThread() // the thread stays the same between the two looks at it
	defer runtime.UnlockOSThread()
	handle, err := netns.Get()
	if path != "" && err == nil {
		handle.Close()
		handle, err = netns.GetFromPath(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace %q: %w", path, err)
	}
	n := &netNS{calls: make(chan func()), quit: make(chan struct{})}
	entered := make(chan error)
	go n.serve(handle, entered)
	if err := <-entered; err != nil {
		return nil, fmt.Errorf("enter network namespace %q: %w", path, err)
	}
	return n, nil
}

func (n *netNS) serve(target netns.NsHandle, entered chan<- error) {
	runtime.LockOSThread() // and never unlocked: no other goroutine could use the thread, and it ends with this goroutine
	err := enter(target)
	target.Close()
	entered <- err
	if err != nil {
		return
	}
	for {
		select {
		case f := <-n.calls:
			f()
		case <-n.quit:
			return
		}
	}
}

// enter moves the calling thread into the namespace. A thread that is there already needs
// no privilege.
func enter(target netns.NsHandle) error {
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	if own.Equal(target) {
		return nil
	}
	return netns.Set(target)
}

// do runs f on the thread and returns its error.
func (n *netNS) do(f func() error) error {
	var err error
	done := make(chan struct{})
	select {
	case n.calls <- func() { err = f(); close(done) }:
		<-done
		return err
	case <-n.quit:
		return errNamespaceClosed
	}
}

func (n *netNS) close() { n.once.Do(func() { close(n.quit) }) }

// dial is a net.Dialer's DialContext for numeric addresses of the namespace. The
// namespace has these addresses itself, so the answer is immediate and calls need not
// overlap.
func (n *netNS) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		// For a name, goroutines on other threads would do the look-up and dial.
		return nil, fmt.Errorf("dial %s in a network namespace: %w", address, err)
	}
	err = n.do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// freePorts finds ports without a listener: two on loopback for etcd, one on the API server's address.
func (n *netNS) freePorts(api netip.Addr) (p ports, err error) {
	err = n.do(func() error {
		for _, want := range []struct {
			addr netip.Addr
			port *uint16
		}{{loopback(), &p.etcd}, {loopback(), &p.etcdPeer}, {api, &p.apiServer}} {
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(want.addr, 0)))
			if err != nil {
				return fmt.Errorf("find a free port: %w", err)
			}
			defer l.Close() // only once all are found, so that they differ
			*want.port = uint16(l.Addr().(*net.TCPAddr).Port)
		}
		return nil
	})
	return p, err
}

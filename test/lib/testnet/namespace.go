package testnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace of its own, with its loopback up. It exists
// for as long as it is open here or something else in it is (a process, a
// socket). All methods are safe for concurrent use.
type Namespace struct {
	name   string
	file   *os.File
	handle *netlink.Handle
	// questions counts those that had a source port or an identifier from us.
	questions atomic.Uint32

	mu     sync.Mutex
	closed bool
	owned  map[io.Closer]struct{} // servers and the like, closed with the namespace
}

// New makes a network namespace with a loopback only. Reverse path filter,
// redirects and duplicate address detection are off. The name appears in errors only. The
// error matches fs.ErrPermission when the process lacks CAP_SYS_ADMIN.
func New(name string) (*Namespace, error) {
	ns := &Namespace{name: name, owned: map[io.Closer]struct{}{}}
	// Another namespace may have had the same address a moment ago.
	ns.questions.Store(rand.Uint32())
	if err := ns.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("make network namespace %s: %w", name, err), ns.Close())
	}
	return ns, nil
}

func (ns *Namespace) open() error {
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		ns.file = f
		return err
	})
	if err != nil {
		return err
	}
	if ns.handle, err = netlink.NewHandleAt(netns.NsHandle(ns.file.Fd()), unix.NETLINK_ROUTE); err != nil {
		return err
	}
	if err := ns.quieten(); err != nil {
		return err
	}
	return ns.setUp("lo")
}

// String returns the name given to New.
func (ns *Namespace) String() string { return ns.name }

// Path names the namespace for other processes, as `nsenter --net=PATH` wants
// it: /proc/PID/fd/N. It is valid until Close.
func (ns *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd())
}

// Fd returns the file descriptor that holds the namespace, for libraries that
// ask for one. It is valid until Close.
func (ns *Namespace) Fd() int { return int(ns.file.Fd()) }

// Handle returns the rtnetlink handle of the namespace. Close closes it.
func (ns *Namespace) Handle() *netlink.Handle { return ns.handle }

// Do runs fn on an OS thread that is in the namespace, and returns its error.
// Sockets and processes that fn itself makes belong to the namespace; those
// made by goroutines that fn starts do not. fn may call Do of another
// namespace, and may end the test (t.Fatal). The error matches os.ErrClosed
// after Close.
func (ns *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := ns.enter(); err != nil {
			return err
		}
		return fn()
	})
}

func (ns *Namespace) enter() error {
	conn, err := ns.file.SyscallConn()
	if err == nil {
		var failed error
		if conn.Control(func(fd uintptr) { failed = unix.Setns(int(fd), unix.CLONE_NEWNET) }) != nil {
			err = os.ErrClosed // what else can be wrong with a file
		} else {
			err = os.NewSyscallError("setns", failed)
		}
	}
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns.name, err)
	}
	return nil
}

// onThread runs fn on a locked thread, and gives the thread back only if it
// could return to the network namespace where it came from. A thread that
// could not is ended by the Go runtime together with its goroutine.
func onThread(fn func() error) error {
	var err error
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		origin, openErr := os.Open("/proc/thread-self/ns/net")
		if openErr != nil {
			err, returned = openErr, true
			return
		}
		defer func() {
			if unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			_ = origin.Close() // opened for reading: nothing can be lost
		}()
		err = fn()
		returned = true
	}()
	<-done
	if !returned { // fn ended its goroutine, as t.FailNow does: so does the caller's
		runtime.Goexit()
	}
	return err
}

// Start starts cmd in the namespace. The caller waits for it; Close does not
// stop it.
func (ns *Namespace) Start(cmd *exec.Cmd) error {
	return ns.Do(cmd.Start)
}

// Run starts cmd in the namespace and waits for it.
func (ns *Namespace) Run(cmd *exec.Cmd) error {
	if err := ns.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Listen is net.Listen in the namespace, for plain TCP. The host of the
// address is an IP literal or empty.
func (ns *Namespace) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if err := checkLiteral(network, address); err != nil {
		return nil, err
	}
	var l net.Listener
	err := ns.Do(func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		l, err = config.Listen(ctx, network, address)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket in the namespace: "udp" and, raw, "ip4:132".
// The host of the address is an IP literal or empty.
func (ns *Namespace) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	if err := checkLiteral(network, address); err != nil {
		return nil, err
	}
	var c net.PacketConn
	err := ns.Do(func() (err error) {
		var config net.ListenConfig
		c, err = config.ListenPacket(ctx, network, address)
		return err
	})
	return c, err
}

// Dial is net.Dialer.DialContext in the namespace, and fits
// http.Transport.DialContext. The host of the address is an IP literal.
func (ns *Namespace) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return ns.DialFrom(ctx, network, "", address)
}

// DialFrom is Dial from a given source: "address:port" (port 0: any), or an
// address alone for "ip" networks. An empty source leaves the choice to the
// kernel.
func (ns *Namespace) DialFrom(ctx context.Context, network, source, address string) (net.Conn, error) {
	return ns.dial(ctx, network, source, address, nil)
}

// dial is DialFrom that calls ready, if not nil, when the socket exists and is
// about to connect.
func (ns *Namespace) dial(ctx context.Context, network, source, address string,
	ready func(syscall.RawConn) error) (net.Conn, error) {
	var dialer net.Dialer
	if source != "" {
		local, err := resolve(network, source)
		if err != nil {
			return nil, err
		}
		dialer.LocalAddr = local
	}
	if ready != nil {
		dialer.Control = func(_, _ string, socket syscall.RawConn) error { return ready(socket) }
	}
	if err := checkLiteral(network, address); err != nil {
		return nil, err
	}
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// checkLiteral refuses addresses that the resolver would have to look up: it
// would do so on threads outside the namespace.
func checkLiteral(network, address string) error {
	host := address
	if !strings.HasPrefix(network, "ip") {
		var err error
		if host, _, err = net.SplitHostPort(address); err != nil {
			return err
		}
	}
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("address %q is not an IP literal: %w", address, err)
	}
	return nil
}

func resolve(network, address string) (net.Addr, error) {
	if strings.HasPrefix(network, "ip") {
		ip, err := netip.ParseAddr(address)
		return &net.IPAddr{IP: ip.AsSlice(), Zone: ip.Zone()}, err
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(network, "udp") {
		return net.UDPAddrFromAddrPort(ap), nil
	}
	return net.TCPAddrFromAddrPort(ap), nil
}

// Sysctl sets a kernel parameter of the namespace, such as
// "net.ipv4.ip_forward". Where a name itself has a dot, write the key with
// slashes.
func (ns *Namespace) Sysctl(key, value string) error {
	return ns.apply([]sysctl{{key, value}})
}

// writeSysctl sets a parameter of the thread's namespace: which namespace's
// value a file under /proc/sys/net shows is decided by the thread that opens
// it, so any procfs will do.
func writeSysctl(key, value string) error {
	return os.WriteFile(sysctlPath(key), []byte(value), 0)
}

// ReadSysctl returns a kernel parameter of the namespace, without the newline.
func (ns *Namespace) ReadSysctl(key string) (string, error) {
	var value []byte
	err := ns.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(key))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read %s in %s: %w", key, ns.name, err)
	}
	return strings.TrimSpace(string(value)), nil
}

func sysctlPath(key string) string {
	if !strings.Contains(key, "/") {
		key = strings.ReplaceAll(key, ".", "/")
	}
	return "/proc/sys/" + key
}

// own hands c to the namespace, to be closed with it; at once if it is closed.
func (ns *Namespace) own(c io.Closer) {
	ns.mu.Lock()
	closed := ns.closed
	if !closed {
		ns.owned[c] = struct{}{}
	}
	ns.mu.Unlock()
	if closed {
		_ = c.Close() // nobody is left to tell
	}
}

// disown is called by what own was given, when it is closed before.
func (ns *Namespace) disown(c io.Closer) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	delete(ns.owned, c)
}

// Close stops the servers, receivers and sniffers that were started in the
// namespace and lets go of it. A second Close does nothing.
func (ns *Namespace) Close() error {
	ns.mu.Lock()
	owned := ns.owned
	ns.owned = map[io.Closer]struct{}{}
	again := ns.closed
	ns.closed = true
	ns.mu.Unlock()
	if again {
		return nil
	}
	var errs []error
	for c := range owned {
		errs = append(errs, c.Close())
	}
	if ns.handle != nil {
		ns.handle.Close()
	}
	if ns.file != nil {
		errs = append(errs, ns.file.Close())
	}
	return errors.Join(errs...)
}

package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// deletions receives the kernel's notices of conntrack entries that end. It reads them
// without a library: the libraries take longer for a notice than the kernel takes for a
// deletion, and once the buffer is half full, the kernel delays deletions.
type deletions struct {
	conn *netlink.Conn
	done sync.WaitGroup

	mu sync.Mutex
	// last holds when the last entry that led to an endpoint ended; count holds how many
	// have ended.
	last  map[netip.Addr]time.Time
	count map[netip.Addr]int
	err   error
}

// notices is the size of the socket's buffer, in bytes.
const notices = 512 << 20

func listen(ns *testnet.Namespace) (*deletions, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd(),
		Groups: 1 << (netfilter.GroupCTDestroy - 1)})
	if err != nil {
		return nil, fmt.Errorf("listen to conntrack: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = conn.SetReadBuffer(notices)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to conntrack: %w", err), conn.Close())
	}
	d := &deletions{conn: conn, last: map[netip.Addr]time.Time{}, count: map[netip.Addr]int{}}
	d.done.Go(func() { d.read(raw) })
	return d, nil
}

// read returns when the socket is closed, or when a notice was lost.
func (d *deletions) read(raw syscall.RawConn) {
	buf := make([]byte, 1<<16)
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
		if closed != nil {
			return
		}
		if err == nil {
			err = d.note(buf[:n], time.Now())
		}
		if err != nil {
			d.mu.Lock()
			d.err = fmt.Errorf("listen to conntrack: %w", os.NewSyscallError("recvfrom", err))
			d.mu.Unlock()
			return
		}
	}
}

// Attributes of ctnetlink (Linux, nfnetlink_conntrack.h).
const (
	tupleReply = 2
	tupleIP    = 1
	ipv4Src    = 1
)

// note reads to which endpoint an entry led.
func (d *deletions) note(b []byte, now time.Time) error {
	const headers = unix.SizeofNlMsghdr + 4 // struct nlmsghdr and struct nfgenmsg
	if len(b) < headers {
		return errors.New("a notice is too short")
	}
	src := attribute(attribute(attribute(b[headers:], tupleReply), tupleIP), ipv4Src)
	endpoint, ok := netip.AddrFromSlice(src)
	if !ok || !endpoint.Is4() {
		return nil // IPv6
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last[endpoint] = now
	d.count[endpoint]++
	return nil
}

// attribute returns the first attribute of a kind, or nil.
func attribute(b []byte, kind uint16) []byte {
	const header, nested = 4, 1 << 15
	for len(b) >= header {
		n := int(binary.NativeEndian.Uint16(b))
		if n < header || n > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&^nested == kind {
			return b[header:n]
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// of says when the last entry that led to an endpoint ended, and how many have ended.
func (d *deletions) of(endpoint netip.Addr) (last time.Time, count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last[endpoint], d.count[endpoint]
}

// broken says why no more notices come; nil while they do.
func (d *deletions) broken() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *deletions) close() error {
	err := d.conn.Close()
	d.done.Wait()
	return err
}

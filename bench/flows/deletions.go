package flows

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

	"nftproxy/test/testnet"
)

// deletions hears of conntrack entries that end, by the kernel. It reads past the
// libraries, which take longer for a notice than the kernel for a deletion: once
// the buffer is half full, the kernel makes deletions wait.
type deletions struct {
	conn *netlink.Conn
	done sync.WaitGroup

	mu sync.Mutex
	// last is when the last entry that led to an endpoint ended, count how many
	// have.
	last  map[netip.Addr]time.Time
	count map[netip.Addr]int
	err   error
}

// notices is what the kernel may have in store for us.
const notices = 512 << 20

func listen(ns *testnet.Namespace) (*deletions, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd(), Groups: 1 << (netfilter.GroupCTDestroy - 1)})
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

// read ends when the socket is closed, or something was lost.
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

// note reads where the entry led.
func (d *deletions) note(b []byte, now time.Time) error {
	const headers = unix.SizeofNlMsghdr + 4 // and nfgenmsg
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

// attribute finds one by its kind; nil if there is none.
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

// of says when the last entry that led to an endpoint ended, and how many have.
func (d *deletions) of(endpoint netip.Addr) (last time.Time, count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last[endpoint], d.count[endpoint]
}

// broken is why there is nothing to be heard any more.
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

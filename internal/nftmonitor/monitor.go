// Package nftmonitor promises to tell when an address gets into a network
// namespace's nftables, or leaves them, whosever transaction it is: it listens
// to what the kernel says of each right after it has taken effect. No package of
// the proxy takes part in that, so tests and benchmarks can judge by it.
//
// It does not tell what happened, and listening has a price: the kernel writes a
// notice for every element and rule.
package nftmonitor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// readBuffer is what the kernel may have in store for us: a transaction of some
// 100,000 rules.
const readBuffer = 256 << 20

// group is NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const group = 7

// Monitor listens until it is closed.
type Monitor struct {
	conn  *netlink.Conn
	ended sync.WaitGroup

	mu sync.Mutex
	// awaited are the addresses that have not been seen yet, by their first four
	// bytes.
	awaited map[[4]byte][]*awaited
	lost    int
	// last is when the last notice arrived; next is closed at the next, nil if
	// nobody waits.
	last time.Time
	next chan struct{}
}

// awaited is an address that is looked for.
type awaited struct {
	address []byte
	of      *expectation
}

// expectation is fulfilled when none of its addresses is left.
type expectation struct {
	left    int
	arrived chan time.Time
}

// Listen starts listening in the network namespace of a file descriptor. It
// needs CAP_NET_ADMIN in the first user namespace, for its buffer.
func Listen(netns int) (*Monitor, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns, Groups: 1 << (group - 1)})
	if err != nil {
		return nil, fmt.Errorf("listen to nftables: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = conn.SetReadBuffer(readBuffer)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to nftables: %w", err), conn.Close())
	}
	m := &Monitor{conn: conn, awaited: map[[4]byte][]*awaited{}}
	m.ended.Go(func() { m.read(raw) })
	return m, nil
}

// Close ends it. What is still expected never arrives.
func (m *Monitor) Close() error {
	err := m.conn.Close()
	m.ended.Wait()
	return err
}

// Expect looks for addresses in notices: in the key or data of an element, or in
// an expression of a rule, whether it is added or deleted. The channel yields
// when the first notice of the last of them arrived. Any number can be expected
// at a time; each address stands for the next notice that has it.
func (m *Monitor) Expect(addrs ...netip.Addr) <-chan time.Time {
	e := &expectation{left: len(addrs), arrived: make(chan time.Time, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range addrs {
		b := a.AsSlice()
		m.awaited[[4]byte(b)] = append(m.awaited[[4]byte(b)], &awaited{b, e})
	}
	return e.arrived
}

// Forget gives up all that is expected.
func (m *Monitor) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.awaited)
}

// Last says when the last notice arrived, whatever it was about, the zero time
// if none has. The channel is closed when the next one does.
func (m *Monitor) Last() (at time.Time, next <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next == nil {
		m.next = make(chan struct{})
	}
	return m.last, m.next
}

// Lost says how often the kernel had more notices than the buffer has room for.
func (m *Monitor) Lost() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

// read takes datagrams past the library, which asks for the size of each first.
func (m *Monitor) read(raw syscall.RawConn) {
	buf := make([]byte, 1<<20)
	for {
		var n int
		var err error
		waitErr := raw.Read(func(fd uintptr) bool {
			for {
				if n, _, err = unix.Recvfrom(int(fd), buf, 0); err != unix.EINTR {
					return err != unix.EAGAIN
				}
			}
		})
		now := time.Now()
		switch {
		case waitErr != nil: // closed
			return
		case errors.Is(err, unix.ENOBUFS):
			m.mu.Lock()
			m.lost++
			m.mu.Unlock()
		case err != nil:
			return
		default:
			m.look(buf[:n], now)
		}
	}
}

// look searches a datagram. Values and addresses stand at multiples of four
// bytes, as all that netlink aligns.
func (m *Monitor) look(b []byte, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = now
	if m.next != nil {
		close(m.next)
		m.next = nil
	}
	if len(m.awaited) == 0 {
		return
	}
	for ; len(b) >= 4; b = b[4:] {
		list, found := m.awaited[[4]byte(b)]
		if !found {
			continue
		}
		left := slices.DeleteFunc(list, func(a *awaited) bool {
			if len(b) < len(a.address) || string(b[:len(a.address)]) != string(a.address) {
				return false
			}
			if a.of.left--; a.of.left == 0 {
				a.of.arrived <- now
			}
			return true
		})
		if len(left) == 0 {
			delete(m.awaited, [4]byte(b))
		} else {
			m.awaited[[4]byte(b)] = left
		}
	}
}

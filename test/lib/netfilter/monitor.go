package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// readBuffer is the size of the socket's buffer, in bytes. It holds the notices of a
// transaction of some 100,000 rules.
const readBuffer = 256 << 20

// group is NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const group = 7

// Monitor says when an address gets into a network namespace's nftables, or leaves them, by a transaction of any
// process. It listens to the notices that the kernel sends right after each transaction, until it is closed. Listening
// has a price: the kernel writes a notice for every element and rule.
type Monitor struct {
	notices *Notices

	mu sync.Mutex
	// awaited is the addresses that no notice has had yet, by their first four bytes.
	awaited map[[4]byte][]*awaited
	lost    int
	// last is when the last notice arrived. The next notice closes the channel next, which
	// is nil if nothing waits for it.
	last time.Time
	next chan struct{}
}

// awaited is an address that is expected in a notice.
type awaited struct {
	address []byte
	of      *expectation
}

// expectation is some addresses. left is how many of them no notice has had yet.
type expectation struct {
	left    int
	arrived chan time.Time
}

// Listen starts to listen in the network namespace of a file descriptor. It needs
// CAP_NET_ADMIN in the first user namespace, for the size of its buffer.
func Listen(netns int) (m *Monitor, err error) {
	m = &Monitor{awaited: map[[4]byte][]*awaited{}}
	if m.notices, err = Follow(netns, group, readBuffer, m.take); err != nil {
		return nil, fmt.Errorf("listen to nftables: %w", err)
	}
	return m, nil
}

// Close ends the Monitor. Channels of addresses that are still expected never yield.
func (m *Monitor) Close() error { return m.notices.Close() }

// Expect waits for addresses in notices: in the key or data of an element, or in an
// expression of a rule, that is added or deleted. For each address the next notice that
// has it counts. The channel yields the time when the last of these notices arrived. Several
// calls may expect addresses at a time.
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

// Forget gives up all expected addresses.
func (m *Monitor) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.awaited)
}

// Last says when the last notice arrived, whatever it was about; the zero time if none has.
// The next notice closes the channel.
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

// take takes a datagram, or an error.
func (m *Monitor) take(b []byte, now time.Time, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case errors.Is(err, unix.ENOBUFS):
		m.lost++
		return true
	case err != nil:
		return false
	}
	m.searchDatagram(b, now)
	return true
}

// searchDatagram looks for expected addresses in a datagram. Netlink aligns values to four
// bytes, so addresses start at multiples of four.
func (m *Monitor) searchDatagram(b []byte, now time.Time) {
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

package e2e

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// notices listens to what the kernel tells of transactions on nftables, right
// after each has taken effect: whose they are does not matter, and no package
// of the proxy takes part.
type notices struct {
	conn  *netlink.Conn
	ended sync.WaitGroup

	mu      sync.Mutex
	needle  []byte
	arrived chan time.Time
	lost    int // notices that the socket had no room for, in pieces
}

// listen starts listening on the node.
func (n *node) listen() *notices {
	n.t.Helper()
	const group = 7 // NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.Node.Fd(), Groups: 1 << (group - 1)})
	n.must(err, conn.SetReadBuffer(32<<20))
	l := &notices{conn: conn}
	l.ended.Go(l.read)
	n.t.Cleanup(func() {
		conn.Close()
		l.ended.Wait()
	})
	return l
}

// expect begins to look for the first notice that has an address in it, as the
// data of a map element or of an expression, and yields when it arrived.
func (l *notices) expect(a netip.Addr) <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.needle, l.arrived = a.AsSlice(), make(chan time.Time, 1)
	return l.arrived
}

func (l *notices) missed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *notices) read() {
	for {
		messages, err := l.conn.Receive()
		now := time.Now()
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, unix.EBADF):
			return
		case errors.Is(err, unix.ENOBUFS):
			l.mu.Lock()
			l.lost++
			l.mu.Unlock()
			continue
		case err != nil:
			return
		}
		l.mu.Lock()
		for _, m := range messages {
			if l.needle != nil && bytes.Contains(m.Data, l.needle) {
				l.needle = nil
				l.arrived <- now
			}
		}
		l.mu.Unlock()
	}
}

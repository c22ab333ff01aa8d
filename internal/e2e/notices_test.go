package e2e

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/internal/testnet"
)

// notices listens to what the kernel tells of transactions on nftables, right
// after each has taken effect: whose they are does not matter, and no package
// of the proxy takes part.
type notices struct {
	conn  *netlink.Conn
	ended sync.WaitGroup

	mu      sync.Mutex
	needles [][]byte // not seen yet
	arrived chan time.Time
	lost    int // notices that the socket had no room for, in pieces
}

// listen starts listening on the node.
func (n *node) listen() *notices { return listenIn(n.t, n.Node) }

func listenIn(t *testing.T, ns *testnet.Namespace) *notices {
	t.Helper()
	const group = 7 // NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd(), Groups: 1 << (group - 1)})
	if err == nil {
		err = conn.SetReadBuffer(32 << 20)
	}
	if err != nil {
		t.Fatalf("listen to nftables: %v", err)
	}
	l := &notices{conn: conn}
	l.ended.Go(l.read)
	t.Cleanup(func() {
		conn.Close()
		l.ended.Wait()
	})
	return l
}

// expect begins to look for notices that have addresses in them, as the data or
// key of a map element or in an expression. It yields when the first notice of
// the last of them arrived.
func (l *notices) expect(addrs ...netip.Addr) <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.needles, l.arrived = nil, make(chan time.Time, 1)
	for _, a := range addrs {
		l.needles = append(l.needles, a.AsSlice())
	}
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
			before := len(l.needles)
			l.needles = slices.DeleteFunc(l.needles, func(n []byte) bool { return bytes.Contains(m.Data, n) })
			if before > 0 && len(l.needles) == 0 {
				l.arrived <- now
			}
		}
		l.mu.Unlock()
	}
}

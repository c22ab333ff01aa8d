package control

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// deletions receives the kernel's notices of conntrack entries that end. It reads them
// without a library: the libraries take longer for a notice than the kernel takes for a
// deletion, and once the buffer is half full, the kernel delays deletions.
type deletions struct {
	notices *netfilter.Notices

	mu sync.Mutex
	// last holds when the last entry that led to an endpoint ended; count holds how many
	// have ended.
	last  map[netip.Addr]time.Time
	count map[netip.Addr]int
	err   error
}

// noticesSize is the size of the socket's buffer, in bytes.
const noticesSize = 512 << 20

func listen(ns *testnet.Namespace) (d *deletions, err error) {
	d = &deletions{last: map[netip.Addr]time.Time{}, count: map[netip.Addr]int{}}
	if d.notices, err = netfilter.Follow(ns.Fd(), unix.NFNLGRP_CONNTRACK_DESTROY, noticesSize, d.take); err != nil {
		return nil, fmt.Errorf("listen to conntrack: %w", err)
	}
	return d, nil
}

// take takes a notice, until one was lost.
func (d *deletions) take(b []byte, now time.Time, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		err = d.note(b, now)
	}
	if err != nil {
		d.err = fmt.Errorf("listen to conntrack: %w", err)
	}
	return err == nil
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
	src := nfnetlink.Attributes(b[headers:]).Get(tupleReply).Get(tupleIP).Get(ipv4Src)
	endpoint, ok := netip.AddrFromSlice(src)
	if !ok || !endpoint.Is4() {
		return nil // IPv6
	}
	d.last[endpoint] = now
	d.count[endpoint]++
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

func (d *deletions) close() error { return d.notices.Close() }

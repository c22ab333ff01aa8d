package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"nftproxy/test/soak/script"
)

// fillMark marks the entries of full, which its end removes by it.
const fillMark = 0x50a4

// full fills the node's table of connections up to the machine's limit, which holds for
// each network namespace, and keeps it full for a while. The kernel drops what would be a
// new connection then, whatever the rules say.
func (w *world) full(e script.Event) (err error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	conn, err := conntrack.Dial(&netlink.Config{NetNS: w.Node.Fd()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	w.book.Drops("a full table of connections", time.Now())
	made, err := fill(conn, limit)
	w.count.add(fmt.Sprintf("times the table of connections was full, by %d0,000 entries", made/10000))
	if err == nil {
		select {
		case <-time.After(time.Duration(e.Int("ms")) * time.Millisecond):
		case <-w.ctx.Done():
		}
	}
	// The kernel removes by mark: the entries of the clients stay.
	filter := conntrack.NewFilter().Mark(fillMark).MarkMask(^uint32(0))
	return errors.Join(err, conn.FlushFilter(filter))
}

// fill makes entries until the kernel takes no more.
func fill(conn *conntrack.Conn, limit int) (made int, err error) {
	from := netip.MustParseAddr("192.0.2.254")
	for made = range limit {
		to := netip.AddrFrom4([4]byte{198, 18, byte(made >> 16), byte(made >> 8)})
		flow := conntrack.NewFlow(unix.IPPROTO_UDP, conntrack.StatusAssured|conntrack.StatusConfirmed|conntrack.StatusSeenReply, from, to, uint16(1024+made&255), 9, 600, fillMark)
		err := conn.Create(flow)
		if errors.Is(err, unix.ENOMEM) {
			return made, nil // the answer of a full table
		}
		if err != nil {
			return made, fmt.Errorf("fill the table of connections with entry %d: %w", made, err)
		}
	}
	return limit, nil
}

package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// mark is that of all entries that fill a table. Its end removes them by it.
const mark = 0x50a4

// FullTable is the full table of connections of a network namespace, for as long as a test wants. The kernel drops what
// would be a new connection then, whatever the rules say. The machine's limit, which holds for each network namespace,
// stays as it is.
type FullTable struct {
	conn *conntrack.Conn
	// Made is how many entries fill it, beside those that were there.
	Made int
}

// FillTable fills the table of the network namespace of a file descriptor. Without an error, and with one, its
// caller has to Empty the table, unless it is nil.
func FillTable(netns int) (*FullTable, error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return nil, err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, err
	}
	conn, err := conntrack.Dial(&netlink.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	t := &FullTable{conn: conn}
	return t, t.fill(limit)
}

// fill makes entries until the kernel takes no more.
func (t *FullTable) fill(limit int) error {
	from := netip.MustParseAddr("192.0.2.254")
	for ; t.Made < limit; t.Made++ {
		to := netip.AddrFrom4([4]byte{198, 18, byte(t.Made >> 16), byte(t.Made >> 8)})
		flow := conntrack.NewFlow(unix.IPPROTO_UDP,
			conntrack.StatusAssured|conntrack.StatusConfirmed|conntrack.StatusSeenReply, from, to, uint16(1024+t.Made&255), 9,
			600, mark)
		err := t.conn.Create(flow)
		if errors.Is(err, unix.ENOMEM) {
			return nil // the answer of a full table
		}
		if err != nil {
			return fmt.Errorf("fill the table of connections with entry %d: %w", t.Made, err)
		}
	}
	return nil
}

// Empty removes the entries that fill the table. All others stay.
func (t *FullTable) Empty() error {
	filter := conntrack.NewFilter().Mark(mark).MarkMask(^uint32(0))
	return errors.Join(t.conn.FlushFilter(filter), t.conn.Close())
}

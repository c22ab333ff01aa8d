package netfilter

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ownedTable is NFT_TABLE_F_OWNER and NFT_TABLE_F_PERSIST.
const ownedTable = 0x2 | 0x4

// OwnedTables says whether the kernel of the namespace has tables with an owner that stay when the
// process ends (Linux 6.9). It adds and deletes such a table in one transaction, which the kernel
// refuses as a whole if it does not know the flags.
func OwnedTables(netns int) (has bool, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return false, fmt.Errorf("ask for owned tables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	attrs := netlink.NewAttributeEncoder()
	attrs.String(unix.NFTA_TABLE_NAME, "feature-owner")
	name, err := attrs.Encode()
	if err != nil {
		return false, err
	}
	flags := netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: []byte{0, 0, 0, ownedTable}} // big-endian
	flagged, err := netlink.MarshalAttributes([]netlink.Attribute{flags})
	if err != nil {
		return false, err
	}
	batch := []netlink.Message{
		fence(unix.NFNL_MSG_BATCH_BEGIN),
		message(unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Acknowledge, append(name, flagged...)),
		message(unix.NFT_MSG_DELTABLE, 0, name),
		fence(unix.NFNL_MSG_BATCH_END),
	}
	if _, err := conn.SendMessages(batch); err != nil {
		return false, fmt.Errorf("ask for owned tables: %w", err)
	}
	switch _, err := conn.Receive(); {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for owned tables: %w", err)
	}
	return true, nil
}

// fence is the message that begins or ends a transaction.
func fence(kind netlink.HeaderType) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

func message(kind netlink.HeaderType, flags netlink.HeaderFlags, attrs []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: netlink.Request | flags},
		Data:   append([]byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
}

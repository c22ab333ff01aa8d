package otherproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// family is an address family of nf_tables.
type family uint8

const (
	ipv4 family = unix.NFPROTO_IPV4
	ipv6 family = unix.NFPROTO_IPV6
)

func families() []family { return []family{ipv4, ipv6} }

func (f family) String() string {
	if f == ipv6 {
		return "ip6"
	}
	return "ip"
}

// conn is a socket to nf_tables.
type conn struct{ *netlink.Conn }

func dial() (*conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &conn{c}, nil
}

// attribute is a netlink attribute with numbers in network byte order.
type attribute struct {
	kind  uint16
	value []byte
}

func textAttribute(kind uint16, value string) attribute {
	return attribute{kind, append([]byte(value), 0)}
}

func uint64Attribute(kind uint16, value uint64) attribute {
	return attribute{kind, binary.BigEndian.AppendUint64(nil, value)}
}

// message makes a message to nf_tables.
func message(kind uint16, flags netlink.HeaderFlags, f family, attributes ...attribute) netlink.Message {
	data := []byte{byte(f), unix.NFNETLINK_V0, 0, 0}
	for _, a := range attributes {
		data = binary.NativeEndian.AppendUint16(data, uint16(unix.SizeofNlAttr+len(a.value)))
		data = binary.NativeEndian.AppendUint16(data, a.kind)
		data = append(data, a.value...)
		for len(data)%unix.NLA_ALIGNTO != 0 {
			data = append(data, 0)
		}
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags}, Data: data,
	}
}

// ask sends a request and visits the attributes of each object of the answer. An object that is
// not there, or a kernel without the family, is no error and no object.
func (c *conn) ask(kind uint16, flags netlink.HeaderFlags, f family, visit func(attributes) error, with ...attribute) error {
	answers, err := c.Execute(message(kind, flags, f, with...))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, m := range answers {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfgenLen {
			continue
		}
		a, err := parse(m.Data[nfgenLen:])
		if err == nil {
			err = visit(a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nfgenLen is the length of a struct nfgenmsg.
const nfgenLen = 4

// attributes are the attributes of an object by their kinds.
type attributes map[uint16][]byte

func parse(b []byte) (attributes, error) {
	list, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return nil, fmt.Errorf("read netlink attributes: %w", err)
	}
	a := attributes{}
	for _, v := range list {
		a[v.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = v.Data
	}
	return a, nil
}

func (a attributes) text(kind uint16) string { return strings.TrimRight(string(a[kind]), "\x00") }

func (a attributes) uint64(kind uint16) uint64 {
	if b := a[kind]; len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (a attributes) uint32(kind uint16) uint32 {
	if b := a[kind]; len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// nest returns the attributes in an attribute.
func (a attributes) nest(kind uint16) (attributes, error) { return parse(a[kind]) }

// generation is the number of the ruleset. Each transaction raises it.
func (c *conn) generation() (uint32, error) {
	var generation uint32
	err := c.ask(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, func(a attributes) error {
		generation = a.uint32(unix.NFTA_GEN_ID)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read the generation of the ruleset: %w", err)
	}
	return generation, nil
}

// nfnlBatchGenID is NFNL_BATCH_GENID, which x/sys/unix lacks: the kernel refuses a transaction
// (ERESTART) if the ruleset has another generation.
const nfnlBatchGenID = 1

// commit carries out the messages as one transaction on the ruleset of that generation.
func commit(generation uint32, messages []netlink.Message) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	fence := func(kind uint16, flags netlink.HeaderFlags, with ...attribute) netlink.Message {
		m := message(0, flags, unix.AF_UNSPEC, with...)
		m.Header.Type = netlink.HeaderType(kind)
		binary.BigEndian.PutUint16(m.Data[2:], unix.NFNL_SUBSYS_NFTABLES) // res_id
		return m
	}
	genID := attribute{nfnlBatchGenID, binary.BigEndian.AppendUint32(nil, generation)}
	batch := append([]netlink.Message{fence(unix.NFNL_MSG_BATCH_BEGIN, 0, genID)}, messages...)
	batch = append(batch, fence(unix.NFNL_MSG_BATCH_END, 0))
	size := 0
	for _, m := range batch {
		size += unix.SizeofNlMsghdr + len(m.Data) + unix.NLMSG_ALIGNTO
	}
	if err := c.SetWriteBuffer(size); err != nil {
		return fmt.Errorf("set send buffer size: %w", err)
	}
	if _, err := c.SendMessages(batch); err != nil {
		return err
	}
	// The kernel has carried out the transaction by now. It answers only refusals, unless
	// asked: so a last request tells that no refusal is queued before its answer.
	_, err = c.Execute(message(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC))
	switch {
	case errors.Is(err, unix.ERESTART), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (needs CAP_NET_ADMIN in the network namespace, and a table that no process owns)", err)
	}
	return err
}

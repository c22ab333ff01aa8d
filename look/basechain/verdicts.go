package basechain

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// verdictsOf reads the verdicts in a map. The library that reads rules does not read these.
func verdictsOf(table *nftables.Table, name string) ([]expr.Verdict, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer conn.Close()
	request, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(table.Name + "\x00")},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(name + "\x00")},
	})
	if err != nil {
		return nil, err
	}
	const nfgenLen = 4
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{byte(table.Family), unix.NFNETLINK_V0, 0, 0}, request...),
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", name, err)
	}
	var verdicts []expr.Verdict
	for _, m := range answers {
		if len(m.Data) < nfgenLen {
			continue
		}
		for _, element := range attributes(attribute(m.Data[nfgenLen:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			data := attribute(element.Data, unix.NFTA_SET_ELEM_DATA)
			verdict := attribute(data, unix.NFTA_DATA_VERDICT)
			code := attribute(verdict, unix.NFTA_VERDICT_CODE)
			if len(code) != 4 {
				continue
			}
			verdicts = append(verdicts, expr.Verdict{
				Kind: expr.VerdictKind(int32(binary.BigEndian.Uint32(code))), Chain: strings.TrimRight(string(attribute(verdict, unix.NFTA_VERDICT_CHAIN)), "\x00"),
			})
		}
	}
	return verdicts, nil
}

// attributes splits attributes. The kernel writes well-formed ones; of others there are none.
func attributes(b []byte) []netlink.Attribute {
	list, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return nil
	}
	return list
}

// attribute returns the first attribute of a type, or nil.
func attribute(b []byte, kind uint16) []byte {
	for _, a := range attributes(b) {
		if a.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return a.Data
		}
	}
	return nil
}

package conntrack

import (
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"nftproxy/test/testnet"
)

// fill creates the flows with the numbers from, up to but not including to, over
// ctnetlink.
func fill(b testing.TB, ns *testnet.Namespace, from, to int, flow func(int) Flow) {
	b.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd(), MessageBufferSize: 4096})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const most = 128 // the number of answers that fit into a socket's default memory
	for from < to {
		batch := make([]netlink.Message, min(most, to-from))
		for i := range batch {
			f := flow(from + i)
			batch[i] = createRequest(&f)
		}
		from += len(batch)
		if _, err := conn.SendMessages(batch); err != nil {
			b.Fatal(err)
		}
		for range batch {
			if _, err := conn.Receive(); err != nil {
				b.Fatalf("create flows up to %d: %v", from, err)
			}
		}
	}
}

// createRequest makes the request for an entry like that of a first packet. It has DNAT
// if the reply's source is another address than the destination.
func createRequest(f *Flow) netlink.Message {
	const (
		ctNew            = 0
		ctaNATDst        = 13
		ctaNATV4MinIP    = 1
		ctaNATV6MinIP    = 4
		ctaNATProto      = 3
		ctaProtoNATPorts = 1
		confirmed        = 1 << 3
	)
	family, src, dst, minIP := netfilter.ProtoIPv4, uint16(ctaIPv4Src), uint16(ctaIPv4Dst), uint16(ctaNATV4MinIP)
	if f.V6() {
		family, src, dst, minIP = netfilter.ProtoIPv6, ctaIPv6Src, ctaIPv6Dst, ctaNATV6MinIP
	}
	tuple := func(kind uint16, t Tuple) netfilter.Attribute {
		return nested(kind,
			nested(ctaTupleIP,
				netfilter.Attribute{Type: src, Data: t.Src.Addr().AsSlice()},
				netfilter.Attribute{Type: dst, Data: t.Dst.Addr().AsSlice()}),
			nested(ctaTupleProto, netfilter.Attribute{Type: ctaProtoNum, Data: []byte{uint8(f.Protocol)}},
				be16(ctaProtoSrcPort, t.Src.Port()), be16(ctaProtoDstPort, t.Dst.Port())))
	}
	attrs := []netfilter.Attribute{
		tuple(ctaTupleOrig, f.Original), tuple(ctaTupleReply, Tuple{f.Original.Dst, f.Original.Src}),
		be32(ctaStatus, confirmed), be32(ctaTimeout, 3600),
	}
	if f.Reply.Src != f.Original.Dst {
		attrs = append(attrs, nested(ctaNATDst,
			netfilter.Attribute{Type: minIP, Data: f.Reply.Src.Addr().AsSlice()},
			nested(ctaNATProto, be16(ctaProtoNATPorts, f.Reply.Src.Port()))))
	}
	return request(ctNew, family, netlink.Create|netlink.Excl|netlink.Acknowledge, attrs...)
}

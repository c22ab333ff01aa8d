package conntrack

import (
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
	"nftproxy/test/lib/testnet"
)

// fill creates the flows with the numbers from, up to but not including to, over
// ctnetlink.
func fill(b testing.TB, ns *testnet.Namespace, from, to int, flow func(int) Flow) {
	b.Helper()
	s, err := nfnetlink.Dial(nfnetlink.Config{NetNS: ns.Fd()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	const most = 128 // the number of answers that fit into a socket's default memory
	for from < to {
		n := min(most, to-from)
		var batch nfnetlink.Encoder
		for i := range n {
			f := flow(from + i)
			addCreation(&batch, &f)
		}
		from += n
		if err := s.Send(batch.B); err != nil {
			b.Fatal(err)
		}
		for range n {
			datagram, err := s.Queued()
			if err != nil {
				b.Fatalf("create flows up to %d: %v", from, err)
			}
			for m := range nfnetlink.Messages(datagram) {
				if err := m.Err(); err != nil {
					b.Fatalf("create flows up to %d: %v", from, err)
				}
			}
		}
	}
}

// addCreation adds the request for an entry like that of a first packet. It has DNAT
// if the reply's source is another address than the destination.
func addCreation(e *nfnetlink.Encoder, f *Flow) {
	const (
		ctNew            = 0
		ctaNATDst        = 13
		ctaNATV4MinIP    = 1
		ctaNATV6MinIP    = 4
		ctaNATProto      = 3
		ctaProtoNATPorts = 1
		confirmed        = 1 << 3
	)
	at := e.BeginMessage(unix.NFNL_SUBSYS_CTNETLINK<<8|ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, 0,
		uint8(f.Family()))
	f.addTuple(e, ctaTupleOrig, f.Original)
	f.addTuple(e, ctaTupleReply, Tuple{f.Original.Dst, f.Original.Src})
	e.Uint32(ctaStatus, confirmed).Uint32(ctaTimeout, 3600)
	if f.Reply.Src != f.Original.Dst {
		minIP := uint16(ctaNATV4MinIP)
		if f.Family() == ip.V6 {
			minIP = ctaNATV6MinIP
		}
		nat := e.BeginNest(ctaNATDst)
		e.Bytes(minIP, f.Reply.Src.Addr().AsSlice())
		proto := e.BeginNest(ctaNATProto)
		e.Uint16(ctaProtoNATPorts, f.Reply.Src.Port()).EndNest(proto)
		e.EndNest(nat)
	}
	e.EndMessage(at)
}

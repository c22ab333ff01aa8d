package livetrace

import (
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
	"nftproxy/test/check"
)

// FuzzEvent: whatever a kernel reports, an event is read without a panic and in bounded
// memory.
func FuzzEvent(f *testing.F) {
	const trace = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE
	for _, version := range []byte{0x45, 0x60} {
		e := nfnetlink.Encoder{B: []byte{unix.NFPROTO_IPV4, 0, 0, 0}}
		e.Text(unix.NFTA_TRACE_TABLE, "nftproxy").Text(unix.NFTA_TRACE_CHAIN, "prerouting")
		e.Uint64(unix.NFTA_TRACE_RULE_HANDLE, 7).Uint32(unix.NFTA_TRACE_TYPE,
			unix.NFT_TRACETYPE_RULE).Uint32(unix.NFTA_TRACE_ID, 1)
		verdict, jump := e.BeginNest(unix.NFTA_TRACE_VERDICT), int32(unix.NFT_JUMP)
		e.Uint32(unix.NFTA_VERDICT_CODE, uint32(jump)).Text(unix.NFTA_VERDICT_CHAIN, "dispatch").EndNest(verdict)
		header := make([]byte, 40)
		header[0] = version
		e.Bytes(unix.NFTA_TRACE_NETWORK_HEADER, header).Bytes(unix.NFTA_TRACE_TRANSPORT_HEADER, []byte{1, 2, 3, 4})
		f.Add(uint16(trace), e.B)
	}
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		check.Bounded(t, 1<<20+64*uint64(len(data)), func() {
			e, ok, err := parseEvent(nfnetlink.Message{Kind: kind, Body: data})
			if ok && err != nil {
				t.Errorf("both an event and an error: %+v, %v", e, err)
			}
			if p := e.Packet; p != nil && (!p.Source.IsValid() || p.Source.Addr().Is6() != p.Destination.Addr().Is6()) {
				t.Errorf("from %v to %v", p.Source, p.Destination)
			}
			e.EndsChain()
			if nft.FamilyText(e.Family) == "" {
				t.Error("a family without a name")
			}
		})
	})
}

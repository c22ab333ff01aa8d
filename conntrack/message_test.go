package conntrack

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nfnetlink"
)

// deletion is the message that deletes an entry.
func deletion(f *Flow) nfnetlink.Message {
	var e nfnetlink.Encoder
	addDeletion(&e, f, 0, 1)
	for m := range nfnetlink.Messages(e.B) {
		return m
	}
	return nfnetlink.Message{}
}

// A deletion names the flow from which it was made.
func TestDeleteRequestNamesFlow(t *testing.T) {
	v4 := Tuple{netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.96.0.1:2048")}
	v6 := Tuple{netip.MustParseAddrPort("[fd00::1]:40000"), netip.MustParseAddrPort("[fd00:96::1]:32768")}
	for _, want := range []Flow{
		{Protocol: service.TCP, Original: v4, ID: 1},
		{Protocol: service.UDP, Original: v6, ID: 0xfffffffe},
		{Protocol: service.SCTP, Original: v4, ID: 3, Zone: 65535},
		{Protocol: icmp, Original: v4, ID: 4},
		{Protocol: icmpv6, Original: v6, ID: 5},
	} {
		m := deletion(&want)
		got, err := parseFlow(m.Attributes())
		if err != nil || got != want {
			t.Errorf("deletion of %v ID %d zone %d names %v ID %d zone %d, %v", want, want.ID, want.Zone, got, got.ID, got.Zone,
				err)
		}
		if want.Family() != ip.Family(m.Body[0]) {
			t.Errorf("deletion of %v is of family %d", want, m.Body[0])
		}
	}
}

// The attribute of a zone for one direction is in that direction's tuple.
func TestParseFlowZoneOfOneDirection(t *testing.T) {
	f := flow(service.UDP, "10.96.0.1:80", 0)
	var whole, tuple nfnetlink.Encoder
	f.addTuple(&whole, ctaTupleOrig, f.Original)
	tuple.Bytes(ctaTupleOrig, slices.Concat(nfnetlink.Attributes(whole.B).Get(ctaTupleOrig),
		new(nfnetlink.Encoder).Uint16(ctaTupleZone, 7).B))
	got, err := parseFlow(tuple.B)
	want := Flow{Protocol: f.Protocol, Original: f.Original, Zone: 7}
	if err != nil || got != want {
		t.Errorf("parseFlow() = %v in zone %d, %v, want %v in zone 7", got, got.Zone, err, want)
	}
}

// A truncated message is an error and not a wrong flow, unless only whole attributes are
// missing.
func TestParseFlowTruncated(t *testing.T) {
	f := flow(service.UDP, "10.96.0.1:80", 0)
	f.ID = 7
	data := deletion(&f).Attributes()
	whole := map[int]bool{len(data): true, len(data) - 8: true} // without the ID
	for n := range len(data) + 1 {
		_, err := parseFlow(data[:n])
		if (err == nil) != whole[n] {
			t.Errorf("parse of %d bytes of %d: %v", n, len(data), err)
		}
		if err != nil && !errors.Is(err, nfnetlink.ErrMalformed) {
			t.Errorf("parse of %d bytes of %d: %v, want %v", n, len(data), err, nfnetlink.ErrMalformed)
		}
	}
}

func FuzzParseFlow(f *testing.F) {
	for _, seed := range []Flow{flow(service.UDP, "10.96.0.1:80", 0), flow(icmpv6, "[fd00::1]:128", 0)} {
		f.Add([]byte(deletion(&seed).Attributes()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseFlow(data)
		if err == nil && !got.Original.Dst.IsValid() {
			t.Errorf("flow without destination: %v", got)
		}
	})
}

package conntrack

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ti-mo/netfilter"

	"nftproxy/model/service"
)

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
		m := deleteRequest(&want)
		got, err := parseFlow(m.Data)
		if err != nil || got != want {
			t.Errorf("deletion of %v ID %d zone %d names %v ID %d zone %d, %v", want, want.ID, want.Zone, got, got.ID, got.Zone, err)
		}
		if want.V6() != (m.Data[0] == 10) { // AF_INET6
			t.Errorf("deletion of %v is of family %d", want, m.Data[0])
		}
	}
}

// The attribute of a zone for one direction is in that direction's tuple.
func TestParseFlowZoneOfOneDirection(t *testing.T) {
	f := flow(service.UDP, "10.96.0.1:80", 0)
	addrs := nested(ctaTupleIP,
		netfilter.Attribute{Type: ctaIPv4Src, Data: f.Original.Src.Addr().AsSlice()},
		netfilter.Attribute{Type: ctaIPv4Dst, Data: f.Original.Dst.Addr().AsSlice()})
	m := request(ctGet, netfilter.ProtoIPv4, 0, nested(ctaTupleOrig, addrs, nested(ctaTupleProto, protoAttributes(&f)...), be16(ctaTupleZone, 7)))
	got, err := parseFlow(m.Data)
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
	data := deleteRequest(&f).Data
	whole := map[int]bool{len(data): true, len(data) - 8: true} // without the ID
	for n := range len(data) + 1 {
		_, err := parseFlow(data[:n])
		if (err == nil) != whole[n] {
			t.Errorf("parse of %d bytes of %d: %v", n, len(data), err)
		}
		if err != nil && !errors.Is(err, errMalformed) {
			t.Errorf("parse of %d bytes of %d: %v, want %v", n, len(data), err, errMalformed)
		}
	}
}

func FuzzParseFlow(f *testing.F) {
	for _, seed := range []Flow{flow(service.UDP, "10.96.0.1:80", 0), flow(icmpv6, "[fd00::1]:128", 0)} {
		f.Add(deleteRequest(&seed).Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseFlow(data)
		if err == nil && !got.Original.Dst.IsValid() {
			t.Errorf("flow without destination: %v", got)
		}
	})
}

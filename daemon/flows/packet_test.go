package flows

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"nftproxy/model/flows"
	"nftproxy/model/service"
)

// bytesOf reads bytes in hexadecimal, with blanks.
func bytesOf(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The headers of packets from 10.0.0.1 port 1024 to 10.96.0.1 port 80, and the same in IPv6.
const (
	v4   = "45000028 00004000 40060000 0a000001 0a600001"
	udp  = "45000028 00004000 40110000 0a000001 0a600001"
	v6   = "60000000 00140640 fd000000000000000000000000000001 fd000000000000000000000000000002"
	tcp  = "0400 0050 00000000 00000000 5002 0000 0000 0000"
	sctp = "45000028 00004000 40840000 0a000001 0a600001" + "0400 0050 00000000 00000000"
	rst  = "0400 0050 00000000 00000000 5014 0000 0000 0000"
)

func TestParse(t *testing.T) {
	k4 := flows.Key{Protocol: service.TCP, Src: netip.MustParseAddrPort("10.0.0.1:1024"),
		Dst: netip.MustParseAddrPort("10.96.0.1:80")}
	k6 := flows.Key{Protocol: service.TCP, Src: netip.MustParseAddrPort("[fd00::1]:1024"),
		Dst: netip.MustParseAddrPort("[fd00::2]:80")}
	u4 := k4
	u4.Protocol = service.UDP
	s4 := k4
	s4.Protocol = service.SCTP
	icmp4 := "45000038 00000000 40010000 0a600001 0a000001 0303 0000 00000000"
	for _, c := range []struct {
		name, packet string
		want         packet
		ok           bool
	}{
		{"a SYN", v4 + tcp, packet{Key: k4}, true},
		{"a reset", v4 + rst, packet{Key: k4, reset: true}, true},
		{"IPv6", v6 + tcp, packet{Key: k6}, true},
		{"a hop-by-hop header", strings.Replace(v6, "0640", "0040", 1) + "0600000000000000" + tcp, packet{Key: k6}, true},
		{"UDP", udp + "0400 0050 0008 0000", packet{Key: u4}, true},
		{"an INIT of SCTP", sctp + "0100 0014", packet{Key: s4}, true},
		{"an ABORT of SCTP", sctp + "0601 0004", packet{Key: s4, reset: true}, true},
		{"SCTP without a chunk", sctp, packet{Key: s4}, true},
		{"port unreachable", icmp4 + udp + "0400 0050 0008 0000", packet{Key: u4, icmp: true}, true},
		{"too big", strings.Replace(icmp4, "0303", "0304", 1) + udp + "0400 0050 0008 0000", packet{}, false},
		{"an ICMP error with too little", icmp4 + udp[:20], packet{}, false},
		{"an extension header with too little", strings.Replace(v6, "0640", "0040", 1) + "06ff", packet{}, false},
		{"options beyond the end", "4f" + v4[2:], packet{}, false},
		{"nothing", "", packet{}, false},
	} {
		if got, ok := parse(bytesOf(t, c.packet)); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

// FuzzParse: no bytes make parse panic.
func FuzzParse(f *testing.F) {
	for _, text := range []string{v4 + tcp, v6 + rst} {
		b, _ := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { parse(b) })
}

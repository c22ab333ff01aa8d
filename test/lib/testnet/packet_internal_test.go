package testnet

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSCTPRoundTrip(t *testing.T) {
	for _, want := range []sctpPacket{
		{srcPort: 5000, dstPort: 3868, chunk: chunkInit, initiateTag: 7},
		{srcPort: 3868, dstPort: 5000, chunk: chunkInitAck, verificationTag: 7, initiateTag: 8,
			cookie: []byte("a 10.0.0.1:5000\n")},
		{srcPort: 3868, dstPort: 5000, chunk: chunkInitAck, verificationTag: 7, initiateTag: 8, cookie: []byte("odd")},
	} {
		got, err := parseSCTP(want.marshal())
		if err != nil {
			t.Errorf("%+v: %v", want, err)
		} else if diff := cmp.Diff(want, got, cmp.AllowUnexported(sctpPacket{})); diff != "" {
			t.Errorf("round trip (-want +got):\n%s", diff)
		}
	}
}

func TestSCTPDamage(t *testing.T) {
	packet := sctpPacket{srcPort: 1, dstPort: 2, chunk: chunkInitAck, initiateTag: 3, cookie: []byte("cookie")}.marshal()
	for i := range packet {
		damaged := bytes.Clone(packet)
		damaged[i] ^= 1
		if _, err := parseSCTP(damaged); err == nil {
			t.Errorf("a flipped bit in byte %d went unnoticed", i)
		}
		if _, err := parseSCTP(packet[:i]); err == nil {
			t.Errorf("a packet cut at byte %d was accepted", i)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sctpPacket{srcPort: 1, dstPort: 2, chunk: chunkInitAck, initiateTag: 3, cookie: []byte("cookie")}.marshal())
	f.Add([]byte{0x45, 20: 1})
	f.Add([]byte{0x60, 40: 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parsePacket(b) // must not panic
		if len(b) >= commonHeader {
			sealed := bytes.Clone(b)
			sum := checksum(sealed)
			sealed[8], sealed[9], sealed[10], sealed[11] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
			b = sealed
		}
		if p, err := parseSCTP(b); err == nil && p.chunk != chunkInit && p.chunk != chunkInitAck {
			t.Errorf("accepted chunk type %d", p.chunk)
		}
	})
}

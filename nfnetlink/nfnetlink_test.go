package nfnetlink_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// TestEncoder: what the Encoder writes, mdlayher/netlink and Strict read alike.
func TestEncoder(t *testing.T) {
	var e nfnetlink.Encoder
	at := e.BeginMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE, 7, unix.NFPROTO_IPV6)
	e.Text(1, "text").Uint8(2, 0xab).Uint16(3, 0xabcd).Uint32(4, 0xabcdef01).Uint64(5, 1<<40).Raw(6, "raw").Bytes(7,
		netip.MustParseAddr("fd00::1").AsSlice())
	nest := e.BeginNest(8)
	e.Uint16(9, 9).EndNest(nest)
	e.EndMessage(at)
	var whole netlink.Message
	if err := whole.UnmarshalBinary(e.B); err != nil {
		t.Fatal(err)
	}
	attributes := whole.Data[nfnetlink.BodyAt-nfnetlink.HeaderLen:]
	theirs, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		t.Fatal(err)
	}
	theirs.ByteOrder = binary.BigEndian
	for kind, v := range nfnetlink.Attributes(attributes).Strict(&err) {
		if !theirs.Next() || theirs.Type() != kind {
			t.Fatalf("attribute %d, the library has %d", kind, theirs.Type())
		}
		var ours, want any
		switch kind {
		case 1, 6:
			ours, want = string(v.WithoutZero()), theirs.String()
		case 2:
			ours, want = v.ReadUint8(&err), theirs.Uint8()
		case 3:
			ours, want = v.ReadUint16(&err), theirs.Uint16()
		case 4:
			ours, want = v.ReadUint32(&err), theirs.Uint32()
		case 5:
			ours, want = v.ReadUint64(&err), theirs.Uint64()
		case 7:
			ours, want = v.ReadAddr(&err).String(), "fd00::1"
		case 8:
			ours, want = v.Get(9).ReadUint16(&err), uint16(9)
		}
		if ours != want {
			t.Errorf("attribute %d is %v, want %v", kind, ours, want)
		}
	}
	if err != nil || theirs.Err() != nil || theirs.Next() {
		t.Error(err, theirs.Err())
	}
	for m := range nfnetlink.Messages(e.B) {
		if m.Kind != uint16(whole.Header.Type) || m.Seq != 7 || m.Body[0] != unix.NFPROTO_IPV6 ||
			m.Attributes().Text(1) != "text" || m.Attributes().Uint32(4) != 0xabcdef01 || m.Attributes().Uint64(5) != 1<<40 {
			t.Errorf("message %+v", m)
		}
	}
}

// FuzzAttributes: Strict finds the attributes that mdlayher/netlink finds, and an error wherever that has one. All has
// the same up to the first malformed one.
func FuzzAttributes(f *testing.F) {
	var e nfnetlink.Encoder
	f.Add(e.Text(1, "x").Uint16(2, 3).Uint64(4, 5).B)
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{9, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		want, wantErr := netlink.UnmarshalAttributes(b)
		var err error
		n := 0
		for kind, v := range nfnetlink.Attributes(b).Strict(&err) {
			if n < len(want) && (kind != want[n].Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) ||
				string(v) != string(want[n].Data)) {
				t.Errorf("attribute %d is %d %x, want %+v", n, kind, v, want[n])
			}
			n++
		}
		if err == nil && (wantErr != nil || n != len(want)) || err != nil && !errors.Is(err, nfnetlink.ErrMalformed) {
			t.Errorf("%d attributes and %v, want %d and %v", n, err, len(want), wantErr)
		}
		for kind, v := range nfnetlink.Attributes(b).All() {
			if n--; nfnetlink.Attributes(b).Get(kind) == nil || len(v) > len(b) {
				t.Errorf("attribute %d is missing", kind)
			}
		}
		if n != 0 {
			t.Errorf("Attributes differ by %d", n)
		}
	})
}

// FuzzMessages: no datagram makes the readers of messages and answers panic.
func FuzzMessages(f *testing.F) {
	var e nfnetlink.Encoder
	e.EndBatch(0, 1)
	f.Add(e.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		for m := range nfnetlink.Messages(b) {
			_, _ = m.Answer()
			_ = m.Err()
			m.Attributes().Get(1).Text(1)
		}
	})
}

// BenchmarkEncode compares the cost of one element of a map.
func BenchmarkEncode(b *testing.B) {
	key := make([]byte, 16)
	b.Run("nfnetlink", func(b *testing.B) {
		b.ReportAllocs()
		var e nfnetlink.Encoder
		for b.Loop() {
			e.B = e.B[:0]
			element := e.BeginNest(unix.NFTA_LIST_ELEM)
			for _, kind := range []uint16{unix.NFTA_SET_ELEM_KEY, unix.NFTA_SET_ELEM_DATA} {
				value := e.BeginNest(kind)
				e.Bytes(unix.NFTA_DATA_VALUE, key).EndNest(value)
			}
			e.EndNest(element)
		}
	})
	b.Run("mdlayher", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e := netlink.NewAttributeEncoder()
			e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
				for _, kind := range []uint16{unix.NFTA_SET_ELEM_KEY, unix.NFTA_SET_ELEM_DATA} {
					e.Nested(kind, func(e *netlink.AttributeEncoder) error {
						e.Bytes(unix.NFTA_DATA_VALUE, key)
						return nil
					})
				}
				return nil
			})
			if _, err := e.Encode(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDecode compares the cost of one tuple of an entry of connection tracking.
func BenchmarkDecode(b *testing.B) {
	var e nfnetlink.Encoder
	tuple := e.BeginNest(1)
	addrs := e.BeginNest(1)
	e.Bytes(1, make([]byte, 4)).Bytes(2, make([]byte, 4)).EndNest(addrs)
	proto := e.BeginNest(2)
	e.Uint8(1, 6).Uint16(2, 40000).Uint16(3, 80).EndNest(proto)
	e.EndNest(tuple)
	b.Run("nfnetlink", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var err error
			for _, v := range nfnetlink.Attributes(e.B).Strict(&err) {
				for _, v := range v.Strict(&err) {
					for kind, v := range v.Strict(&err) {
						if kind == 3 && len(v) == 2 && v.ReadUint16(&err) != 80 {
							b.Fatal("another port")
						}
					}
				}
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("mdlayher", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d, err := netlink.NewAttributeDecoder(e.B)
			if err != nil {
				b.Fatal(err)
			}
			for d.Next() {
				d.Nested(func(d *netlink.AttributeDecoder) error {
					for d.Next() {
						d.Nested(func(d *netlink.AttributeDecoder) error {
							d.ByteOrder = binary.BigEndian
							for d.Next() {
								if d.Type() == 3 && len(d.Bytes()) == 2 && d.Uint16() != 80 {
									b.Fatal("another port")
								}
							}
							return nil
						})
					}
					return nil
				})
			}
			if d.Err() != nil {
				b.Fatal(d.Err())
			}
		}
	})
}

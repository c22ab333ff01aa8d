package otherproxy

import (
	"bytes"
	"encoding/binary"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/test/check"
)

// appendEntry adds an entry of IPv4 with one match, and a target of that name and data.
func appendEntry(b []byte, comment, target string, data []byte) []byte {
	targetAt, size := entryLayout(ip.V4)
	match := append(make([]byte, xtHeader), comment...)
	copy(match[xtName:], "comment")
	binary.NativeEndian.PutUint16(match, uint16(len(match)))
	if comment == "" {
		match = nil
	}
	t := append(make([]byte, xtHeader), data...)
	binary.NativeEndian.PutUint16(t, uint16(len(t)))
	copy(t[xtName:], target)
	e := append(append(make([]byte, size), match...), t...)
	binary.NativeEndian.PutUint16(e[targetAt:], uint16(size+len(match)))
	binary.NativeEndian.PutUint16(e[targetAt+2:], uint16(len(e)))
	return append(b, e...)
}

// FuzzBlob: whatever a kernel says the table of iptables-legacy is, it is split without a
// panic and in bounded memory. Its entries are the table again, and without some of them it
// is a table that can be split again.
func FuzzBlob(f *testing.F) {
	verdict := func(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }
	head := appendEntry(nil, "", "ERROR", append([]byte("KUBE-SERVICES"), make([]byte, 17)...))
	table := appendEntry(nil, "kubernetes service portals", "", verdict(0))
	binary.NativeEndian.PutUint32(table[len(table)-4:], uint32(len(table)+len(head)))
	jump := append(table, head...)
	jump = appendEntry(jump, "ns/svc:http", "REJECT", verdict(3))
	jump = appendEntry(jump, "", "", verdict(-5))
	f.Add(jump, uint32(1), uint32(0), false)
	f.Add(head, uint32(0x1f), uint32(7), true)
	f.Fuzz(func(t *testing.T, data []byte, valid, drop uint32, v6 bool) {
		check.Bounded(t, 1<<20+64*uint64(len(data)), func() {
			b := &blob{family: ip.V4, name: "nat", valid: valid}
			if v6 {
				b.family = ip.V6
			}
			if b.parseEntries(data) != nil {
				return
			}
			var raw []byte
			for _, e := range b.entries {
				raw = append(raw, e.raw...)
			}
			if !bytes.Equal(raw, data) || int(b.size()) != len(data) {
				t.Fatalf("%d bytes in %d entries, of %d", len(raw), len(b.entries), len(data))
			}
			i := 0
			after, kept, err := b.without(func(e *entry) bool {
				i++
				return drop>>(i%32)&1 == 1 && !e.head && e.target == ""
			})
			if err != nil {
				return
			}
			raw = raw[:0]
			for _, e := range after.entries {
				raw = append(raw, e.raw...)
			}
			again := &blob{family: b.family, name: "nat", valid: valid, hook: after.hook, policy: after.policy}
			if err := again.parseEntries(raw); err != nil && len(kept) == len(b.entries) {
				t.Errorf("the table cannot be split again: %v", err)
			}
		})
	})
}

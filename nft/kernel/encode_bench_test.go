package kernel

import (
	"fmt"
	"testing"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// BenchmarkEncode encodes 100,000 elements of a data map, always into the same
// memory.
func BenchmarkEncode(b *testing.B) {
	const n = 100_000
	id := nft.TableID{Family: nft.IPv4, Name: "nftproxy"}
	set := &nft.Set{Name: "endpoints", Key: nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport, nft.Index},
		Data: nft.Fields{nft.Daddr, nft.Dport}}
	op := nft.AddElements{Table: id, Set: set}
	for i := range n {
		key := nft.AppendPort(nft.AppendProto([]byte{10, 96, byte(i >> 8), byte(i)}, 6), 80)
		op.Elements = append(op.Elements, nft.OwnedElement{Part: fmt.Sprint(i), Element: nft.Element{
			Set: set.Name, Key: nft.Value(nft.AppendIndex(key, uint32(i>>16))),
			Data: nft.Value(nft.AppendPort([]byte{10, 0, 0, 1}, 80)),
		}})
	}
	batch := nft.Batch{Ops: []nft.Op{op}}
	var e batchEncoder
	b.ReportAllocs()
	for b.Loop() {
		e = batchEncoder{encoder: encoder{nfnetlink.Encoder{B: e.B[:0]}}, spans: e.spans[:0]}
		if err := e.addBatch(batch); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(e.B)))
}

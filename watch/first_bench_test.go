package watch

import (
	"testing"

	"nftproxy/model/service"
)

// BenchmarkFirstSnapshot measures the work at the start, once the API server's lists have
// been decoded and converted. It puts the objects into the index, and makes the first
// snapshot.
func BenchmarkFirstSnapshot(b *testing.B) {
	var services, endpointSlices []any
	for i := range 10_000 {
		services = append(services, convertService(uniformService(i)))
		endpointSlices = append(endpointSlices, convertSlice(uniformSlice(i, 10)))
	}
	fill := func() *Watcher {
		w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
		if err := newServiceStore(w).Replace(services, ""); err != nil {
			b.Fatal(err)
		}
		if err := newSliceStore(w).Replace(endpointSlices, ""); err != nil {
			b.Fatal(err)
		}
		return w
	}
	b.Run("index/10000x10", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fill()
		}
	})
	b.Run("flush/10000x10", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			w := fill()
			b.StartTimer()
			w.index.flush()
		}
	})
}

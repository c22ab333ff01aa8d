package watch

import (
	"fmt"
	"testing"

	"nftproxy/model/service"
)

// BenchmarkFirstSnapshot measures the work at the start, once the API server's lists have
// been decoded and converted. It puts the objects into the index, and makes the first
// snapshot.
func BenchmarkFirstSnapshot(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10_000, 10}, {44_000, 1}} {
		convert := func() (services []*serviceObject, endpointSlices []*sliceObject) {
			for i := range size.services {
				services = append(services, convertService(uniformService(i)))
				endpointSlices = append(endpointSlices, convertSlice(uniformSlice(i, size.endpoints)))
			}
			return services, endpointSlices
		}
		fill := func(services []*serviceObject, endpointSlices []*sliceObject) *Watcher {
			w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
			newListWatch(w, "services", (*index).knownServices).replace(services)
			newListWatch(w, "endpointslices", (*index).knownSlices).replace(endpointSlices)
			return w
		}
		name := fmt.Sprintf("%dx%d", size.services, size.endpoints)
		b.Run("index/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				services, endpointSlices := convert()
				b.StartTimer()
				fill(services, endpointSlices)
			}
		})
		b.Run("flush/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				w := fill(convert())
				b.StartTimer()
				w.index.flush()
			}
		})
	}
}

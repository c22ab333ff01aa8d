package watch

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"nftproxy/watch/wire"
)

// BenchmarkDecodeList measures the work on a list before it comes to the index, for each of its objects: from the API
// server's bytes to the converted object. Beside it stands the same with client-go's decoder.
func BenchmarkDecodeList(b *testing.B) {
	const objects = 1000
	for _, endpoints := range []int{1, 10, 100} {
		list := &discoveryv1.EndpointSliceList{}
		for i := range objects {
			list.Items = append(list.Items, *uniformSlice(i, endpoints))
		}
		benchmarkList(b, fmt.Sprintf("slices of %d", endpoints), encode(b, list, discoveryv1.SchemeGroupVersion), sliceKind(),
			func(o runtime.Object) {
				for i := range o.(*discoveryv1.EndpointSliceList).Items {
					convertSlice(&o.(*discoveryv1.EndpointSliceList).Items[i])
				}
			})
	}
	list := &corev1.ServiceList{}
	for i := range objects {
		list.Items = append(list.Items, *uniformService(i))
	}
	benchmarkList(b, "Services", encode(b, list, corev1.SchemeGroupVersion), serviceKind(), func(o runtime.Object) {
		for i := range o.(*corev1.ServiceList).Items {
			convertService(&o.(*corev1.ServiceList).Items[i])
		}
	})
}

func benchmarkList[K wire.Object](b *testing.B, name string, bytes []byte, kind wire.Kind[K],
	convert func(runtime.Object)) {
	b.Run(name+"/wire", func(b *testing.B) {
		in := newReader(bytes)
		b.ReportAllocs()
		for b.Loop() {
			in.rewind()
			if _, err := kind.ReadList(in.Reader); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name+"/client-go", func(b *testing.B) {
		decoder := scheme.Codecs.UniversalDeserializer()
		in := newReader(bytes)
		b.ReportAllocs()
		for b.Loop() {
			in.rewind()
			all, err := io.ReadAll(in.Reader)
			must(b, err)
			object, err := runtime.Decode(decoder, all)
			must(b, err)
			convert(object)
		}
	})
}

// reader reads the same bytes again and again.
type reader struct {
	*bufio.Reader
	from  *bytes.Reader
	bytes []byte
}

func newReader(b []byte) *reader {
	from := bytes.NewReader(b)
	return &reader{bufio.NewReaderSize(from, 64<<10), from, b}
}

func (r *reader) rewind() {
	r.from.Reset(r.bytes)
	r.Reset(r.from)
}

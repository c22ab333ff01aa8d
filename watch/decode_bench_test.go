package watch

import (
	"bytes"
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// BenchmarkDecode measures the work on an event before it comes to the index: from the
// API server's bytes to the decoded object.
func BenchmarkDecode(b *testing.B) {
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	decoder := scheme.Codecs.DecoderToVersion(serializer, discoveryv1.SchemeGroupVersion)
	for _, endpoints := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("slice of %d", endpoints), func(b *testing.B) {
			var wire bytes.Buffer
			encoder := scheme.Codecs.EncoderForVersion(serializer, discoveryv1.SchemeGroupVersion)
			if err := encoder.Encode(uniformSlice(5, endpoints), &wire); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(wire.Len()))
			b.ReportAllocs()
			for b.Loop() {
				object, _, err := decoder.Decode(wire.Bytes(), nil, nil)
				if err != nil {
					b.Fatal(err)
				}
				convertSlice(object.(*discoveryv1.EndpointSlice))
			}
		})
	}
}

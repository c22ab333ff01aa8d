package wire

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a kind of object, and how to decode it. Services and EndpointSlices make one.
type Kind struct {
	gvk      schema.GroupVersionKind
	resource string
	apiPath  string
	// newDecode returns a function that decodes one object after the other.
	newDecode func() func(message []byte) (runtime.Object, error)
}

// Services is the kind of Services. The Service that convert gets has its names, its time of creation, its spec, its
// status, and the labels and annotations with the keys of keep. It is gone when convert returns; its parts may be kept.
func Services(convert func(*corev1.Service) runtime.Object, keep ...string) Kind {
	return Kind{
		gvk: corev1.SchemeGroupVersion.WithKind("Service"), resource: "services", apiPath: "/api",
		newDecode: func() func([]byte) (runtime.Object, error) {
			var s corev1.Service
			return func(message []byte) (runtime.Object, error) {
				s = corev1.Service{}
				if err := decodeService(message, keep, &s); err != nil {
					return nil, err
				}
				return convert(&s), nil
			}
		},
	}
}

// EndpointSlices is the kind of EndpointSlices. The slice that convert gets has its names, its time of creation, its
// address type, its ports, the addresses, conditions, node and hints of its endpoints, and the labels and annotations
// with the keys of keep. It is gone when convert returns, with everything that it points to; its strings may be kept.
func EndpointSlices(convert func(*discoveryv1.EndpointSlice) runtime.Object, keep ...string) Kind {
	return Kind{
		gvk: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), resource: "endpointslices", apiPath: "/apis",
		newDecode: func() func([]byte) (runtime.Object, error) {
			d := &sliceDecoder{keep: keep}
			return func(message []byte) (runtime.Object, error) {
				s, err := d.decode(message)
				if err != nil {
					return nil, err
				}
				return convert(s), nil
			}
		},
	}
}

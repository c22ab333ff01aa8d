package wire

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is what a kind's objects are converted into. The objects of the API have the method, too.
type Object interface {
	// GetResourceVersion returns the version of the resource that the object was written at.
	GetResourceVersion() string
}

// Kind is a kind of object, and how to decode and convert it to K. Services, EndpointSlices and Whole make one.
type Kind[K Object] struct {
	gvk      schema.GroupVersionKind
	resource string
	// newDecode returns a function that decodes and converts one object after the other.
	newDecode func() func(message []byte) (K, error)
	// convert converts an object that client-go has decoded.
	convert func(runtime.Object) (K, error)
}

// newKind makes a kind whose objects are decoded by newDecode, or by client-go, and then converted.
func newKind[O runtime.Object, K Object](gvk schema.GroupVersionKind, resource string, convert func(O) K,
	newDecode func() func([]byte) (O, error)) Kind[K] {
	return Kind[K]{
		gvk: gvk, resource: resource,
		newDecode: func() func([]byte) (K, error) {
			decode := newDecode()
			return func(message []byte) (converted K, err error) {
				object, err := decode(message)
				if err != nil {
					return converted, err
				}
				return convert(object), nil
			}
		},
		convert: func(object runtime.Object) (converted K, err error) {
			o, ok := object.(O)
			if !ok {
				return converted, fmt.Errorf("it is a %T", object)
			}
			return convert(o), nil
		},
	}
}

// Services is the kind of Services. The Service that convert gets has its names, its time of creation, its spec, its
// status, and the labels and annotations with the keys of keep, where "prefix/" stands for all keys of that prefix. It
// is gone when convert returns; its parts may be kept.
func Services[K Object](convert func(*corev1.Service) K, keep ...string) Kind[K] {
	return newKind(corev1.SchemeGroupVersion.WithKind("Service"), "services", convert,
		func() func([]byte) (*corev1.Service, error) {
			var s corev1.Service
			return func(message []byte) (*corev1.Service, error) {
				s = corev1.Service{}
				return &s, decodeService(message, keep, &s)
			}
		})
}

// EndpointSlices is the kind of EndpointSlices. The slice that convert gets has its names, its time of creation, its
// address type, its ports, the addresses, conditions, node and hints of its endpoints, and the labels and annotations
// with the keys of keep. It is gone when convert returns, with everything that it points to; its strings may be kept.
func EndpointSlices[K Object](convert func(*discoveryv1.EndpointSlice) K, keep ...string) Kind[K] {
	return newKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), "endpointslices", convert,
		func() func([]byte) (*discoveryv1.EndpointSlice, error) {
			return (&sliceDecoder{keep: keep}).decode
		})
}

// Whole is a kind of which there are few objects, or small ones: convert gets all their fields.
func Whole[T any, O interface {
	*T
	runtime.Object
	Unmarshal([]byte) error
}, K Object](gvk schema.GroupVersionKind, resource string, convert func(O) K) Kind[K] {
	return newKind(gvk, resource, convert, func() func([]byte) (O, error) {
		return func(message []byte) (O, error) {
			object := O(new(T))
			return object, object.Unmarshal(message)
		}
	})
}

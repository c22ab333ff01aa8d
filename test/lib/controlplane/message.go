package controlplane

import (
	"bytes"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// Encode returns, as protobuf, an object or a list of a version, with the envelope that names its type.
func Encode(object runtime.Object, version runtime.GroupVersioner) ([]byte, error) {
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), version)
	var message bytes.Buffer
	if err := encoder.Encode(object, &message); err != nil {
		return nil, fmt.Errorf("encode %T: %w", object, err)
	}
	return message.Bytes(), nil
}

// WriteEvent writes an event of a watch with an object that Encode returned. The answer's content type is
// runtime.ContentTypeProtobuf with the parameter stream=watch.
func WriteEvent(w io.Writer, kind apiwatch.EventType, object []byte) error {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	stream := info.StreamSerializer
	encoder := streaming.NewEncoder(stream.Framer.NewFrameWriter(w), scheme.Codecs.EncoderForVersion(stream,
		corev1.SchemeGroupVersion))
	if err := encoder.Encode(&metav1.WatchEvent{Type: string(kind),
		Object: runtime.RawExtension{Raw: object}}); err != nil {
		return fmt.Errorf("encode an event of a watch: %w", err)
	}
	return nil
}

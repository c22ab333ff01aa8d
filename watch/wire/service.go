package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
)

// decodeService decodes a Service (k8s.io/api/core/v1/generated.proto).
func decodeService(message []byte, keep []string, s *corev1.Service) error {
	return fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			return metadata(v.bytes, keep, &s.ObjectMeta)
		case 2:
			return s.Spec.Unmarshal(v.bytes)
		case 3:
			return s.Status.Unmarshal(v.bytes)
		}
		return nil
	})
}

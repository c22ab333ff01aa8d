package wire

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// decoder decodes and converts objects of its kind that come as protobuf. It leaves others to client-go's: errors of
// the API server, and what comes as JSON.
type decoder struct {
	runtime.Decoder
	gvk    schema.GroupVersionKind
	decode func([]byte) (runtime.Object, error)
}

// Decode decodes one object.
func (d *decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	message, ours, err := d.unwrap(data)
	if into != nil || err == nil && !ours {
		return d.Decoder.Decode(data, defaults, into)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("decode %s: %w", d.gvk.Kind, err)
	}
	object, err := d.decode(message)
	if err != nil {
		return nil, nil, fmt.Errorf("decode %s: %w", d.gvk.Kind, err)
	}
	return object, &d.gvk, nil
}

// unwrap returns the message in an envelope (k8s.io/apimachinery/pkg/runtime/generated.proto, Unknown), and whether it
// is of the decoder's kind.
func (d *decoder) unwrap(data []byte) (message []byte, ours bool, err error) {
	envelope, found := bytes.CutPrefix(data, []byte(magic))
	if !found {
		return nil, false, nil
	}
	err = fields(envelope, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			got, err := typeOf(v.bytes)
			ours = got == d.gvk
			return err
		case 2:
			message = v.bytes
		}
		return nil
	})
	return message, ours, err
}

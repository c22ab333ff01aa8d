package wire

import (
	"bytes"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// metadata decodes an ObjectMeta (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto): the fields that name an
// object, its time of creation, and the labels and annotations with the keys of keep. A key of keep that ends in a
// slash, or in a star, stands for all keys that begin so, and one that begins with a star for all that end so.
func metadata(message []byte, keep []string, m *metav1.ObjectMeta) error {
	return fields(message, func(number protowire.Number, v value) (err error) {
		switch number {
		case 1:
			m.Name = v.text()
		case 3:
			m.Namespace = v.text()
		case 5:
			m.UID = types.UID(v.bytes)
		case 6:
			m.ResourceVersion = v.text()
		case 8:
			err = m.CreationTimestamp.Unmarshal(v.bytes)
		case 11:
			m.Labels, err = entry(m.Labels, v.bytes, keep)
		case 12:
			m.Annotations, err = entry(m.Annotations, v.bytes, keep)
		}
		return err
	})
}

// entry adds an entry of a map to known, if keep has its key.
func entry(known map[string]string, message []byte, keep []string) (map[string]string, error) {
	var key, text []byte
	err := fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			key = v.bytes
		case 2:
			text = v.bytes
		}
		return nil
	})
	if err != nil {
		return known, err
	}
	at := slices.IndexFunc(keep, func(k string) bool {
		if end, open := strings.CutPrefix(k, "*"); open {
			return bytes.HasSuffix(key, []byte(end))
		}
		start, open := strings.CutSuffix(k, "*")
		return k == string(key) || (open || strings.HasSuffix(k, "/")) && bytes.HasPrefix(key, []byte(start))
	})
	if at < 0 {
		return known, nil
	}
	if known == nil {
		known = map[string]string{}
	}
	name := keep[at] // most keys are whole ones, which cost no memory
	if name != string(key) {
		name = string(key)
	}
	known[name] = string(text)
	return known, nil
}

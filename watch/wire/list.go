package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// magic begins each object that an API server sends as protobuf
// (https://kubernetes.io/docs/reference/using-api/api-concepts/, "Kubernetes Protobuf encoding").
const magic = "k8s\x00"

// List is a list of converted objects, and the version of the resource at which it was made.
type List[K Object] struct {
	Version string
	Items   []K
}

// add adds an object.
func (l *List[K]) add(object K) error {
	if len(l.Items) == maxItems {
		return &excess{maxItems, "objects"}
	}
	l.Items = append(l.Items, object)
	return nil
}

// ReadList decodes a list of the kind while it arrives as protobuf. It holds the bytes of one object at a time.
func (k Kind[K]) ReadList(in *bufio.Reader) (*List[K], error) {
	var start [len(magic)]byte
	if _, err := io.ReadFull(in, start[:]); err != nil {
		return nil, err
	}
	if string(start[:]) != magic {
		return nil, fmt.Errorf("it begins with %q, want %q", start, magic)
	}
	const unknownLength = 1<<63 - 1 // the answer ends where its envelope ends
	envelope := &stream{in: in, left: unknownLength}
	list := &List[K]{}
	for {
		if _, err := in.Peek(1); err == io.EOF {
			return nil, errors.New("the list is not in it")
		}
		number, message, err := envelope.next()
		if err != nil {
			return nil, err
		}
		switch number {
		case 1: // TypeMeta
			var buffer []byte
			err = message.into(&buffer)
			if err == nil {
				err = checkType(buffer, k.gvk.GroupVersion().WithKind(k.gvk.Kind+"List"))
			}
		case 2: // the list itself
			return list, k.readItems(message, list)
		default:
			err = message.skip()
		}
		if err != nil {
			return nil, err
		}
	}
}

func (k Kind[K]) readItems(message *stream, list *List[K]) error {
	decode := k.newDecode()
	var buffer []byte
	for {
		number, part, err := message.next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = part.into(&buffer)
		}
		if err != nil {
			return err
		}
		switch number {
		case 1:
			var metadata metav1.ListMeta
			if err := metadata.Unmarshal(buffer); err != nil {
				return fmt.Errorf("decode the list's metadata: %w", err)
			}
			list.Version = metadata.ResourceVersion
		case 2:
			object, err := decode(buffer)
			if err != nil {
				return fmt.Errorf("decode item %d: %w", len(list.Items), err)
			}
			if err := list.add(object); err != nil {
				return err
			}
		}
	}
}

// into replaces the buffer's content by the rest of the message, which is an object at the most. The buffer grows only
// as bytes arrive.
func (s *stream) into(buffer *[]byte) error {
	if s.left > maxObject {
		return tooLong(maxObject)
	}
	b := (*buffer)[:0]
	for s.left > 0 {
		at, n := len(b), int(min(s.left, listBuffer))
		b = slices.Grow(b, n)[:at+n]
		if err := s.read(b[at:]); err != nil {
			return err
		}
	}
	*buffer = b
	return nil
}

// skip reads the rest of the message.
func (s *stream) skip() error {
	var some [512]byte
	for s.left > 0 {
		if err := s.read(some[:min(s.left, uint64(len(some)))]); err != nil {
			return err
		}
	}
	return nil
}

// checkType returns an error unless a TypeMeta names the kind.
func checkType(message []byte, want schema.GroupVersionKind) error {
	got, err := typeOf(message)
	if err == nil && got != want {
		err = fmt.Errorf("it has %s, want %s", got, want)
	}
	return err
}

// typeOf decodes a TypeMeta (k8s.io/apimachinery/pkg/runtime/generated.proto).
func typeOf(message []byte) (schema.GroupVersionKind, error) {
	var apiVersion, kind string
	err := fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			apiVersion = v.text()
		case 2:
			kind = v.text()
		}
		return nil
	})
	return schema.FromAPIVersionAndKind(apiVersion, kind), err
}

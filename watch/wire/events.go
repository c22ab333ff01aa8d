package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// eventsBuffer is how many bytes of a watch are read at a time.
const eventsBuffer = 8 << 10

// Watch follows the changes since a version until the watch ends. It calls opened when the server has said that the
// watch is open, and then take with each change and with each bookmark, whose object has only a version. Both run in
// the caller's goroutine.
//
// The error is nil where the answer or its connection has ended, wherever that was: the caller goes on from the version
// of the last event. Before opened was called the error says why the watch was not opened. After that it is one that
// the API server has sent (apierrors.APIStatus), ErrForeign, or that of an event that cannot be decoded.
func (c *Client[K]) Watch(ctx context.Context, options metav1.ListOptions, opened func(),
	take func(apiwatch.EventType, K)) error {
	options.Watch = true
	body, err := c.get(ctx, options)
	if err != nil {
		return err
	}
	defer body.Close()
	opened()
	in := bufio.NewReaderSize(body, eventsBuffer)
	next, err := eventReader(in)
	decode := c.kind.newDecode()
	for err == nil {
		var e event
		if e, err = next(); err != nil {
			break
		}
		var object K
		if object, err = c.object(e.object, decode); err != nil {
			break
		}
		switch e.kind {
		case apiwatch.Added, apiwatch.Modified, apiwatch.Deleted, apiwatch.Bookmark:
			take(e.kind, object)
		default:
			err = fmt.Errorf("it has the type %q", e.kind)
		}
	}
	switch {
	case errors.As(err, new(lost)):
		return nil
	case errors.As(err, new(apierrors.APIStatus)), errors.Is(err, ErrForeign):
		return err
	}
	return fmt.Errorf("decode an event: %w", err)
}

// lost is the error of a read: the answer or its connection has ended.
type lost struct{ error }

// event is an event of a watch, whose object is not decoded.
type event struct {
	kind   apiwatch.EventType
	object []byte
}

// eventReader returns a function that reads the next event of a watch, which is valid until the next call. The server
// chooses protobuf or JSON. Events in protobuf begin with their length, whose first byte is 0.
func eventReader(in *bufio.Reader) (func() (event, error), error) {
	start, err := in.Peek(1)
	switch {
	case err != nil:
		return nil, lost{err}
	case start[0] == 0:
		f := &frames{in: in}
		return f.event, nil
	case start[0] == '{':
		return newValues(in).event, nil
	}
	return nil, foreign(in)
}

// frames reads the messages of a watch. Each comes behind its length, in four bytes
// (k8s.io/apimachinery/pkg/runtime/serializer/protobuf, LengthDelimitedFramer).
type frames struct {
	in     io.Reader
	buffer []byte
}

// event reads the next message, which is valid until the next call.
func (f *frames) event() (event, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(f.in, prefix[:]); err != nil {
		return event{}, lost{err}
	}
	length := int(binary.BigEndian.Uint32(prefix[:]))
	if length >= maxObject {
		return event{}, tooLong(maxObject)
	}
	if length > cap(f.buffer) || cap(f.buffer) > listBuffer {
		f.buffer = make([]byte, max(length, eventsBuffer))
	}
	message := f.buffer[:length]
	if _, err := io.ReadFull(f.in, message); err != nil {
		return event{}, lost{err}
	}
	return decodeEvent(message)
}

// decodeEvent decodes a WatchEvent (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
func decodeEvent(message []byte) (e event, err error) {
	err = fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			e.kind = apiwatch.EventType(v.bytes)
		case 2: // RawExtension
			return fields(v.bytes, func(number protowire.Number, v value) error {
				if number == 1 {
					e.object = v.bytes
				}
				return nil
			})
		}
		return nil
	})
	return e, err
}

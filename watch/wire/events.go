package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"
)

// eventsBuffer is how many bytes of a watch are read at a time.
const eventsBuffer = 8 << 10

// events is a watch whose goroutine carries the changes itself. client-go's hands each one on to another goroutine by a
// channel, which wakes a thread more: a tenth of the CPU time of a change.
type events struct {
	body io.ReadCloser
	take func(apiwatch.Event)
	// result has the last events of the watch.
	result chan apiwatch.Event
	// done is closed when the watch is stopped.
	done chan struct{}

	// mu is held while take runs.
	mu      sync.Mutex
	stopped bool
}

// newEvents follows the events of a body. decode decodes their objects.
func newEvents(body io.ReadCloser, decode runtime.Decoder, take func(apiwatch.Event)) *events {
	e := &events{body: body, take: take, result: make(chan apiwatch.Event), done: make(chan struct{})}
	go e.receive(decode)
	return e
}

// ResultChan has a bookmark and an error at most, and is closed at the end.
func (e *events) ResultChan() <-chan apiwatch.Event { return e.result }

// Stop ends the watch. When it returns, take does not run, and is not called any more.
func (e *events) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped {
		e.stopped = true
		close(e.done)
		_ = e.body.Close() // There is nothing more to read.
	}
}

func (e *events) receive(decode runtime.Decoder) {
	defer close(e.result)
	defer e.Stop()
	reached, failure := e.takeAll(eventReader(e.body, decode))
	// The bookmark comes first: after some errors a reflector goes on from the version that it knows.
	for _, last := range []apiwatch.Event{{Type: apiwatch.Bookmark, Object: reached}, {Type: apiwatch.Error, Object: failure}} {
		if last.Object == nil {
			continue
		}
		select {
		case e.result <- last:
		case <-e.done:
		}
	}
}

// takeAll passes the changes on until the watch ends. It returns the object of the last event, and the error of the API
// server or of the decoding; nil for none.
func (e *events) takeAll(next func() (apiwatch.Event, error)) (reached, failure runtime.Object) {
	for {
		event, err := next()
		switch {
		case err == nil && event.Type == apiwatch.Error:
			return reached, event.Object
		case err == nil:
			if !e.deliver(event) {
				return reached, nil
			}
			reached = event.Object
		case endsConnection(err):
			return reached, nil
		default:
			// 500 is client-go's code for an unknown cause.
			reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")
			return reached, reporter.AsObject(fmt.Errorf("read the events of a watch: %w", err))
		}
	}
}

// endsConnection says that an error is the end of the answer or of the connection, which is no news about the objects.
func endsConnection(err error) bool {
	if errors.As(err, new(damaged)) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err)
}

// deliver passes a change on; false means that the watch is stopped.
func (e *events) deliver(event apiwatch.Event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped && event.Type != apiwatch.Bookmark {
		e.take(event)
	}
	return !e.stopped
}

// eventReader returns a function that reads the next event of a watch. It returns io.EOF at the end.
func eventReader(body io.ReadCloser, decode runtime.Decoder) func() (apiwatch.Event, error) {
	in := bufio.NewReaderSize(body, eventsBuffer)
	f := &frames{in: in}
	var plain *restwatch.Decoder
	return func() (event apiwatch.Event, err error) {
		// The length of an event begins with a zero: it is below 16 MiB, as in client-go (streaming.NewDecoder). An API server
		// takes objects of 1.5 MiB (etcd's --max-request-bytes). A decoder of JSON has read ahead: there may be an event in it, and
		// no byte to peek at.
		if plain == nil {
			if start, err := in.Peek(1); err == nil && start[0] != 0 {
				plain = jsonEvents(struct {
					io.Reader
					io.Closer
				}{in, body}, decode)
			}
		}
		if plain != nil {
			event.Type, event.Object, err = plain.Decode()
			return event, err
		}
		message, err := f.next()
		if err != nil {
			return event, err
		}
		if event, err = decodeEvent(message, decode); err != nil {
			err = damaged{err}
		}
		return event, err
	}
}

// damaged is the error of an event that has arrived and cannot be decoded. Its text may be that of an end that came too
// early, but the end is within the event.
type damaged struct{ error }

// jsonEvents is client-go's way to read a watch in JSON.
func jsonEvents(body io.ReadCloser, decode runtime.Decoder) *restwatch.Decoder {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	frames := info.StreamSerializer.Framer.NewFrameReader(body)
	return restwatch.NewDecoder(streaming.NewDecoder(frames, info.StreamSerializer.Serializer), decode)
}

// frames reads the messages of a watch. Each comes behind its length, in four bytes
// (k8s.io/apimachinery/pkg/runtime/serializer/protobuf, LengthDelimitedFramer).
type frames struct {
	in     io.Reader
	buffer []byte
}

// next returns the next message, which is valid until the next call, or io.EOF.
func (f *frames) next() ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(f.in, prefix[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(prefix[:])
	if int(length) > cap(f.buffer) || cap(f.buffer) > listBuffer {
		f.buffer = make([]byte, max(length, eventsBuffer))
	}
	message := f.buffer[:length]
	_, err := io.ReadFull(f.in, message)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return message, err
}

// decodeEvent decodes a WatchEvent (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
func decodeEvent(message []byte, decode runtime.Decoder) (event apiwatch.Event, err error) {
	var object []byte
	err = fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			event.Type = apiwatch.EventType(v.bytes)
		case 2: // RawExtension
			return fields(v.bytes, func(number protowire.Number, v value) error {
				if number == 1 {
					object = v.bytes
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return event, fmt.Errorf("decode an event: %w", err)
	}
	switch event.Type {
	case apiwatch.Added, apiwatch.Modified, apiwatch.Deleted, apiwatch.Bookmark, apiwatch.Error:
	default:
		return event, fmt.Errorf("decode an event: it has the type %q", event.Type)
	}
	event.Object, err = runtime.Decode(decode, object)
	return event, err
}

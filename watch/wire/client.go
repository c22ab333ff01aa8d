package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Client lists and watches the objects of one kind, in all namespaces. It sends each request once.
type Client[K Object] struct {
	kind Kind[K]
	rest *rest.RESTClient
	// others decodes what is not of the kind, or not protobuf.
	others runtime.Decoder
}

// NewClient returns a client that sends its requests by httpClient. It sends none itself. The codecs are those of
// Scheme.
func NewClient[K Object](config *rest.Config, httpClient *http.Client, codecs serializer.CodecFactory,
	kind Kind[K]) (*Client[K], error) {
	client, err := NewREST(config, Bound(httpClient, false), codecs, kind.gvk.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", kind.resource, err)
	}
	return &Client[K]{kind: kind, rest: client, others: codecs.UniversalDeserializer()}, nil
}

// NewREST returns client-go's client for a version of a group of the API. Its answers must be bounded (Bound).
func NewREST(config *rest.Config, httpClient *http.Client, codecs serializer.CodecFactory,
	version schema.GroupVersion) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = codecs.WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, httpClient)
}

// get sends a request and returns the body of an answer of success. It tells of any other answer at once, also of one
// that asks to wait (Retry-After), which client-go would otherwise do in silence.
func (c *Client[K]) get(ctx context.Context, options metav1.ListOptions) (io.ReadCloser, error) {
	return c.rest.Get().Resource(c.kind.resource).VersionedParams(&options,
		metav1.ParameterCodec).MaxRetries(0).Stream(ctx)
}

// ErrForeign says that an answer of success has neither protobuf nor JSON in it.
var ErrForeign = errors.New("the answer is not that of an API server, but perhaps that of a proxy before it")

// foreign is ErrForeign with the beginning of an answer of which at least a byte has arrived.
func foreign(in *bufio.Reader) error {
	const enough = 60
	start, _ := in.Peek(min(in.Buffered(), enough))
	return fmt.Errorf("%w: it begins with %q", ErrForeign, start)
}

const (
	// listBuffer is how many bytes of a list are read at a time.
	listBuffer = 64 << 10
	// listPatience is how long a list may bring nothing. An API server gives up a request after a minute by default.
	listPatience = 75 * time.Second
)

// List returns the list. It fails when nothing of it has come for listPatience.
func (c *Client[K]) List(ctx context.Context, options metav1.ListOptions) (*List[K], error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(listPatience, func() { cancel(fmt.Errorf("nothing has come for %s", listPatience)) })
	defer silence.Stop()
	list, err := c.list(ctx, options, func() { silence.Reset(listPatience) })
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return list, err
}

func (c *Client[K]) list(ctx context.Context, options metav1.ListOptions, arrives func()) (*List[K], error) {
	body, err := c.get(ctx, options)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	ahead := readAhead(body, arrives)
	defer ahead.Close()
	in := bufio.NewReaderSize(ahead, listBuffer)
	list, err := c.read(in)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return list, nil
}

// readAhead reads a body in a goroutine of its own, listBuffer bytes ahead: the next bytes are decrypted and
// decompressed while the caller decodes. It calls arrives for each of them. The goroutine ends when both the reader and
// the body are closed.
func readAhead(body io.Reader, arrives func()) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(writer, newBounded(noted{body, arrives}, maxList), make([]byte, listBuffer))
		_ = writer.CloseWithError(err) // It never fails.
	}()
	return reader
}

// noted is a reader that tells of what it reads.
type noted struct {
	io.Reader
	arrives func()
}

// Read reads from the reader.
func (n noted) Read(b []byte) (int, error) {
	count, err := n.Reader.Read(b)
	n.arrives()
	return count, err
}

func (c *Client[K]) read(in *bufio.Reader) (*List[K], error) {
	start, err := in.Peek(1)
	switch {
	case err != nil:
		return nil, err
	case start[0] == magic[0]:
		return c.kind.ReadList(in)
	case start[0] != '{':
		return nil, foreign(in)
	}
	return c.readJSON(in)
}

// object decodes the object of an event. The error is that of the API server where the event tells of one.
func (c *Client[K]) object(message []byte, decode func([]byte) (K, error)) (object K, err error) {
	inside, ours, err := c.unwrap(message)
	if err != nil {
		return object, err
	}
	if ours {
		return decode(inside)
	}
	decoded, err := runtime.Decode(c.others, message)
	if err != nil {
		return object, err
	}
	if status, ok := decoded.(*metav1.Status); ok {
		return object, apierrors.FromObject(status)
	}
	return c.kind.convert(decoded)
}

// unwrap returns the message in an envelope (k8s.io/apimachinery/pkg/runtime/generated.proto, Unknown), and whether it
// is of the client's kind. JSON has no envelope.
func (c *Client[K]) unwrap(data []byte) (message []byte, ours bool, err error) {
	envelope, found := bytes.CutPrefix(data, []byte(magic))
	if !found {
		return nil, false, nil
	}
	err = fields(envelope, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			got, err := typeOf(v.bytes)
			ours = got == c.kind.gvk
			return err
		case 2:
			message = v.bytes
		}
		return nil
	})
	return message, ours, err
}

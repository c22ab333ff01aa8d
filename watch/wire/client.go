package wire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Client lists and watches the objects of one kind, in all namespaces.
type Client struct {
	kind Kind
	rest *rest.RESTClient
	// others decodes what is not of the kind, or not protobuf.
	others runtime.Decoder
}

// NewClient returns a client that sends its requests by httpClient. It sends none itself.
func NewClient(config *rest.Config, httpClient *http.Client, kind Kind) (*Client, error) {
	c := rest.CopyConfig(config)
	version := kind.gvk.GroupVersion()
	c.GroupVersion, c.APIPath = &version, kind.apiPath
	c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme.Scheme, scheme.Codecs).WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(c, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", kind.resource, err)
	}
	return &Client{kind: kind, rest: client, others: scheme.Codecs.UniversalDeserializer()}, nil
}

// listBuffer is how many bytes of a list are read at a time.
const listBuffer = 64 << 10

// List returns a *List of converted objects. Where the server sends JSON, it returns the API's list.
func (c *Client) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	body, err := c.rest.Get().Resource(c.kind.resource).VersionedParams(&options, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	ahead := readAhead(body)
	defer ahead.Close()
	in := bufio.NewReaderSize(ahead, listBuffer)
	list, err := c.read(in)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return list, nil
}

// readAhead reads a body in a goroutine of its own, listBuffer bytes ahead: the next bytes are decrypted and decompressed
// while the caller decodes. The goroutine ends when both the reader and the body are closed.
func readAhead(body io.Reader) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(writer, body, make([]byte, listBuffer))
		_ = writer.CloseWithError(err) // It never fails.
	}()
	return reader
}

func (c *Client) read(in *bufio.Reader) (runtime.Object, error) {
	if start, _ := in.Peek(len(magic)); string(start) == magic {
		return c.kind.ReadList(in)
	}
	all, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	return runtime.Decode(c.others, all)
}

// Watch follows the changes from a version on. take gets each change with a converted object, from one goroutine, until
// the watch's Stop has returned. The channel of the watch has events only at its end: a bookmark of the version that the
// watch has reached, if there was a change, and an error, if one ended it. Where the server sends JSON, the objects are the API's.
func (c *Client) Watch(ctx context.Context, options metav1.ListOptions, take func(apiwatch.Event)) (apiwatch.Interface, error) {
	var timeout time.Duration
	if options.TimeoutSeconds != nil {
		timeout = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	options.Watch = true
	body, err := c.rest.Get().Resource(c.kind.resource).VersionedParams(&options, scheme.ParameterCodec).Timeout(timeout).Stream(ctx)
	if err != nil {
		return nil, err
	}
	return newEvents(body, &decoder{Decoder: c.others, gvk: c.kind.gvk, decode: c.kind.newDecode()}, take), nil
}

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
	json runtime.Decoder
}

// NewClient returns a client that sends its requests by httpClient. It sends none itself.
func NewClient(config *rest.Config, httpClient *http.Client, kind Kind) (*Client, error) {
	c := rest.CopyConfig(config)
	version := kind.gvk.GroupVersion()
	c.GroupVersion, c.APIPath = &version, kind.apiPath
	c.NegotiatedSerializer = serializer{rest.CodecFactoryForGeneratedClient(scheme.Scheme, scheme.Codecs).WithoutConversion(), kind}
	client, err := rest.RESTClientForConfigAndClient(c, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", kind.resource, err)
	}
	return &Client{kind: kind, rest: client, json: scheme.Codecs.UniversalDeserializer()}, nil
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
	in := bufio.NewReaderSize(body, listBuffer)
	list, err := c.read(in)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return list, nil
}

func (c *Client) read(in *bufio.Reader) (runtime.Object, error) {
	if start, _ := in.Peek(len(magic)); string(start) == magic {
		return c.kind.ReadList(in)
	}
	all, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	return runtime.Decode(c.json, all)
}

// Watch returns the changes from a version on, as converted objects.
func (c *Client) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	var timeout time.Duration
	if options.TimeoutSeconds != nil {
		timeout = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	options.Watch = true
	return c.rest.Get().Resource(c.kind.resource).VersionedParams(&options, scheme.ParameterCodec).Timeout(timeout).Watch(ctx)
}

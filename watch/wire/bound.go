package wire

import (
	"fmt"
	"io"
	"net/http"
)

const (
	// maxObject is more bytes than an object or an event has: an API server takes objects of 1.5 MiB (etcd's
	// --max-request-bytes).
	maxObject = 16 << 20
	// maxList is more bytes than a list has, and maxItems more objects: the greatest clusters that Kubernetes is made for
	// have 150,000 pods, whose EndpointSlices take less than 100 MB.
	maxList, maxItems = 1 << 30, 1 << 20
	// maxError is more bytes than the answer to a request that fails has. What comes behind them is left out.
	maxError = 64 << 10
)

// excess is the error of what exceeds a bound.
type excess struct {
	most int
	of   string
}

func (e *excess) Error() string { return fmt.Sprintf("it has more than %d %s", e.most, e.of) }

func tooLong(most int) error { return &excess{most, "bytes"} }

// maxToken is more bytes than there are between two values of JSON, with the name of a field.
const maxToken = 64 << 10

// bounded is a reader that fails after most bytes.
type bounded struct {
	in         io.Reader
	left, most int
}

func newBounded(in io.Reader, most int) *bounded { return &bounded{in, most, most} }

// Read reads from the reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, tooLong(b.most)
	}
	n, err := b.in.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// allow lets it read so many bytes from now on.
func (b *bounded) allow(most int) { b.left, b.most = most, most }

// Bound returns a client whose answers client-go can read as a whole. It cuts those that are not of success: the code
// of the status says enough. Of an answer of success it gives at most 16 MiB if whole is true, and then an error.
func Bound(c *http.Client, whole bool) *http.Client {
	next := c.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	client := *c
	client.Transport = &boundTransport{next, whole}
	return &client
}

type boundTransport struct {
	next  http.RoundTripper
	whole bool
}

// RoundTrip sends the request.
func (t *boundTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	switch body := response.Body; {
	case response.StatusCode >= http.StatusMultipleChoices:
		response.Body = boundBody{io.LimitReader(body, maxError), body}
	case t.whole:
		response.Body = boundBody{newBounded(body, maxObject), body}
	}
	return response, nil
}

// WrappedRoundTripper is for client-go, which looks for transports behind others.
func (t *boundTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

type boundBody struct {
	io.Reader
	io.Closer
}

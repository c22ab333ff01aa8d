package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// endless is a body that begins in some way and goes on for ever. It counts what was read.
type endless struct {
	start, again string
	read         atomic.Int64 // by the goroutine that reads ahead, which may outlive the list
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if e.start == "" {
			e.start = e.again
		}
		copied := copy(p[n:], e.start)
		e.start = e.start[copied:]
		n += copied
	}
	e.read.Add(int64(n))
	return n, nil
}

func (e *endless) Close() error { return nil }

// answers is a transport whose only answer is a code and a body.
type answers struct {
	code int
	body io.ReadCloser
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.code, Header: http.Header{}, Body: a.body, Request: r, ProtoMajor: 1,
		ContentLength: -1}, nil
}

// tagged is a field of a message with bytes that are so long; the bytes are missing.
func tagged(number protowire.Number, length uint64) string {
	return string(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.BytesType), length))
}

// TestEndlessAnswers: whatever does not end in an answer ends as an error, after as much as the largest object has, or
// the largest list.
func TestEndlessAnswers(t *testing.T) {
	const much = 1 << 60
	anItem := magic + tagged(2, much) + tagged(2, much/2)
	list := func(c *Client[*corev1.Service]) error {
		_, err := c.List(context.Background(), metav1.ListOptions{})
		return err
	}
	watch := func(c *Client[*corev1.Service]) error {
		return c.Watch(context.Background(), metav1.ListOptions{}, func() {}, func(apiwatch.EventType, *corev1.Service) {})
	}
	tooMuchBetween := fmt.Sprintf("it has more than %d bytes", maxToken)
	tooMuch := fmt.Sprintf("it has more than %d bytes", maxObject)
	for name, c := range map[string]struct {
		ask          func(*Client[*corev1.Service]) error
		code         int
		start, again string
		most         int
		want         string
	}{
		"list: an item":  {list, 200, anItem, "x", 2 * maxObject, tooMuch},
		"list: the type": {list, 200, magic + tagged(1, much), "x", 2 * maxObject, tooMuch},
		"list: what nobody knows": {list, 200, magic + tagged(9, much), "x", 2 * maxList,
			fmt.Sprintf("it has more than %d bytes", maxList)},
		"list in JSON: white space":       {list, 200, "{", " ", 4 * maxToken, tooMuchBetween},
		"list in JSON: a text":            {list, 200, `{"kind": "`, "x", 2 * maxObject, tooMuch},
		"list in JSON: a name":            {list, 200, `{"`, "x", 4 * maxToken, tooMuchBetween},
		"list in JSON: what nobody knows": {list, 200, `{"kind": "ServiceList", "other": [`, "1,", 2 * maxObject, tooMuch},
		"list in JSON: an item": {list, 200, `{"kind": "ServiceList", "items": [{"metadata": {"name": "`, "x",
			2 * maxObject, tooMuch},
		"list in JSON: within items": {list, 200, `{"kind": "ServiceList", "items": [{},`, " ", 2 * maxObject, tooMuch},
		"list: an error":             {list, 503, "", "x", 2 * maxError, ""},
		"list: an error in JSON":     {list, 503, `{"kind": "Status", "message": "`, "x", 2 * maxError, ""},
		"watch: an error":            {watch, 503, "", "x", 2 * maxError, ""},
		"watch in JSON: an event": {watch, 200, `{"type": "ADDED", "object": {"metadata": {"name": "`, "x", 2 * maxObject,
			"decode an event: " + tooMuch},
		"watch in JSON: white space": {watch, 200, `{"type": "ADDED", "object":`, " ", 2 * maxObject, "decode an event: " +
			tooMuch},
	} {
		t.Run(name, func(t *testing.T) {
			body := &endless{start: c.start, again: strings.Repeat(c.again, 1<<14)}
			client, err := NewClient(&rest.Config{Host: "http://api.example", QPS: -1, ContentConfig: rest.ContentConfig{
				ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," +
					runtime.ContentTypeJSON,
			}}, &http.Client{Transport: answers{c.code, body}}, serializer.NewCodecFactory(Scheme()), services())
			if err != nil {
				t.Fatal(err)
			}
			err = c.ask(client)
			if err == nil || !strings.Contains(err.Error(), c.want) || c.code == 503 && !apierrors.IsServiceUnavailable(err) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if read := body.read.Load(); read > int64(c.most) {
				t.Errorf("%d bytes were read, want at most %d", read, c.most)
			}
		})
	}
}

// TestBoundWhole: what a client reads as a whole ends, and what is no longer than an object arrives.
func TestBoundWhole(t *testing.T) {
	for _, c := range []struct {
		code, length, most int
		fails              bool
	}{{200, maxObject - 1, maxObject, false}, {200, 1 << 40, maxObject, true}, {404, 1 << 40, maxError, false}} {
		body := io.NopCloser(io.LimitReader(&endless{again: "x"}, int64(c.length)))
		response, err := Bound(&http.Client{Transport: answers{c.code, body}}, true).Get("http://api.example/version")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if len(text) != min(c.length, c.most) || (err != nil) != c.fails {
			t.Errorf("%d: %d of %d bytes, then %v", c.code, len(text), c.length, err)
		}
	}
}

// TestManyObjects: a list has a bound on its objects too, since small ones take more memory than their bytes.
func TestManyObjects(t *testing.T) {
	list := &List[*corev1.Service]{Items: make([]*corev1.Service, maxItems-1, maxItems)}
	if err := list.add(nil); err != nil {
		t.Error(err)
	}
	if err := list.add(nil); err == nil || err.Error() != fmt.Sprintf("it has more than %d objects", maxItems) {
		t.Errorf("one more: %v", err)
	}
}

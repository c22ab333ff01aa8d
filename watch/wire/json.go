package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// values reads JSON of which no value is longer than maxObject.
type values struct {
	*json.Decoder
	in *bounded
}

func newValues(in io.Reader) *values {
	b := newBounded(in, maxObject)
	return &values{json.NewDecoder(b), b}
}

// next decodes the next value.
func (v *values) next(into any) error {
	v.in.allow(maxObject)
	return v.Decode(into)
}

// more says that the array or object has another element.
func (v *values) more() bool {
	v.in.allow(maxToken)
	return v.More()
}

// token returns the next token.
func (v *values) token() (json.Token, error) {
	v.in.allow(maxToken)
	return v.Token()
}

// expect reads a token, which must be the given one.
func (v *values) expect(want json.Delim) error {
	got, err := v.token()
	if err == nil && got != want {
		err = fmt.Errorf("it has %v, want %v", got, want)
	}
	return err
}

// readJSON decodes a list of the kind while it arrives as JSON. It holds the bytes of one object at a time.
func (c *Client[K]) readJSON(in io.Reader) (*List[K], error) {
	v, list, kind := newValues(in), &List[K]{}, ""
	err := v.expect('{')
	for err == nil && v.more() {
		var key json.Token
		if key, err = v.token(); err != nil {
			break
		}
		switch key {
		case "kind":
			err = v.next(&kind)
		case "metadata":
			var metadata metav1.ListMeta
			err = v.next(&metadata)
			list.Version = metadata.ResourceVersion
		case "items":
			err = c.readJSONItems(v, list)
		default:
			err = v.next(&json.RawMessage{})
		}
	}
	if err == nil {
		err = v.expect('}')
	}
	if want := c.kind.gvk.Kind + "List"; err == nil && kind != want {
		err = fmt.Errorf("it has the kind %q, want %s", kind, want)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return list, err
}

func (c *Client[K]) readJSONItems(v *values, list *List[K]) error {
	if start, err := v.token(); err != nil || start == nil { // null stands for none
		return err
	} else if start != json.Delim('[') {
		return fmt.Errorf("it has %v in the place of items", start)
	}
	var message json.RawMessage
	for v.more() {
		if err := v.next(&message); err != nil {
			return err
		}
		decoded, _, err := c.others.Decode(message, &c.kind.gvk, nil) // Items of a list have no kind.
		if err != nil {
			return fmt.Errorf("decode item %d: %w", len(list.Items), err)
		}
		object, err := c.kind.convert(decoded)
		if err != nil {
			return fmt.Errorf("decode item %d: %w", len(list.Items), err)
		}
		if err := list.add(object); err != nil {
			return err
		}
	}
	return v.expect(']')
}

// event reads the next event of a watch.
func (v *values) event() (event, error) {
	var e struct {
		Type   string
		Object json.RawMessage
	}
	err := v.next(&e)
	syntax := (*json.SyntaxError)(nil)
	if err != nil && !errors.As(err, &syntax) && !errors.As(err, new(*json.UnmarshalTypeError)) &&
		!errors.As(err, new(*excess)) {
		err = lost{err}
	}
	return event{apiwatch.EventType(e.Type), e.Object}, err
}

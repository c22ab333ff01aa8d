package watch

import (
	"errors"
	"fmt"
	"net/url"
)

// RequestError is a request that the API server does not answer, or refuses. The watcher
// sends it again; until it succeeds the last state stays.
type RequestError struct {
	// Verb is list or watch.
	Verb, Resource string
	Err            error
}

// newRequestError leaves out the URL, which has a random time-out in it: each error's text would be another.
func newRequestError(verb, resource string, err error) *RequestError {
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	return &RequestError{Verb: verb, Resource: resource, Err: err}
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("%s %s: %v: trying again", e.Verb, e.Resource, e.Err)
}

// Unwrap returns the client's error.
func (e *RequestError) Unwrap() error { return e.Err }

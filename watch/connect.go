package watch

import (
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// connectPatience is how long a request waits while another one is looking for a connection. An address that does not
// answer must not hold up all requests, one after the other.
const connectPatience = 10 * time.Second

// connectTransport has one request at a time look for a connection to the API server; the others then share the one
// that it finds. Without it each of the first requests, which come at the same time, makes one for itself, and all but
// one of them are thrown away. A TLS handshake is the most expensive part of a node's return to an API server that was
// away, and all nodes return at once.
type connectTransport struct {
	next http.RoundTripper
	// turn holds a token while no request is looking for a connection.
	turn     chan struct{}
	patience time.Duration
}

func newConnectTransport(next http.RoundTripper) *connectTransport {
	t := &connectTransport{next: next, turn: make(chan struct{}, 1), patience: connectPatience}
	t.turn <- struct{}{}
	return t
}

// RoundTrip sends the request.
func (t *connectTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	patience := time.NewTimer(t.patience)
	defer patience.Stop()
	ctx := request.Context()
	select {
	case <-t.turn:
	case <-patience.C:
		return t.next.RoundTrip(request)
	case <-ctx.Done(): // which the next transport finds, too
		return t.next.RoundTrip(request)
	}
	release := sync.OnceFunc(func() { t.turn <- struct{}{} })
	defer release()
	found := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { release() }}
	return t.next.RoundTrip(request.WithContext(httptrace.WithClientTrace(ctx, found)))
}

// WrappedRoundTripper is for client-go, which looks for transports behind others.
func (t *connectTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

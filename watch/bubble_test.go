package watch

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"nftproxy/model/service"
)

// bubble is a network in fake time: a transport that answers by a function. What the function returns before it has
// written anything is the error of the request, and later that of the connection.
type bubble func(w http.ResponseWriter, r *http.Request) error

// RoundTrip answers a request.
func (b bubble) RoundTrip(r *http.Request) (*http.Response, error) {
	body, in := io.Pipe()
	a := &answer{header: http.Header{}, code: http.StatusOK, in: in, begun: make(chan struct{})}
	failed := make(chan error, 1)
	go func() {
		err := b(a, r)
		if err != nil {
			failed <- err
		} else {
			a.Flush()
		}
		in.CloseWithError(err)
	}()
	context.AfterFunc(r.Context(), func() { in.CloseWithError(r.Context().Err()) })
	select {
	case <-a.begun:
		return &http.Response{StatusCode: a.code, Header: a.header, Body: body, Request: r, ProtoMajor: 1, ContentLength: -1},
			nil
	case err := <-failed:
		return nil, err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

type answer struct {
	header http.Header
	code   int
	in     *io.PipeWriter
	once   sync.Once
	begun  chan struct{}
}

func (a *answer) Header() http.Header { return a.header }
func (a *answer) WriteHeader(code int) {
	a.code = code
	a.Flush()
}
func (a *answer) Flush() { a.once.Do(func() { close(a.begun) }) }
func (a *answer) Write(b []byte) (int, error) {
	a.Flush()
	return a.in.Write(b)
}

// asked is a request for EndpointSlices.
type asked struct {
	at time.Duration
	// from is the version of a watch, empty for a list.
	from string
}

// rig is a watcher in a bubble whose EndpointSlices come from a server that a test interferes with. The bubble
// has no other resource.
type rig struct {
	*testing.T
	*Watcher
	server *apiServer
	loop   *listWatch[*sliceObject]
	start  time.Time

	mu       sync.Mutex
	asked    []asked
	problems []Problem
	// interfere answers in the server's place, unless it returns false.
	interfere func(w http.ResponseWriter, r *http.Request, watch bool) (bool, error)
}

// inBubble runs a test with a watcher that has listed one EndpointSlice, and follows it.
func inBubble(t *testing.T, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		server := bareAPIServer(t)
		server.set("endpointslices", uniformSlice(0, 2))
		r := newRig(t, server)
		synctest.Wait()
		time.Sleep(10 * time.Second)
		r.forgetAsked()
		test(r)
	})
}

// newRig starts a watcher. prepare, if there is one, changes its loop before the start.
func newRig(t *testing.T, server *apiServer, prepare ...func(*listWatch[*sliceObject])) *rig {
	r := &rig{T: t, server: server, start: time.Now()}
	r.Watcher = NewWatcher(Options{Node: "node-0", Report: func(p Problem) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.problems = append(r.problems, p)
	}}, service.NewMailbox())
	r.bounds = newBounds()
	r.change(func(*index) { r.outage.require("endpointslices") })
	client, err := NewClient(&rest.Config{Host: "http://api.example", QPS: -1, Transport: bubble(r.answer),
		ContentConfig: rest.ContentConfig{
			ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," +
				runtime.ContentTypeJSON,
		}})
	must(t, err)
	r.loop = newListWatch(r.Watcher, "endpointslices", (*index).knownSlices, way[*sliceObject]{client: client.slices})
	for _, p := range prepare {
		p(r.loop)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { r.loop.run(ctx) })
	tasks.Go(func() { r.Watcher.loop(ctx) })
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
	})
	return r
}

func (r *rig) answer(w http.ResponseWriter, request *http.Request) error {
	query := request.URL.Query()
	watch := query.Get("watch") != ""
	r.mu.Lock()
	r.asked = append(r.asked, asked{time.Since(r.start), query.Get("resourceVersion")})
	interfere := r.interfere
	r.mu.Unlock()
	if interfere != nil {
		if done, err := interfere(w, request, watch); done {
			return err
		}
	}
	r.server.ServeHTTP(w, request)
	return nil
}

// set has the server interfered with from now on, and cuts the open watch as a connection that is lost.
func (r *rig) set(interfere func(w http.ResponseWriter, r *http.Request, watch bool) (bool, error)) {
	r.mu.Lock()
	r.interfere = interfere
	r.mu.Unlock()
	r.server.cut()
	synctest.Wait()
}

// forgetAsked returns the requests since the last call.
func (r *rig) forgetAsked() []asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.asked
	r.asked = nil
	return all
}

// listsOf counts the lists among requests.
func listsOf(all []asked) (n int) {
	for _, a := range all {
		if a.from == "" {
			n++
		}
	}
	return n
}

// endpoints is the number of endpoints that the watcher knows.
func (r *rig) endpoints() int {
	r.Watcher.mu.Lock()
	defer r.Watcher.mu.Unlock()
	for _, s := range r.index.slices {
		return s.endpoints.Len()
	}
	return 0
}

// told returns the problems since the last call, as text.
func (r *rig) told() (texts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.problems {
		texts = append(texts, p.Error())
	}
	r.problems = nil
	return texts
}

// away says whether the watcher knows that the API server is away.
func (r *rig) away() bool {
	r.Watcher.mu.Lock()
	defer r.Watcher.mu.Unlock()
	return r.outage.away
}

package endurance

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	// keptEvents is how many events of a resource a watch can catch up with. A watch from before is told
	// that its version is too old, and the client lists again.
	keptEvents = 4000
	// mostBehind is how many events the slowest watch may be behind before changes wait for it.
	mostBehind = 2000
	// watchedEvents is after how many events the server ends a watch.
	watchedEvents = 80
	// Of expiredShare watches one is told that its version is too old. A client that is told so often
	// waits longer and longer before it lists again.
	expiredShare, firstExpired = 500, 20
)

// apiServer is an API server as far as a proxy asks one: it lists and watches, without a store behind
// it. It ends each watch after some events, as a real one does after some minutes.
type apiServer struct {
	mu sync.Mutex
	// changed is broadcast when something has changed.
	changed *sync.Cond
	// version is the newest resourceVersion.
	version   int
	resources map[string]*resource
	// watches is how many watches have started, expired how many of them with too old a version.
	watches, expired int
	closed           bool
}

// resource is the objects of a kind, as JSON, and the last events about them.
type resource struct {
	apiVersion, kind string
	objects          map[string][]byte
	events           []event
	// forgotten is the version of the last event that is no longer kept.
	forgotten int
	// read is the version up to which the last watch has sent the events.
	read int
}

type event struct {
	version int
	text    []byte
}

// pathOf are the paths of the resources that a proxy asks for.
func pathOf() map[string]string {
	return map[string]string{
		"/api/v1/services": services, "/apis/discovery.k8s.io/v1/endpointslices": slicesName,
		"/api/v1/nodes": "nodes", "/apis/networking.k8s.io/v1/servicecidrs": "servicecidrs",
	}
}

const services, slicesName = "services", "endpointslices"

func newAPIServer() *apiServer {
	s := &apiServer{version: 1, resources: map[string]*resource{
		services:       {apiVersion: "v1", kind: "Service"},
		slicesName:     {apiVersion: "discovery.k8s.io/v1", kind: "EndpointSlice"},
		"nodes":        {apiVersion: "v1", kind: "Node"},
		"servicecidrs": {apiVersion: "networking.k8s.io/v1", kind: "ServiceCIDR"},
	}}
	for _, r := range s.resources {
		r.objects = map[string][]byte{}
	}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// serve answers on the listener until close.
func (s *apiServer) serve(l net.Listener) *http.Server {
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(l) }()
	return server
}

func (s *apiServer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.changed.Broadcast()
}

// put stores an object: metadata and other fields, as JSON without kind and version. An empty text deletes
// it. It waits while the watch is far behind.
func (s *apiServer) put(resourceName, name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.resources[resourceName]
	for !s.closed && r.read > 0 && len(r.events) > 0 && s.behind(r) > mostBehind {
		s.changed.Wait()
	}
	s.version++
	verb := "MODIFIED"
	last := r.objects[name]
	switch {
	case text == "":
		verb = "DELETED"
		delete(r.objects, name)
	case last == nil:
		verb = "ADDED"
	}
	object := last
	if text != "" {
		object = []byte(strings.Replace(text, "VERSION", strconv.Itoa(s.version), 1))
		r.objects[name] = object
	} else {
		object = []byte(strings.Replace(string(object), `"resourceVersion":"`, `"resourceVersion":"`+strconv.Itoa(s.version)+
			`","old":"`, 1))
	}
	r.events = append(r.events, event{s.version, fmt.Appendf(nil, `{"type":%q,"object":{"apiVersion":%q,"kind":%q,%s}}`+
		"\n", verb, r.apiVersion, r.kind, object)})
	if len(r.events) > 2*keptEvents {
		forget := len(r.events) - keptEvents
		r.forgotten = r.events[forget-1].version
		r.events = slices.Clone(r.events[forget:])
	}
	s.changed.Broadcast()
}

// behind is how many events the last watch has not sent.
func (s *apiServer) behind(r *resource) int {
	at, _ := slices.BinarySearchFunc(r.events, r.read+1, func(e event, version int) int { return e.version - version })
	return len(r.events) - at
}

// ServeHTTP answers a list or a watch. It takes events, and forgets them.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	name, known := pathOf()[request.URL.Path]
	query := request.URL.Query()
	switch {
	case !known || request.Method != http.MethodGet:
		answer(w, http.StatusNotFound, "NotFound")
	case query.Get("sendInitialEvents") != "":
		answer(w, http.StatusUnprocessableEntity, "Invalid") // as a server that does not stream lists
	case query.Get("watch") != "":
		s.watch(w, request, s.resources[name], query.Get("resourceVersion"))
	default:
		s.list(w, s.resources[name])
	}
}

func answer(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure",
		"reason": reason, "code": code, "message": reason})
}

func (s *apiServer) list(w http.ResponseWriter, r *resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"%d"},"items":[`, r.apiVersion, r.kind,
		s.version)
	first := true
	for _, object := range r.objects {
		if !first {
			_, _ = w.Write([]byte{','})
		}
		first = false
		fmt.Fprintf(w, "{%s}", object)
	}
	_, _ = w.Write([]byte("]}"))
	r.read = s.version
	s.changed.Broadcast()
}

// watch sends the events after a version, and ends after some.
func (s *apiServer) watch(w http.ResponseWriter, request *http.Request, r *resource, after string) {
	version, _ := strconv.Atoi(after)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches++
	if s.watches%expiredShare == firstExpired || version < r.forgotten {
		s.expired++
		answer(w, http.StatusGone, "Expired")
		return
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // wakes the watch when its client goes
		select {
		case <-request.Context().Done():
			s.changed.Broadcast()
		case <-stop:
		}
	}()
	s.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	s.mu.Lock()
	for sent := 0; sent < watchedEvents; {
		at, _ := slices.BinarySearchFunc(r.events, version+1, func(e event, version int) int { return e.version - version })
		pending := slices.Clone(r.events[at:min(len(r.events), at+watchedEvents-sent)])
		if len(pending) == 0 {
			if s.closed || request.Context().Err() != nil {
				return
			}
			s.changed.Wait()
			continue
		}
		s.mu.Unlock()
		for _, e := range pending {
			_, _ = w.Write(e.text)
			version = e.version
		}
		w.(http.Flusher).Flush()
		s.mu.Lock()
		sent += len(pending)
		r.read = max(r.read, version)
		s.changed.Broadcast()
	}
}

package watch

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// apiServer has as much of an API server as a reflector needs: lists, watches from a
// resource version, and lists sent as a stream (KEP-3157). It ignores selectors; tests
// check the queries that it received.
type apiServer struct {
	*testing.T
	address string
	server  *httptest.Server

	mu        sync.Mutex
	resources map[string]*resource
	version   int
	// changed is closed and replaced whenever anything changes.
	changed  chan struct{}
	requests []*http.Request
	// arrived has room for one token, which any request leaves there.
	arrived chan struct{}
}

type resource struct {
	kind, apiVersion string
	objects          map[string]metav1.Object
	history          []change
	// gate, if set, holds requests back until it is closed. refused, if not zero, is the
	// status of every answer.
	gate    chan struct{}
	refused int
}

type change struct {
	version int
	event   []byte
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{T: t, address: "127.0.0.1:0", changed: make(chan struct{}), arrived: make(chan struct{}, 1), resources: map[string]*resource{
		"services":       {kind: "Service", apiVersion: "v1", objects: map[string]metav1.Object{}},
		"nodes":          {kind: "Node", apiVersion: "v1", objects: map[string]metav1.Object{}},
		"servicecidrs":   {kind: "ServiceCIDR", apiVersion: "networking.k8s.io/v1", objects: map[string]metav1.Object{}},
		"endpointslices": {kind: "EndpointSlice", apiVersion: "discovery.k8s.io/v1", objects: map[string]metav1.Object{}},
	}}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *apiServer) start() {
	listener, err := net.Listen("tcp", s.address)
	must(s.T, err)
	s.address = listener.Addr().String()
	s.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: s}}
	s.server.Start()
}

// stop cuts every connection and refuses new ones.
func (s *apiServer) stop() {
	// The listener first: a watch that came in between would never end.
	_ = s.server.Listener.Close()
	s.server.CloseClientConnections()
	s.server.Close()
}

// client returns a client that is configured as the command configures it, from a
// kubeconfig.
func (s *apiServer) client() kubernetes.Interface {
	path := filepath.Join(s.TempDir(), "kubeconfig")
	must(s.T, os.WriteFile(path, fmt.Appendf(nil, `{kind: Config, apiVersion: v1, current-context: c,
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600))
	config, err := ClientConfig(path, "http://"+s.address)
	must(s.T, err)
	client, err := kubernetes.NewForConfig(config)
	must(s.T, err)
	return client
}

// set creates or updates an object, remove deletes it.
func (s *apiServer) set(name string, o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.resources[name]
	kind := "MODIFIED"
	if r.objects[o.GetName()] == nil {
		kind = "ADDED"
	}
	r.objects[o.GetName()] = o
	s.record(r, kind, o)
}

func (s *apiServer) remove(name, object string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.resources[name]
	o := r.objects[object]
	delete(r.objects, object)
	s.record(r, "DELETED", o)
}

func (s *apiServer) record(r *resource, kind string, o metav1.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	r.history = append(r.history, change{s.version, s.event(kind, o)})
	close(s.changed)
	s.changed = make(chan struct{})
}

// forget makes all earlier watches too old.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += 1000
	for _, r := range s.resources {
		r.history = nil
	}
}

// goBack undoes the last changes, as a restored etcd does: versions are given out again.
func (s *apiServer) goBack(versions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version -= versions
	for _, r := range s.resources {
		r.history = slices.DeleteFunc(r.history, func(c change) bool { return c.version > s.version })
	}
}

func (s *apiServer) event(kind string, object any) []byte {
	data, err := json.Marshal(map[string]any{"type": kind, "object": object})
	must(s.T, err)
	return append(data, '\n')
}

// refuse makes the server answer requests for a resource with a status; 0 is no refusal.
func (s *apiServer) refuse(name string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources[name].refused = status
}

// seen returns the queries of all requests for a resource.
func (s *apiServer) seen(name string) []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []url.Values
	for _, r := range s.requests {
		if strings.HasSuffix(r.URL.Path, "/"+name) {
			list = append(list, r.URL.Query())
		}
	}
	return list
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	s.mu.Lock()
	s.requests = append(s.requests, r)
	resource := s.resources[name]
	s.mu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
	if resource == nil {
		http.NotFound(w, r)
		return
	}
	if resource.gate != nil {
		select {
		case <-resource.gate:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	refused := resource.refused
	s.mu.Unlock()
	switch refused {
	case http.StatusForbidden:
		s.status(w, refused, metav1.StatusReasonForbidden, name+" is forbidden")
		return
	case http.StatusNotFound:
		s.status(w, refused, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	if r.URL.Query().Get("watch") == "" {
		s.list(w, resource)
		return
	}
	s.watch(w, r, resource)
}

func (s *apiServer) status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: message,
	})
}

func (s *apiServer) list(w http.ResponseWriter, r *resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": r.kind + "List", "apiVersion": r.apiVersion,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)},
		"items":    slices.Collect(maps.Values(r.objects)),
	})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource *resource) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, o := range resource.objects {
			_, _ = w.Write(s.event("ADDED", o))
		}
		from = s.version
		_, _ = w.Write(s.event("BOOKMARK", map[string]any{
			"kind": resource.kind, "apiVersion": resource.apiVersion, "metadata": map[string]any{
				"resourceVersion": strconv.Itoa(from), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			},
		}))
	} else if from < s.version && (len(resource.history) == 0 || resource.history[0].version > from+1000) {
		s.mu.Unlock()
		s.status(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
		return
	}
	s.mu.Unlock()
	for {
		s.mu.Lock()
		for _, c := range resource.history {
			if c.version > from {
				from = c.version
				_, _ = w.Write(c.event)
			}
		}
		changed := s.changed
		s.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

package watch

import (
	"encoding/json"
	"fmt"
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

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"nftproxy/test/lib/controlplane"
)

// apiServer has as much of an API server as a watcher needs: lists, and watches from a
// resource version, as protobuf. It ignores selectors; tests check the queries that it received.
type apiServer struct {
	*testing.T
	address string
	server  *httptest.Server

	mu        sync.Mutex
	resources map[string]*resource
	version   int
	// cuts counts the times that all watches ended.
	cuts int
	// changed is closed and replaced whenever anything changes.
	changed  chan struct{}
	requests []*http.Request
	// arrived has room for one token, which any request leaves there.
	arrived chan struct{}
}

type resource struct {
	kind    string
	version schema.GroupVersion
	objects map[string]metav1.Object
	history []change
	// gate, if set, holds requests back until it is closed. refused, if not zero, is the
	// status of every answer.
	gate    chan struct{}
	refused int
	// noFields says that the server knows no field selector for the resource.
	noFields bool
}

type change struct {
	version int
	kind    string
	object  runtime.Object // a copy
}

func newAPIServer(t *testing.T) *apiServer {
	s := bareAPIServer(t)
	s.start()
	t.Cleanup(s.stop)
	return s
}

// bareAPIServer returns one that does not listen: a test calls its ServeHTTP.
func bareAPIServer(t *testing.T) *apiServer {
	return &apiServer{T: t, address: "127.0.0.1:0", changed: make(chan struct{}), arrived: make(chan struct{}, 1),
		resources: map[string]*resource{
			"services": {kind: "Service", version: corev1.SchemeGroupVersion, objects: map[string]metav1.Object{}},
			"nodes":    {kind: "Node", version: corev1.SchemeGroupVersion, objects: map[string]metav1.Object{}},
			"servicecidrs": {kind: "ServiceCIDR", version: networkingv1.SchemeGroupVersion,
				objects: map[string]metav1.Object{}},
			"endpointslices": {kind: "EndpointSlice", version: discoveryv1.SchemeGroupVersion,
				objects: map[string]metav1.Object{}},
		}}
}

// cut ends all watches.
func (s *apiServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts++
	close(s.changed)
	s.changed = make(chan struct{})
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
func (s *apiServer) client() *Client {
	path := filepath.Join(s.TempDir(), "kubeconfig")
	must(s.T, os.WriteFile(path, fmt.Appendf(nil, `{kind: Config, apiVersion: v1, current-context: c,
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600))
	config, err := ClientConfig(path, "http://"+s.address)
	must(s.T, err)
	client, err := NewClient(config)
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
	r.history = append(r.history, change{s.version, kind, o.(runtime.Object).DeepCopyObject()})
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
	if resource != nil && !strings.Contains(r.URL.Path, "/"+resource.version.Version+"/") {
		resource = nil
	}
	s.mu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
	if resource == nil {
		http.NotFound(w, r)
		return
	}
	if field := r.URL.Query().Get("fieldSelector"); field != "" && resource.noFields {
		s.status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "field label not supported: "+field)
		return
	}
	if resource.gate != nil {
		select {
		case <-resource.gate:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	refused := resource.refused
	s.mu.Unlock()
	switch refused {
	case http.StatusUnauthorized:
		s.status(w, refused, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
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
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason,
		Message: message,
	})
}

func (s *apiServer) list(w http.ResponseWriter, r *resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := scheme.Scheme.New(r.version.WithKind(r.kind + "List"))
	must(s.T, err)
	var items []runtime.Object
	for _, o := range r.objects {
		items = append(items, o.(runtime.Object))
	}
	must(s.T, meta.SetList(list, items))
	m, err := meta.ListAccessor(list)
	must(s.T, err)
	m.SetResourceVersion(strconv.Itoa(s.version))
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(encode(s.T, list, r.version))
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource *resource) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	cuts := s.cuts
	if from < s.version && (len(resource.history) == 0 || resource.history[0].version > from+1000) {
		s.mu.Unlock()
		s.status(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
		return
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	for {
		s.mu.Lock()
		for _, c := range resource.history {
			if c.version > from {
				from = c.version
				s.send(w, c, resource.version)
			}
		}
		changed, cut := s.changed, s.cuts > cuts
		s.mu.Unlock()
		if cut {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// send writes an event of a watch.
func (s *apiServer) send(w http.ResponseWriter, c change, version schema.GroupVersion) {
	if err := controlplane.WriteEvent(w, apiwatch.EventType(c.kind), encode(s.T, c.object, version)); err != nil {
		s.Error(err)
	}
}

// encode returns an object as an API server sends it as protobuf.
func encode(t testing.TB, object runtime.Object, version schema.GroupVersion) []byte {
	t.Helper()
	message, err := controlplane.Encode(object, version)
	must(t, err)
	return message
}

package ipvs

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// apiServer answers kube-proxy's lists with objects of which only EndpointSlices change, in JSON. A real one takes
// minutes to start in an emulated machine.
type apiServer struct {
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice // as they were at first
	node     corev1.Node

	mu      sync.Mutex // of what follows
	changes []discoveryv1.EndpointSlice
	changed chan struct{} // closed and replaced at a change; nil while nobody waits
}

// change gives an EndpointSlice of the list other content.
func (s *apiServer) change(slice discoveryv1.EndpointSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slice.ResourceVersion = strconv.Itoa(firstVersion + len(s.changes) + 1)
	s.changes = append(s.changes, slice)
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// since are the changes after so many, and a channel that is closed at the next one.
func (s *apiServer) since(n int) ([]discoveryv1.EndpointSlice, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changes[min(n, len(s.changes)):], s.changed
}

// The resource version of each list.
const (
	firstVersion = 1
	listVersion  = "1"
)

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case r.Method != http.MethodGet: // an event
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w, http.StatusCreated, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusSuccess})
	case query.Get("sendInitialEvents") == "true": // as servers say that have no lists as streams
		answer(w, http.StatusUnprocessableEntity, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: "sendInitialEvents is forbidden",
		})
	case query.Get("watch") != "":
		s.watch(w, r)
	case strings.HasSuffix(r.URL.Path, "/services"):
		answer(w, http.StatusOK, &corev1.ServiceList{TypeMeta: kind("ServiceList", "v1"),
			ListMeta: metav1.ListMeta{ResourceVersion: listVersion}, Items: s.services})
	case strings.HasSuffix(r.URL.Path, "/endpointslices"): // a client that lists anew gets all changes again
		answer(w, http.StatusOK, &discoveryv1.EndpointSliceList{
			TypeMeta: kind("EndpointSliceList", "discovery.k8s.io/v1"), ListMeta: metav1.ListMeta{ResourceVersion: listVersion},
			Items: s.slices,
		})
	case strings.HasSuffix(r.URL.Path, "/servicecidrs"):
		answer(w, http.StatusOK, &networkingv1.ServiceCIDRList{TypeMeta: kind("ServiceCIDRList", "networking.k8s.io/v1"),
			ListMeta: metav1.ListMeta{ResourceVersion: listVersion}})
	case strings.HasSuffix(r.URL.Path, "/nodes"):
		answer(w, http.StatusOK, &corev1.NodeList{TypeMeta: kind("NodeList", "v1"),
			ListMeta: metav1.ListMeta{ResourceVersion: listVersion}, Items: []corev1.Node{s.node}})
	case strings.HasSuffix(r.URL.Path, "/nodes/"+s.node.Name):
		node := s.node
		node.TypeMeta = kind("Node", "v1")
		answer(w, http.StatusOK, &node)
	default:
		http.NotFound(w, r)
	}
}

// watch sends the changes of EndpointSlices, and of other objects nothing, until the client ends it.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	if !strings.HasSuffix(r.URL.Path, "/endpointslices") {
		<-r.Context().Done()
		return
	}
	version, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	sent := version - firstVersion
	if err != nil || sent < 0 {
		return // kube-proxy lists first
	}
	for {
		changes, more := s.since(sent)
		for i := range changes {
			event := metav1.WatchEvent{Type: string(apiwatch.Modified), Object: runtime.RawExtension{Object: &changes[i]}}
			if json.NewEncoder(w).Encode(event) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
		sent += len(changes)
		select {
		case <-r.Context().Done():
			return
		case <-more:
		}
	}
}

func kind(name, version string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: name, APIVersion: version}
}

func answer(w http.ResponseWriter, status int, object runtime.Object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object) // the client sees the rest missing
}

// TestAPIServer: a watch from a list on has each later change, whether made before or after it began.
func TestAPIServer(t *testing.T) {
	var api apiServer
	server := httptest.NewServer(&api)
	defer server.Close()
	slice := discoveryv1.EndpointSlice{TypeMeta: kind("EndpointSlice", "discovery.k8s.io/v1"),
		ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	api.change(slice)
	ctx, end := context.WithTimeout(t.Context(), limit)
	defer end()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+
		"/apis/discovery.k8s.io/v1/endpointslices?watch=true&resourceVersion="+listVersion, nil)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	events := json.NewDecoder(response.Body)
	for _, want := range []string{"2", "3"} {
		var event struct {
			Type   string
			Object discoveryv1.EndpointSlice
		}
		must(t, events.Decode(&event))
		if event.Type != "MODIFIED" || event.Object.Name != "web" || event.Object.ResourceVersion != want {
			t.Errorf("%+v, want version %s", event, want)
		}
		api.change(slice)
	}
}

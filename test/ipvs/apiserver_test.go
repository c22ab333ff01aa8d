package ipvs

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// apiServer answers kube-proxy's lists with objects that never change, in JSON. A real one takes minutes to start in an
// emulated machine.
type apiServer struct {
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice
	node     corev1.Node
}

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
	case query.Get("watch") != "": // nothing happens until the client ends it
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/services"):
		answer(w, http.StatusOK, &corev1.ServiceList{TypeMeta: kind("ServiceList", "v1"),
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: s.services})
	case strings.HasSuffix(r.URL.Path, "/endpointslices"):
		answer(w, http.StatusOK, &discoveryv1.EndpointSliceList{
			TypeMeta: kind("EndpointSliceList", "discovery.k8s.io/v1"), ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: s.slices,
		})
	case strings.HasSuffix(r.URL.Path, "/servicecidrs"):
		answer(w, http.StatusOK, &networkingv1.ServiceCIDRList{TypeMeta: kind("ServiceCIDRList", "networking.k8s.io/v1"),
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
	case strings.HasSuffix(r.URL.Path, "/nodes"):
		answer(w, http.StatusOK, &corev1.NodeList{TypeMeta: kind("NodeList", "v1"),
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{s.node}})
	case strings.HasSuffix(r.URL.Path, "/nodes/"+s.node.Name):
		node := s.node
		node.TypeMeta = kind("Node", "v1")
		answer(w, http.StatusOK, &node)
	default:
		http.NotFound(w, r)
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

package watch

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// coreServer returns a connection to a server that answers so.
func coreServer(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body []byte)) *Connection {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		answer(w, r, body)
	}))
	t.Cleanup(server.Close)
	c, err := Source{Master: server.URL}.Connect()
	must(t, err)
	return c
}

func writeObject(t *testing.T, w http.ResponseWriter, object runtime.Object) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, err := w.Write(encode(t, object, corev1.SchemeGroupVersion))
	if err != nil {
		t.Log(err) // The client has gone.
	}
}

// TestEventsOnTheWire: an event is created in its own namespace, as protobuf, and a repeated one patches what the
// server has made of it. An error is the server's.
func TestEventsOnTheWire(t *testing.T) {
	got := make(chan string, 10)
	connection := coreServer(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		what := r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type")
		if r.UserAgent() != rest.DefaultKubernetesUserAgent() {
			what += " by " + r.UserAgent()
		}
		if r.Method == http.MethodPatch {
			got <- what + " " + string(body[:min(len(body), 10)])
			writeObject(t, w, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "made", Namespace: "shop"}})
			return
		}
		decoded, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), body)
		if err != nil {
			t.Error(err)
			return
		}
		e := decoded.(*corev1.Event)
		got <- what + " " + e.Reason + " " + e.InvolvedObject.Name
		if e.InvolvedObject.Name == "refused" {
			http.Error(w, "", http.StatusForbidden)
			return
		}
		e.Name = "made"
		writeObject(t, w, e)
	})
	failed := make(chan error, 10)
	record, err := connection.Recorder(t.Context(), "node-1", func(err error) { failed <- err })
	must(t, err)
	web := Event{aService("web"), "", ReasonConflict, "taken"}
	for _, e := range []Event{web, web, {NodeObject("node-1"), "", ReasonSysctl, "no"}} {
		record(e)
	}
	for _, want := range []string{
		"POST /api/v1/namespaces/shop/events application/vnd.kubernetes.protobuf Conflict web",
		"PATCH /api/v1/namespaces/shop/events/made application/strategic-merge-patch+json {\"count\":2",
		"POST /api/v1/namespaces/default/events application/vnd.kubernetes.protobuf SysctlNotSet node-1",
	} {
		if diff := cmp.Diff(want, <-got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	record(Event{aService("refused"), "", ReasonConflict, "taken"})
	if err := <-failed; !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "create event: ") {
		t.Errorf("reported %v", err)
	}
}

// TestTaintOnTheWire: the taint is removed by a patch of the Node that was read; the others stay.
func TestTaintOnTheWire(t *testing.T) {
	const key, path = "example.com/starting", "/api/v1/nodes"
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", ResourceVersion: "7"},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other", Effect: "NoSchedule"}, {Key: key, Effect: "NoSchedule"}}}}
	got := make(chan string, 1)
	connection := coreServer(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		query := r.URL.Query()
		switch {
		case r.Method == http.MethodPatch:
			got <- r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(body)
			writeObject(t, w, &node)
		case r.URL.Path != path || query.Get("fieldSelector") != "metadata.name=node-1":
			t.Errorf("a request for %s", r.URL)
		case query.Get("sendInitialEvents") != "": // as a server that does not know it
			http.Error(w, "", http.StatusBadRequest)
		case query.Get("watch") != "":
			<-r.Context().Done()
		default:
			writeObject(t, w, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "8"}, Items: []corev1.Node{node}})
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // before the server closes
	reported := make(chan error, 1)
	go RemoveTaint(ctx, connection.Client, "node-1", key, func(err error) { reported <- err })
	want := path + "/node-1 application/json-patch+json " +
		`[{"op":"test","path":"/metadata/resourceVersion","value":"7"},` +
		`{"op":"replace","path":"/spec/taints","value":[{"key":"other","effect":"NoSchedule"}]}]`
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := <-reported; err != nil {
		t.Error(err)
	}
}

package wire

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"nftproxy/test/apimessage"
)

// item returns a message as an item of a list.
func item(message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), message)
}

// serve returns a client for Services of a server that answers so.
func serve(t *testing.T, answer http.HandlerFunc) *Client {
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
		ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
	}}
	client, err := NewClient(config, server.Client(), services())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func web(version string) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", ResourceVersion: version, Labels: map[string]string{kept: "yes", "other": "x"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
	}
}

// TestListJSON: a server that sends JSON is understood, too: the list is client-go's then.
func TestListJSON(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if want := "/api/v1/services?labelSelector=a"; r.URL.String() != want {
			t.Errorf("asked for %s, want %s", r.URL, want)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(&corev1.ServiceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.Service{*web("8")},
		})
	})
	list, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: "a"})
	if err != nil {
		t.Fatal(err)
	}
	l, ok := list.(*corev1.ServiceList)
	if !ok || l.ResourceVersion != "9" || len(l.Items) != 1 || l.Items[0].Labels["other"] != "x" {
		t.Errorf("%T %v", list, list)
	}
}

// TestListRefused: an error of the API server is one for the caller, with its reason.
func TestListRefused(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		status := apierrors.NewForbidden(corev1.Resource("services"), "", nil).ErrStatus
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		message := encode(t, &status, corev1.SchemeGroupVersion)
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write(message)
	})
	if _, err := client.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
	if _, err := client.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
}

// TestWatch: events have converted objects; the error that ends a watch is client-go's.
func TestWatch(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old").ErrStatus
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("watch") != "true" || q.Get("resourceVersion") != "7" || q.Get("timeoutSeconds") != "60" {
			t.Errorf("asked for %s", r.URL)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		send(t, w, apiwatch.Added, web("8"))
		send(t, w, apiwatch.Modified, web("9"))
		send(t, w, apiwatch.Bookmark, &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "12"}})
		send(t, w, apiwatch.Deleted, web("13"))
		send(t, w, apiwatch.Error, &expired)
	})
	minute := int64(60)
	stream, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7", TimeoutSeconds: &minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		kind    apiwatch.EventType
		version string
	}{{apiwatch.Added, "8"}, {apiwatch.Modified, "9"}, {apiwatch.Bookmark, "12"}, {apiwatch.Deleted, "13"}} {
		e := <-stream.ResultChan()
		s, ok := e.Object.(*corev1.Service)
		if e.Type != want.kind || !ok || s.ResourceVersion != want.version {
			t.Errorf("%s %T %v, want %v", e.Type, e.Object, e.Object, want)
		}
		if want.kind != apiwatch.Bookmark && diff(readFields(web(want.version)), s) != "" {
			t.Errorf("%s (-want +got):\n%s", e.Type, diff(readFields(web(want.version)), s))
		}
	}
	if e := <-stream.ResultChan(); e.Type != apiwatch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("%s %v", e.Type, e.Object)
	}
}

// TestWatchDamaged: an event that cannot be decoded is an error, and the watch ends.
func TestWatchDamaged(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		sendRaw(t, w, apiwatch.Added, append(encode(t, web("8"), corev1.SchemeGroupVersion)[:60], 0xff))
	})
	stream, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-stream.ResultChan(); e.Type != apiwatch.Error {
		t.Errorf("%s %v", e.Type, e.Object)
	}
	if e, more := <-stream.ResultChan(); more {
		t.Errorf("after the error: %v", e)
	}
}

// TestWatchJSON: events come as client-go's objects from a server that sends JSON.
func TestWatchJSON(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": web("8")})
	})
	stream, err := client.Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := <-stream.ResultChan()
	if s, ok := e.Object.(*corev1.Service); !ok || s.ResourceVersion != "8" || s.Labels["other"] != "x" {
		t.Errorf("%s %T %v", e.Type, e.Object, e.Object)
	}
}

func send(t *testing.T, w io.Writer, kind apiwatch.EventType, object runtime.Object) {
	sendRaw(t, w, kind, encode(t, object, corev1.SchemeGroupVersion))
}

// sendRaw writes an event as an API server does.
func sendRaw(t *testing.T, w io.Writer, kind apiwatch.EventType, object []byte) {
	if err := apimessage.WriteEvent(w, kind, object); err != nil {
		t.Error(err)
	}
}

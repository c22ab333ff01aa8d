package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"nftproxy/test/lib/controlplane"
)

// item returns a message as an item of a list.
func item(message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), message)
}

// serve returns a client for Services of a server that answers so.
func serve(t *testing.T, answer http.HandlerFunc) *Client[*corev1.Service] {
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
		ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," +
			runtime.ContentTypeJSON,
	}}
	client, err := NewClient(config, server.Client(), serializer.NewCodecFactory(Scheme()), services())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func web(version string) *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", ResourceVersion: version,
			Labels: map[string]string{kept: "yes", "other": "x"}},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
	}
}

// TestListJSON: a server that sends JSON is understood, too: the objects are those of client-go's decoder.
func TestListJSON(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if want := "/api/v1/services?labelSelector=a"; r.URL.String() != want {
			t.Errorf("asked for %s, want %s", r.URL, want)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(&corev1.ServiceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "9"},
			Items: []corev1.Service{*web("8")},
		})
	})
	list, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if list.Version != "9" || len(list.Items) != 1 || list.Items[0].Labels["other"] != "x" {
		t.Errorf("%v", list)
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
	opened := func() { t.Error("a refused watch is open") }
	if err := client.Watch(t.Context(), metav1.ListOptions{}, opened, nil); !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
}

// taken is what a watch has told of an object.
type taken struct {
	kind   apiwatch.EventType
	object *corev1.Service
}

// watchAll returns everything that a watch tells until its end.
func watchAll(t *testing.T, client *Client[*corev1.Service], options metav1.ListOptions) (all []taken, err error) {
	opened := 0
	err = client.Watch(t.Context(), options, func() { opened++ }, func(kind apiwatch.EventType, s *corev1.Service) {
		all = append(all, taken{kind, s})
	})
	if opened != 1 {
		t.Errorf("opened %d times", opened)
	}
	return all, err
}

// TestWatch: events have converted objects; the error that ends a watch is client-go's.
func TestWatch(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old").ErrStatus
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("watch") != "true" || q.Get("resourceVersion") != "7" ||
			q.Get("timeoutSeconds") != "60" {
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
	all, err := watchAll(t, client, metav1.ListOptions{ResourceVersion: "7", TimeoutSeconds: &minute})
	bookmark := readFields(&corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "12"}})
	want := []taken{
		{apiwatch.Added, readFields(web("8"))}, {apiwatch.Modified, readFields(web("9"))}, {apiwatch.Bookmark, bookmark},
		{apiwatch.Deleted, readFields(web("13"))},
	}
	if d := cmp.Diff(want, all, cmp.AllowUnexported(taken{}), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("at the end: %v", err)
	}
}

// TestWatchEnds: what cannot be read is an error. Where the answer ends or breaks off there is none.
func TestWatchEnds(t *testing.T) {
	good := encode(t, web("8"), corev1.SchemeGroupVersion)
	var whole bytes.Buffer
	sendRaw(t, &whole, apiwatch.Modified, good)
	text := func(s string) func(w io.Writer) { return func(w io.Writer) { _, _ = io.WriteString(w, s) } }
	for name, c := range map[string]struct {
		send  func(w io.Writer)
		taken int
		err   string
	}{
		"an object": {func(w io.Writer) { sendRaw(t, w, apiwatch.Added, append(good[:60:60], 0xff)) }, 0,
			"decode an event: "},
		"an event": {text("\x00\x00\x00\x02\xff\xff"), 0, "decode an event: "},
		"an unknown type": {func(w io.Writer) { sendRaw(t, w, "RENAMED", good) }, 0,
			`decode an event: it has the type "RENAMED"`},
		"another kind": {func(w io.Writer) { send(t, w, apiwatch.Added, &corev1.Pod{}) }, 0,
			"decode an event: it is a *v1.Pod"},
		"16 MiB": {text(whole.String() + "\x01\x00\x00\x00"), 1,
			"decode an event: it has more than 16777216 bytes"},
		"bad JSON":              {text("{]"), 0, "decode an event: "},
		"JSON that is no event": {text(`{"kind": "ServiceList", "items": []}`), 0, "decode an event: "},
		"a page":                {text("<html>busy</html>"), 0, ErrForeign.Error() + `: it begins with "<html>busy</html>"`},
		"a list":                {text(magic), 0, ErrForeign.Error()},
		"nothing":               {text(""), 0, ""},
		"a byte":                {text("\x00"), 0, ""},
		"a byte of JSON":        {text("{"), 0, ""},
		"the end of a length":   {text("\x00\x00"), 0, ""},
		"the end":               {text(whole.String() + whole.String()), 2, ""},
		"the end of an event":   {text(whole.String() + whole.String()[:whole.Len()-1]), 1, ""},
		"an error after events": {func(w io.Writer) {
			send(t, w, apiwatch.Modified, web("9"))
			sendRaw(t, w, "RENAMED", good)
		}, 1, "decode an event: "},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
				c.send(w)
			})
			all, err := watchAll(t, client, metav1.ListOptions{})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if len(all) != c.taken || !strings.HasPrefix(text, c.err) || (c.err == "") != (err == nil) {
				t.Errorf("%d changes, then %v; want %d, then %q", len(all), err, c.taken, c.err)
			}
		})
	}
}

// TestWatchJSON: events come as client-go's objects from a server that sends JSON.
func TestWatchJSON(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		for _, version := range []string{"8", "9"} {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": web(version)})
		}
	})
	all, err := watchAll(t, client, metav1.ListOptions{})
	if len(all) != 2 || err != nil {
		t.Fatalf("%v, error %v", all, err)
	}
	for i, version := range []string{"8", "9"} {
		if e := all[i]; e.kind != apiwatch.Added || e.object.ResourceVersion != version || e.object.Labels["other"] != "x" {
			t.Errorf("%s %v", e.kind, e.object)
		}
	}
}

// TestWatchTakesWhatHasCome: events that come together are all taken at once, whether or not there is more to come.
func TestWatchTakesWhatHasCome(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeProtobuf + ";stream=watch", runtime.ContentTypeJSON} {
		t.Run(mediaType, func(t *testing.T) {
			taken, ended := make(chan apiwatch.EventType, 2), make(chan error, 1)
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", mediaType)
				var both bytes.Buffer
				for _, version := range []string{"8", "9"} {
					if mediaType == runtime.ContentTypeJSON {
						_ = json.NewEncoder(&both).Encode(map[string]any{"type": "ADDED", "object": web(version)})
					} else {
						send(t, &both, apiwatch.Added, web(version))
					}
				}
				_, _ = w.Write(both.Bytes())
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done() // The watch stays open.
			})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				ended <- client.Watch(ctx, metav1.ListOptions{}, func() {}, func(kind apiwatch.EventType, _ *corev1.Service) {
					taken <- kind
				})
			}()
			for n := range 2 {
				select {
				case <-taken:
				case <-time.After(time.Minute):
					t.Fatalf("after a minute only %d of 2 events were taken", n)
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the caller ended the watch: %v", err)
			}
		})
	}
}

func send(t *testing.T, w io.Writer, kind apiwatch.EventType, object runtime.Object) {
	sendRaw(t, w, kind, encode(t, object, corev1.SchemeGroupVersion))
}

// sendRaw writes an event as an API server does.
func sendRaw(t *testing.T, w io.Writer, kind apiwatch.EventType, object []byte) {
	if err := controlplane.WriteEvent(w, kind, object); err != nil {
		t.Error(err)
	}
}

package wire

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	if _, err := client.Watch(t.Context(), metav1.ListOptions{}, nil); !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
}

// watched is what a watch has told until its end.
type watched struct {
	taken []apiwatch.Event
	// last has the events of the channel.
	last []apiwatch.Event
}

// end has the versions of bookmarks at the end, and "error" for an error.
func (w watched) end(t *testing.T) string {
	var words []string
	for _, e := range w.last {
		word := strings.ToLower(string(e.Type))
		if e.Type == apiwatch.Bookmark {
			m, err := meta.Accessor(e.Object)
			if err != nil {
				t.Fatal(err)
			}
			word = m.GetResourceVersion()
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// watchAll returns everything that a watch tells.
func watchAll(t *testing.T, client *Client, options metav1.ListOptions) (all watched) {
	stream, err := client.Watch(t.Context(), options, func(e apiwatch.Event) { all.taken = append(all.taken, e) })
	if err != nil {
		t.Fatal(err)
	}
	for e := range stream.ResultChan() {
		all.last = append(all.last, e)
	}
	return all
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
	all := watchAll(t, client, metav1.ListOptions{ResourceVersion: "7", TimeoutSeconds: &minute})
	want := []struct {
		kind    apiwatch.EventType
		version string
	}{{apiwatch.Added, "8"}, {apiwatch.Modified, "9"}, {apiwatch.Deleted, "13"}}
	if len(all.taken) != len(want) {
		t.Fatalf("%d events, want %d", len(all.taken), len(want))
	}
	for i, want := range want {
		e := all.taken[i]
		s, ok := e.Object.(*corev1.Service)
		if e.Type != want.kind || !ok || s.ResourceVersion != want.version {
			t.Errorf("%s %T %v, want %v", e.Type, e.Object, e.Object, want)
		}
		if diff(readFields(web(want.version)), s) != "" {
			t.Errorf("%s (-want +got):\n%s", e.Type, diff(readFields(web(want.version)), s))
		}
	}
	if end := all.end(t); end != "13, error" || !apierrors.IsResourceExpired(apierrors.FromObject(all.last[1].Object)) {
		t.Errorf("at the end %q: %v", end, all.last)
	}
}

// TestWatchEnds: what cannot be read is an error. Where the answer ends or breaks off, the watch tells the version that
// it has reached.
func TestWatchEnds(t *testing.T) {
	good := encode(t, web("8"), corev1.SchemeGroupVersion)
	var whole bytes.Buffer
	sendRaw(t, &whole, apiwatch.Modified, good)
	text := func(s string) func(w io.Writer) { return func(w io.Writer) { _, _ = io.WriteString(w, s) } }
	for name, c := range map[string]struct {
		send  func(w io.Writer)
		taken int
		// end is as watched.end has it.
		end string
	}{
		"an object":           {func(w io.Writer) { sendRaw(t, w, apiwatch.Added, append(good[:60:60], 0xff)) }, 0, "error"},
		"an event":            {text("\x00\x00\x00\x02\xff\xff"), 0, "error"},
		"an unknown type":     {func(w io.Writer) { sendRaw(t, w, "RENAMED", good) }, 0, "error"},
		"16 MiB":              {text("\x01\x00\x00\x00"), 0, "error"},
		"JSON":                {text("{]"), 0, "error"},
		"nothing":             {text(""), 0, ""},
		"the end of a length": {text("\x00\x00"), 0, ""},
		"the end":             {text(whole.String() + whole.String()), 2, "8"},
		"the end of an event": {text(whole.String() + whole.String()[:whole.Len()-1]), 1, "8"},
		"a bookmark": {func(w io.Writer) {
			send(t, w, apiwatch.Modified, web("9"))
			send(t, w, apiwatch.Bookmark, &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "12"}})
		}, 1, "12"},
		"an error after events": {func(w io.Writer) {
			send(t, w, apiwatch.Modified, web("9"))
			sendRaw(t, w, "RENAMED", good)
		}, 1, "9, error"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
				c.send(w)
			})
			all := watchAll(t, client, metav1.ListOptions{})
			if end := all.end(t); len(all.taken) != c.taken || end != c.end {
				t.Errorf("%d changes, then %q; want %d, then %q", len(all.taken), end, c.taken, c.end)
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
	all := watchAll(t, client, metav1.ListOptions{})
	if len(all.taken) != 2 || all.end(t) != "9" {
		t.Fatalf("%v", all)
	}
	for i, version := range []string{"8", "9"} {
		e := all.taken[i]
		if s, ok := e.Object.(*corev1.Service); !ok || e.Type != apiwatch.Added || s.ResourceVersion != version || s.Labels["other"] != "x" {
			t.Errorf("%s %T %v", e.Type, e.Object, e.Object)
		}
	}
}

// TestWatchTakesWhatHasCome: events that come together are all taken at once, whether or not there is more to come.
func TestWatchTakesWhatHasCome(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeProtobuf + ";stream=watch", runtime.ContentTypeJSON} {
		t.Run(mediaType, func(t *testing.T) {
			taken := make(chan apiwatch.Event, 2)
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
			stream, err := client.Watch(t.Context(), metav1.ListOptions{}, func(e apiwatch.Event) { taken <- e })
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Stop()
			for n := range 2 {
				select {
				case <-taken:
				case <-time.After(10 * time.Second):
					t.Fatalf("after 10 s only %d of 2 events were taken", n)
				}
			}
		})
	}
}

// TestWatchStopped: no event is taken any more once Stop has returned, and Stop waits for one that is being taken.
func TestWatchStopped(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for i := 0; r.Context().Err() == nil; i++ {
			if apimessage.WriteEvent(w, apiwatch.Modified, encode(t, web(strconv.Itoa(i)), corev1.SchemeGroupVersion)) != nil {
				return
			}
		}
	})
	for range 20 {
		taking, begun := false, make(chan struct{}, 1)
		stream, err := client.Watch(t.Context(), metav1.ListOptions{}, func(apiwatch.Event) {
			taking = true
			select {
			case begun <- struct{}{}:
			default:
			}
			goruntime.Gosched()
			taking = false
		})
		if err != nil {
			t.Fatal(err)
		}
		<-begun
		stream.Stop()
		if taking {
			t.Fatal("Stop returned while an event was being taken")
		}
		taking = true // The race detector and the next line notice a later call.
		for range stream.ResultChan() {
		}
		if !taking {
			t.Fatal("an event was taken after Stop")
		}
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

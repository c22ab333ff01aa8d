package watch

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"nftproxy/test/lib/controlplane"
)

// interference answers in the place of an API server.
type interference func(w http.ResponseWriter, r *http.Request) error

// status refuses with a code.
func status(code int, reason metav1.StatusReason) interference {
	return func(w http.ResponseWriter, _ *http.Request) error {
		(&apiServer{}).status(w, code, reason, "no")
		return nil
	}
}

// retryAfter refuses as API servers do that are busy: without an object, and with a header.
func retryAfter(code int, seconds string) interference {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Retry-After", seconds)
		http.Error(w, "Too many requests, please try again later.", code)
		return nil
	}
}

func fails(err error) interference {
	return func(http.ResponseWriter, *http.Request) error { return err }
}

// sends answers with a body, and with an error after it if there is one.
func sends(body string, err error) interference {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		if _, err := io.WriteString(w, body); err != nil {
			return err
		}
		return err
	}
}

// eventsOf is the body of a watch with an object of each kind of event.
func eventsOf(t *testing.T, object runtime.Object, kinds ...apiwatch.EventType) string {
	var body strings.Builder
	version := discoveryv1.SchemeGroupVersion
	if _, ok := object.(*discoveryv1.EndpointSlice); !ok {
		version = corev1.SchemeGroupVersion
	}
	for _, kind := range kinds {
		must(t, controlplane.WriteEvent(&body, kind, encode(t, object, version)))
	}
	return body.String()
}

func sliceAt(version int) *discoveryv1.EndpointSlice {
	s := uniformSlice(0, 3)
	s.ResourceVersion = strconv.Itoa(version)
	return s
}

// TestWatchAnswers: whatever comes in the place of a watch, the watcher goes on from the version that it has, or lists,
// and does neither in a loop without pauses. What it serves stays. It tells of the failure, and that it is away.
func TestWatchAnswers(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old resource version: 1 (1000)").ErrStatus
	internal := apierrors.NewInternalError(errors.New("etcdserver: no leader")).ErrStatus
	busy := apierrors.NewTooManyRequests("busy", 1).ErrStatus
	bookmark := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
	const never = 1 << 20
	for name, c := range map[string]struct {
		answer interference
		// lists is how many lists a minute of such watches may take.
		lists int
		told  string
		// quiet says that the watcher is not away.
		quiet bool
	}{
		"401": {status(401, metav1.StatusReasonUnauthorized), 0, "watch endpointslices: no", false},
		"403": {status(403, metav1.StatusReasonForbidden), 0, "watch endpointslices: no", true},
		"404": {status(404, metav1.StatusReasonNotFound), 0, "watch endpointslices: no", true},
		"429": {retryAfter(429, "1"), 0, "watch endpointslices: ", false},
		"500": {status(500, metav1.StatusReasonInternalError), never, "watch endpointslices: no",
			false},
		"503 with Retry-After":        {retryAfter(503, "2"), never, "watch endpointslices: ", false},
		"502 of a proxy":              {retryAfter(502, ""), never, "watch endpointslices: ", false},
		"410":                         {status(410, metav1.StatusReasonExpired), never, "", true},
		"410 as an event":             {sends(eventsOf(t, &expired, apiwatch.Error), nil), never, "", true},
		"500 as an event":             {sends(eventsOf(t, &internal, apiwatch.Error), nil), never, "no leader", false},
		"429 as an event":             {sends(eventsOf(t, &busy, apiwatch.Error), nil), 0, "busy", false},
		"refused connections":         {fails(syscall.ECONNREFUSED), never, "connection refused", false},
		"connections that end":        {fails(io.EOF), 0, "EOF", false},
		"connections that are reset":  {fails(syscall.ECONNRESET), 0, "reset", false},
		"no route":                    {fails(syscall.EHOSTUNREACH), 0, "no route", false},
		"an answer that ends at once": {sends("", nil), 0, "ends as soon as it is open", false},
		"one that breaks off at once": {sends("", errors.New("http2: client connection lost")), 0,
			"ends as soon as it is open", false},
		"a byte": {sends("\x00", nil), 0, "ends as soon as it is open", false},
		"a bookmark": {sends(eventsOf(t, bookmark, apiwatch.Bookmark), nil), 0, "ends as soon as it is open",
			false},
		"a change that is known": {sends(eventsOf(t, sliceAt(1), apiwatch.Modified), nil), 0, "ends as soon as it is open",
			false},
		"the page of a proxy": {sends("<html>Log in</html>", nil), 0, "not that of an API server", false},
		"a list": {sends(string(encode(t, &discoveryv1.EndpointSliceList{}, discoveryv1.SchemeGroupVersion)),
			nil), 0, "not that of an API server", false},
		"a list in JSON": {sends(`{"kind": "EndpointSliceList", "items": []}`, nil), never, "decode an event", false},
		"nonsense":       {sends("\x00\x00\x00\x02\xff\xff", nil), never, "decode an event", false},
		"another kind":   {sends(eventsOf(t, &corev1.Pod{}, apiwatch.Added), nil), never, "decode an event", false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.set(func(w http.ResponseWriter, request *http.Request, watch bool) (bool, error) {
					if !watch {
						return false, nil
					}
					return true, c.answer(w, request)
				})
				r.forgetAsked()
				time.Sleep(time.Minute)
				all := r.forgetAsked()
				if n := len(all); n < 5 || n > 60 {
					t.Errorf("%d requests in a minute", n)
				}
				if n := listsOf(all); n > c.lists || c.lists == never && n == 0 {
					t.Errorf("%d lists in a minute: %v", n, all)
				}
				told := strings.Join(r.told(), "\n")
				if !strings.Contains(told, c.told) || c.told == "" && told != "" || strings.Count(told, "\n") > 4 {
					t.Errorf("told %q, want %q", told, c.told)
				}
				if r.away() == c.quiet {
					t.Errorf("away: %t", r.away())
				}
				if n := r.endpoints(); n < 2 {
					t.Errorf("%d endpoints are left", n)
				}

				r.server.set("endpointslices", sliceAt(0))
				r.set(nil)
				time.Sleep(longestPause + 3*time.Second)
				if n := r.endpoints(); n != 3 {
					t.Errorf("%d endpoints once the server is well, want 3", n)
				}
				if r.away() {
					t.Error("still away")
				}
			})
		})
	}
}

// TestListAnswers: whatever comes in the place of a list, the watcher serves what it had, tells of the failure, and
// lists again after a pause.
func TestListAnswers(t *testing.T) {
	whole := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
	for i := range 20 {
		whole.Items = append(whole.Items, *uniformSlice(i, 3))
	}
	message := string(encode(t, whole, discoveryv1.SchemeGroupVersion))
	whole.ResourceVersion = ""
	unversioned := string(encode(t, whole, discoveryv1.SchemeGroupVersion))
	for name, c := range map[string]struct {
		answer interference
		told   string
	}{
		"401":                       {status(401, metav1.StatusReasonUnauthorized), "no"},
		"403":                       {status(403, metav1.StatusReasonForbidden), "no"},
		"404":                       {status(404, metav1.StatusReasonNotFound), "no"},
		"429":                       {retryAfter(429, "1"), "too many requests"},
		"500":                       {retryAfter(500, "1"), "list endpointslices"},
		"503":                       {retryAfter(503, "1"), "list endpointslices"},
		"504: the server is behind": {status(504, metav1.StatusReasonTimeout), "no"},
		"refused connections":       {fails(syscall.ECONNREFUSED), "connection refused"},
		"connections that end":      {fails(io.EOF), "EOF"},
		"nothing":                   {sends("", nil), "read the answer"},
		"the page of a proxy":       {sends("<html>Log in</html>", nil), "not that of an API server"},
		"an end in the middle":      {sends(message[:len(message)/2], nil), "unexpected EOF"},
		"a break in the middle":     {sends(message[:len(message)/2], errors.New("connection lost")), "connection lost"},
		"another kind": {sends(string(encode(t, &corev1.ServiceList{}, corev1.SchemeGroupVersion)), nil),
			"it has /v1, Kind=ServiceList"},
		"a list without a version":    {sends(unversioned, nil), "the list has no version"},
		"JSON that breaks off":        {sends(`{"kind": "EndpointSliceList", "apiVersion": `, nil), "unexpected EOF"},
		"a page that says it is JSON": {sends(`{"error": "busy"}`, nil), "read the answer"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.server.forget()
				r.set(func(w http.ResponseWriter, request *http.Request, watch bool) (bool, error) {
					if watch {
						return false, nil
					}
					return true, c.answer(w, request)
				})
				time.Sleep(time.Minute)
				if n := listsOf(r.forgetAsked()); n < 5 || n > 60 {
					t.Errorf("%d lists in a minute", n)
				}
				if told := strings.Join(r.told(), "\n"); !strings.Contains(told, "list endpointslices: ") ||
					!strings.Contains(told, c.told) || strings.Contains(told, "\n") {
					t.Errorf("told %q, want %q", told, c.told)
				}
				if n := r.endpoints(); n != 2 {
					t.Errorf("%d endpoints are left", n)
				}
				r.server.set("endpointslices", sliceAt(0))
				r.set(nil)
				time.Sleep(longestPause + 3*time.Second)
				if n := r.endpoints(); n != 3 || r.away() {
					t.Errorf("%d endpoints once the server is well, want 3; away: %t", n, r.away())
				}
			})
		})
	}
}

// TestRetryAfter: the watcher tells of a server that asks to wait at once, waits for as long, and not for ever.
func TestRetryAfter(t *testing.T) {
	for _, verb := range []string{"list", "watch"} {
		for _, code := range []int{429, 500, 503} {
			for seconds, most := range map[int]time.Duration{5: 13 * time.Second, 86_400: 68 * time.Second} {
				t.Run(fmt.Sprintf("%s %d %d", verb, code, seconds), func(t *testing.T) {
					inBubble(t, func(r *rig) {
						if verb == "list" {
							r.server.forget()
						}
						r.set(func(w http.ResponseWriter, request *http.Request, watch bool) (bool, error) {
							if watch != (verb == "watch") {
								return false, nil
							}
							return true, retryAfter(code, strconv.Itoa(seconds))(w, request)
						})
						time.Sleep(2 * time.Second)
						if told := r.told(); len(told) != 1 || !strings.HasPrefix(told[0], verb+" endpointslices: ") || !r.away() {
							t.Errorf("told %q, away: %t", told, r.away())
						}
						time.Sleep(10 * time.Minute)
						last := time.Duration(0)
						for i, a := range r.forgetAsked() {
							if (a.from != "") != (verb == "watch") {
								continue
							}
							least := min(time.Duration(seconds)*time.Second, longestWait)
							if pause := a.at - last; i > 1 && (pause < least || pause > most) {
								t.Errorf("request %d came after %s, want %s to %s", i, pause, least, most)
							}
							last = a.at
						}
					})
				})
			}
		}
	}
}

// TestReturn: after outages of every length, 200 nodes have the news within ten seconds, by one list each, and do not
// come together.
func TestReturn(t *testing.T) {
	for _, away := range []time.Duration{time.Second, 20 * time.Second, 5 * time.Minute} {
		for name, err := range map[string]error{"refused": syscall.ECONNREFUSED, "unreachable": syscall.EHOSTUNREACH} {
			t.Run(fmt.Sprint(away, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const nodes = 200
					server := bareAPIServer(t)
					server.set("endpointslices", uniformSlice(0, 2))
					var rigs []*rig
					for range nodes {
						rigs = append(rigs, newRig(t, server))
					}
					time.Sleep(time.Minute)
					for _, r := range rigs {
						r.mu.Lock()
						r.interfere = func(http.ResponseWriter, *http.Request, bool) (bool, error) { return true, err }
						r.mu.Unlock()
					}
					server.cut()
					time.Sleep(away)
					server.set("endpointslices", uniformSlice(0, 3))
					server.forget()
					for _, r := range rigs {
						r.mu.Lock()
						r.interfere, r.asked = nil, nil
						r.mu.Unlock()
					}
					back := time.Now()
					came := map[time.Duration]int{}
					for left := rigs; len(left) > 0; {
						time.Sleep(100 * time.Millisecond)
						synctest.Wait()
						next := []*rig{}
						for _, r := range left {
							if r.endpoints() == 3 {
								came[time.Since(back).Truncate(time.Second)]++
							} else {
								next = append(next, r)
							}
						}
						if left = next; time.Since(back) > 10*time.Second {
							t.Fatalf("%d of %d nodes have no news after ten seconds", len(left), nodes)
						}
					}
					for at, n := range came {
						if away > 10*time.Second && n > nodes/2 {
							t.Errorf("%d of %d nodes came in the second after %s", n, nodes, at)
						}
					}
					for _, r := range rigs {
						if n := listsOf(r.forgetAsked()); n != 1 {
							t.Fatalf("a node listed %d times", n)
						}
					}
				})
			})
		}
	}
}

// TestRefusedAfterReturn: an API server that comes back refuses the watch for some seconds, as it does until it knows
// the roles. There is one list.
func TestRefusedAfterReturn(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(func(http.ResponseWriter, *http.Request, bool) (bool, error) { return true, syscall.ECONNREFUSED })
		time.Sleep(30 * time.Second)
		r.server.forget()
		r.set(func(w http.ResponseWriter, request *http.Request, watch bool) (bool, error) {
			if !watch {
				return false, nil
			}
			return true, status(403, metav1.StatusReasonForbidden)(w, request)
		})
		r.forgetAsked()
		time.Sleep(20 * time.Second)
		r.set(nil)
		r.server.set("endpointslices", sliceAt(0))
		time.Sleep(10 * time.Second)
		if all := r.forgetAsked(); listsOf(all) != 1 || r.endpoints() != 3 {
			t.Errorf("%d endpoints after the requests %v, want one list", r.endpoints(), all)
		}
	})
}

// TestConnectionLost: where a connection dies, a watch goes on from its version at once, however its death shows.
func TestConnectionLost(t *testing.T) {
	for _, err := range []error{
		errors.New("http2: client connection lost"), errors.New("http2: server sent GOAWAY and closed the connection"),
		errors.New("stream error: stream ID 5; INTERNAL_ERROR"), syscall.ETIMEDOUT, syscall.ECONNRESET, io.ErrUnexpectedEOF,
		io.EOF,
	} {
		t.Run(err.Error(), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				lose := make(chan struct{})
				r.set(func(w http.ResponseWriter, _ *http.Request, _ bool) (bool, error) {
					w.WriteHeader(http.StatusOK)
					<-lose
					return true, err
				})
				time.Sleep(time.Minute)
				r.forgetAsked()
				r.mu.Lock()
				r.interfere = nil
				r.mu.Unlock()
				r.server.set("endpointslices", sliceAt(0))
				close(lose)
				synctest.Wait()
				if all := r.forgetAsked(); len(all) != 1 || all[0].from != "1" || r.endpoints() != 3 {
					t.Errorf("asked for %v, and has %d endpoints", all, r.endpoints())
				}
				if told := r.told(); len(told) > 0 {
					t.Errorf("told %q", told)
				}
			})
		})
	}
}

// TestSilentServer: requests that are never answered end, those that go on for ever, and lists of which nothing more
// comes.
func TestSilentServer(t *testing.T) {
	inBubble(t, func(r *rig) {
		hang := func(_ http.ResponseWriter, request *http.Request, _ bool) (bool, error) {
			<-request.Context().Done()
			return true, request.Context().Err()
		}
		r.set(hang)
		time.Sleep(openPatience + time.Second)
		if told := strings.Join(r.told(), "\n"); told != "watch endpointslices: no answer for 1m30s: trying again" ||
			!r.away() {
			t.Errorf("told %q, away: %t", told, r.away())
		}
		r.server.forget()
		r.server.set("endpointslices", sliceAt(0))
		r.set(func(w http.ResponseWriter, request *http.Request, watch bool) (bool, error) {
			if watch {
				return false, nil
			}
			_, _ = io.WriteString(w, "k8s\x00")
			return hang(w, request, watch)
		})
		time.Sleep(2 * openPatience)
		if told := r.told(); len(told) != 1 || told[0] != "list endpointslices: nothing has come for 1m15s: trying again" {
			t.Errorf("told %q", told)
		}
		r.set(nil)
		time.Sleep(2 * openPatience)
		if n := r.endpoints(); n != 3 || r.away() {
			t.Errorf("%d endpoints, away: %t", n, r.away())
		}
		r.forgetAsked()
		time.Sleep(time.Hour)
		if n := len(r.forgetAsked()); n < 5 || n > 12 {
			t.Errorf("%d watches in an hour, of a server that ends none", n)
		}
		if told := r.told(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
	})
}

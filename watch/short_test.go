package watch

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// TestShortWatches: watches that end soon are opened again after pauses that grow, whatever they bring, and the watcher
// takes what they bring. It says so once, and is not away. Watches that last are opened again at once.
func TestShortWatches(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old resource version").ErrStatus
	change := func(version int) runtime.Object {
		s := sliceAt(version)
		s.Endpoints = s.Endpoints[:1+version%3]
		return s
	}
	bookmark := func(version int) runtime.Object {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{ResourceVersion: sliceAt(version).ResourceVersion}}
	}
	for name, c := range map[string]struct {
		brings func(version int) string
		lasts  time.Duration
		// least and most are how many watches there are in ten minutes.
		least, most int
		told        string
	}{
		"a change": {func(v int) string { return eventsOf(t, change(v), apiwatch.Modified) }, 0, 75, 160,
			"watches end within 8s again and again"},
		"three changes": {func(v int) string { return strings.Repeat(eventsOf(t, change(v), apiwatch.Modified), 3) }, 0, 75,
			160, "watches end within 8s again and again"},
		"a removal": {func(v int) string { return eventsOf(t, change(v), apiwatch.Deleted) }, 0, 75, 160,
			"watches end within 8s again and again"},
		"change, expiry": {func(v int) string {
			return eventsOf(t, change(v), apiwatch.Modified) + eventsOf(t, &expired, apiwatch.Error)
		}, 0, 75, 160, ""},
		"bookmark": {func(v int) string { return eventsOf(t, bookmark(v), apiwatch.Bookmark) }, 0, 75, 160,
			"ends as soon as it is open"},
		"half a change": {func(v int) string { return eventsOf(t, change(v), apiwatch.Modified)[:50] }, 0, 75, 160,
			"ends as soon as it is open"},
		"3 s": {func(int) string { return "" }, 3 * time.Second, 75, 160, "watches end within 8s again and again"},
		"3 s, a change": {func(v int) string { return eventsOf(t, change(v), apiwatch.Modified) }, 3 * time.Second, 75, 160,
			"watches end within 8s again and again"},
		"20 s": {func(int) string { return "" }, 20 * time.Second, 29, 30, ""},
		"20 s, a change": {func(v int) string { return eventsOf(t, change(v), apiwatch.Modified) }, 20 * time.Second, 29, 30,
			""},
		"5 min": {func(int) string { return "" }, 5 * time.Minute, 1, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				version := 1000
				r.set(func(w http.ResponseWriter, _ *http.Request, watch bool) (bool, error) {
					if !watch {
						return false, nil
					}
					version++
					w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
					w.WriteHeader(http.StatusOK)
					_, err := io.WriteString(w, c.brings(version))
					time.Sleep(c.lasts)
					return true, err
				})
				r.forgetAsked()
				time.Sleep(10 * time.Minute)
				all := r.forgetAsked()
				if n := len(all) - listsOf(all); n < c.least || n > c.most {
					t.Errorf("%d watches in ten minutes, want %d to %d", n, c.least, c.most)
				}
				told := r.told()
				if len(told) > 2 || !strings.Contains(strings.Join(told, "\n"), c.told) || c.told == "" && len(told) > 0 {
					t.Errorf("told %q, want %q", told, c.told)
				}
				if away := strings.Contains(errEnded.Error(), c.told) && c.told != ""; r.away() != away {
					t.Errorf("away: %t, want %t", r.away(), away)
				}
				for range 10 { // Its versions are greater than those that the watches brought.
					r.server.forget()
				}
				r.server.set("endpointslices", sliceAt(0))
				r.set(nil)
				time.Sleep(2*longestPause + c.lasts)
				if n := r.endpoints(); n != 3 {
					t.Errorf("%d endpoints once the server is well, want 3", n)
				}
			})
		})
	}
}

// TestBrokenWatch: a watch that breaks once is opened again at once where it was open for a while, and soon where it
// was not.
func TestBrokenWatch(t *testing.T) {
	for lasted, most := range map[time.Duration]time.Duration{
		10 * time.Millisecond: firstPause, 2 * time.Second: 0, time.Minute: 0,
	} {
		inBubble(t, func(r *rig) {
			time.Sleep(time.Hour)
			r.set(nil) // ends the watch: the next one is new
			time.Sleep(time.Minute)
			r.set(nil)
			time.Sleep(lasted)
			r.server.set("endpointslices", sliceAt(0))
			r.forgetAsked()
			began := time.Since(r.start)
			r.set(nil)
			time.Sleep(time.Second)
			if all := r.forgetAsked(); len(all) != 1 || all[0].at-began > most {
				t.Errorf("after %s: asked for %v since %s, want one after %s", lasted, all, began, most)
			}
		})
	}
}

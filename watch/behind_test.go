package watch

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBehind: an API server that refuses a bad token, or rights that it gave before, is told of with the time and the
// reason, as long as that lasts. What was known stays.
func TestBehind(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		word string
	}{"a bad token": {http.StatusUnauthorized, "Unauthorized"}, "rights taken away": {http.StatusForbidden,
		"services is forbidden"}} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.set("nodes", node("192.168.0.2"))
			s.set("services", uniformService(0))
			o := observe(t, s, Options{})
			o.await(textNode + textSvc0)
			if b := o.Behind(); b.String() != "" {
				t.Errorf("at the start: %s", b)
			}
			start := time.Now()
			for _, resource := range []string{"services", "endpointslices"} {
				s.refuse(resource, c.code)
			}
			s.server.CloseClientConnections() // the token is looked at with each request
			o.awaitProblem(func(p Problem) bool { return strings.Contains(p.Error(), c.word) })
			b := o.awaitBehind(func(b Behind) bool { return slices.Equal(b.Resources, []string{"endpointslices", "services"}) })
			if b.Since.Before(start) || time.Since(b.Since) > patience || b.Err == nil {
				t.Errorf("behind since %s, %v", b.Since, b.Err)
			}
			o.awaitBehind(func(b Behind) bool {
				return b.Err != nil && strings.Contains(b.String(), "forbidden") || strings.Contains(b.String(), "Unauthorized")
			})
			if got := o.last.String(); got != textNode+textSvc0 {
				t.Errorf("meanwhile:\n%s", got)
			}
			for _, resource := range []string{"services", "endpointslices"} {
				s.refuse(resource, 0)
			}
			o.awaitBehind(func(b Behind) bool { return b.String() == "" })
		})
	}
}

// awaitBehind asks until the answer is as wanted.
func (o *observer) awaitBehind(wanted func(Behind) bool) Behind {
	o.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		b := o.Behind()
		if wanted(b) {
			return b
		}
		if time.Now().After(end) {
			o.Fatalf("behind: %+v", b)
		}
	}
}

// TestBehindText: the sentence has the time, what is behind and why.
func TestBehindText(t *testing.T) {
	b := Behind{Resources: []string{"endpointslices", "services"}, Since: time.Date(2026, 11, 25, 8, 0, 0, 0, time.UTC),
		Err: errors.New("Unauthorized")}
	const want = "the rules serve what was known at 2026-11-25T08:00:00Z; since then the API server has not told of " +
		"endpointslices, services (Unauthorized)"
	if got := b.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

package watch

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// TestSlowStart: a new endpoint beside another grows in two steps, each a snapshot of its own, and without any event
// of an object. One of an earlier process does not.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, out := publisher()
		w.opts.SlowStart = true
		go w.loop(ctx)
		object := dualStack(1)
		object.Annotations = map[string]string{"nftproxy.io/slow-start": "20s"}
		slice := func(endpoints ...string) *discoveryv1.EndpointSlice {
			s := slice1(ip.V4)
			s.Endpoints = nil
			for _, a := range endpoints {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.0." + a}})
			}
			return s
		}
		set := func(s *discoveryv1.EndpointSlice) {
			w.change(func(ix *index) { ix.setSlice(convertSlice(s)) })
			synctest.Wait()
		}
		weights := func() string {
			update, ok := out.Take()
			if !ok {
				return "nothing"
			}
			var words []string
			for e := range update.Snapshot.Services.At("default/svc-1").Ports[0].Endpoints.All() {
				words = append(words, fmt.Sprint(e.Quarters()/4))
			}
			return strings.Join(words, " ")
		}
		expect := func(want string) {
			t.Helper()
			if got := weights(); got != want {
				t.Errorf("after %s: weights %s, want %s", w.now().Format(time.TimeOnly), got, want)
			}
		}
		w.change(func(ix *index) { ix.setService(convertService(object)) })
		synctest.Wait()
		out.Take()
		set(slice("1"))
		expect("100")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		expect("nothing")
		set(slice("1", "2"))
		expect("100 25")
		for _, part := range []int{50, 100} {
			time.Sleep(9999 * time.Millisecond)
			synctest.Wait()
			expect("nothing")
			time.Sleep(time.Millisecond)
			synctest.Wait()
			expect(fmt.Sprint("100 ", part))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		expect("nothing")
		if next := w.nextEdit(); !next.IsZero() {
			t.Errorf("nothing grows, and the next step is due at %s", next)
		}

		set(slice("1", "2", "3"))
		expect("100 100 25")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		expect("100 100 50")
		// Whoever is left alone has its whole weight.
		set(slice("3"))
		expect("100")
	})
}

// TestSlowStartBound: the Services of a namespace that have new endpoints have 1,024 at most. More start with their
// whole weight, and a problem says so once, until there has been room again.
func TestSlowStartBound(t *testing.T) {
	w, out := publisher()
	w.opts.SlowStart = true
	var problems []Problem
	w.opts.Report = func(p Problem) { problems = append(problems, p) }
	object := dualStack(1)
	object.Annotations = map[string]string{"nftproxy.io/slow-start": "20s"}
	w.change(func(ix *index) { ix.setService(convertService(object)) })
	w.publish()
	for _, step := range []struct{ endpoints, followed, problems int }{ // of one slice, more than an API server takes
		{999, 1, 0}, {1000, 1, 0}, {1100, 0, 1}, {1099, 0, 1}, {1100, 0, 1}, {1000, 0, 1}, {1001, 1, 1}, {1100, 0, 2},
	} {
		s := slice1(ip.V4)
		s.Endpoints = nil
		for i := range step.endpoints {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", i/250,
				i%250)}})
		}
		w.change(func(ix *index) { ix.setSlice(convertSlice(s)) })
		w.publish()
		if w.starts.Growing() != step.followed || len(problems) != step.problems {
			t.Fatalf("%d endpoints: %d Services are followed and %d problems reported, want %d and %d", step.endpoints,
				w.starts.Growing(), len(problems), step.followed, step.problems)
		}
	}
	if !strings.Contains(problems[0].Error(), "whole weight at once") {
		t.Errorf("problem %v", problems[0])
	}
	update, _ := out.Take()
	for e := range update.Snapshot.Services.At("default/svc-1").Ports[0].Endpoints.All() {
		if e.Share != service.WholeShare {
			t.Fatalf("%s has %s of its weight", e.Addr, e.Share)
		}
	}
}

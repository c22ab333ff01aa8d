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
				words = append(words, fmt.Sprint(e.Weight.Number()))
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
		if due, ok := w.growthDue(); ok {
			t.Errorf("nothing grows, and the next step is due at %s", due)
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

// TestSlowStartBound: the Services of a namespace that have new endpoints have 1,024 at most. More start with their whole
// weight, and a problem says so.
func TestSlowStartBound(t *testing.T) {
	w, out := publisher()
	var problems []Problem
	w.opts.Report = func(p Problem) { problems = append(problems, p) }
	object := dualStack(1)
	object.Annotations = map[string]string{"nftproxy.io/slow-start": "20s"}
	w.change(func(ix *index) { ix.setService(convertService(object)) })
	w.publish()
	for _, n := range []int{999, 1000, 1100} { // of one slice, more than an API server takes
		s := slice1(ip.V4)
		s.Endpoints = nil
		for i := range n {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", i/250, i%250)}})
		}
		w.change(func(ix *index) { ix.setSlice(convertSlice(s)) })
		w.publish()
		if want := map[int]int{1000: 1}[n]; w.starts.Growing() != want {
			t.Errorf("%d endpoints: %d Services are followed, want %d", n, w.starts.Growing(), want)
		}
	}
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "whole weight at once") {
		t.Errorf("problems %v, want one", problems)
	}
	update, _ := out.Take()
	for e := range update.Snapshot.Services.At("default/svc-1").Ports[0].Endpoints.All() {
		if e.Weight != service.NewWeight(100) {
			t.Fatalf("%s has the weight %d", e.Addr, e.Weight.Number())
		}
	}
}

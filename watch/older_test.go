package watch

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnknownField: an API server before 1.31 does not know spec.clusterIP of Services. It is asked without the
// selector, for the list and for the watch, without a word, and what it sends too much is left out.
func TestUnknownField(t *testing.T) {
	s := newAPIServer(t)
	s.resources["services"].noFields = true
	headless := uniformService(1)
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	s.set("nodes", node("192.168.0.2"))
	s.set("services", headless)
	o := observe(t, s, Options{})
	o.await(textNode)
	s.set("services", uniformService(0))
	o.await(textNode + textSvc0)
	s.set("services", headless.DeepCopy())
	s.remove("services", "svc-0")
	o.await(textNode)
	o.noProblem()

	// After the list that asked in vain, neither the watch nor the next list asks for the field.
	s.forget()
	s.set("services", uniformService(0))
	o.await(textNode + textSvc0)
	queries := s.seen("services")
	for i, q := range queries {
		if got, want := q.Get("fieldSelector"), i == 0; (got != "") != want {
			t.Errorf("request %d of %d asks for the fields %q", i, len(queries), got)
		}
	}
}

// TestFieldsAgain: an API server that refuses a selector gets it again after some minutes, and not before; a request
// that is bad for another reason is one.
func TestFieldsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := apierrors.NewBadRequest("no")
		w := &ways[*serviceObject]{list: serviceWays(&Client{})}
		known, selected, asked := false, 0, 0
		ask := func(way way[*serviceObject]) error {
			asked++
			if way.selectors.FieldSelector == "" {
				return nil
			}
			selected++
			if !known {
				return bad
			}
			return nil
		}
		for range 60 {
			if err := w.ask(ask); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if least, most := 60/9, 60/4; selected < least || selected > most {
			t.Errorf("asked for the field %d times in an hour, want %d to %d", selected, least, most)
		}
		known, selected, asked = true, 0, 0
		time.Sleep(longestLack)
		if err := w.ask(ask); err != nil || asked != 1 || selected != 1 {
			t.Errorf("after an upgrade: asked %d times, %d for the field, %v", asked, selected, err)
		}
		if err := w.ask(func(way[*serviceObject]) error { return bad }); !errors.Is(err, bad) {
			t.Errorf("a request that is bad in any form: %v", err)
		}
	})
}

// TestServiceCIDRsBeta: where the API server has ServiceCIDRs in v1beta1 only, they count, and their changes do.
func TestServiceCIDRsBeta(t *testing.T) {
	s := newAPIServer(t)
	s.resources["servicecidrs"].version = networkingv1beta1.SchemeGroupVersion
	s.set("nodes", node("192.168.0.2"))
	s.set("servicecidrs", betaCIDR("kubernetes", "10.96.0.0/12"))
	o := observe(t, s, Options{ListTimeout: time.Hour})
	o.await(textNode + "service-cidr 10.96.0.0/12\n")
	s.set("servicecidrs", betaCIDR("more", "10.112.0.0/16"))
	o.await(textNode + "service-cidr 10.112.0.0/16\nservice-cidr 10.96.0.0/12\n")
	s.remove("servicecidrs", "kubernetes")
	o.await(textNode + "service-cidr 10.112.0.0/16\n")
	o.noProblem()
}

func betaCIDR(name string, cidrs ...string) *networkingv1beta1.ServiceCIDR {
	return &networkingv1beta1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1beta1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// TestNoServiceCIDRs: an API server without ServiceCIDRs is one problem, which is no failed request.
func TestNoServiceCIDRs(t *testing.T) {
	s := newAPIServer(t)
	s.refuse("servicecidrs", http.StatusNotFound)
	s.set("nodes", node("192.168.0.2"))
	s.set("services", uniformService(0))
	o := observe(t, s, Options{ListTimeout: time.Hour})
	p := o.awaitProblem(func(Problem) bool { return true })
	if absent := (*AbsentError)(nil); !errors.As(p, &absent) || absent.Resource != "servicecidrs" {
		t.Errorf("said %v", p)
	}
	o.await(textNode + textSvc0)
	o.noProblem()
}

// TestLacks: an API server is asked for a resource that the proxy can do without, and that it does not have, every few
// minutes only. Where it had it before, or refuses it, it is asked soon at first.
func TestLacks(t *testing.T) {
	for name, c := range map[string]struct {
		seen, optional bool
		code           int
		least, most    int // requests in an hour
		first          time.Duration
	}{
		"never there":        {false, true, http.StatusNotFound, 7, 16, 8 * time.Minute},
		"there before":       {true, true, http.StatusNotFound, 15, 30, time.Second},
		"forbidden":          {false, true, http.StatusForbidden, 15, 30, time.Second},
		"one that is needed": {false, false, http.StatusNotFound, 400, 1000, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := bareAPIServer(t)
				server.refuse("endpointslices", c.code)
				r := newRig(t, server, func(l *listWatch[*sliceObject]) { l.optional, l.seen = c.optional, c.seen })
				time.Sleep(time.Hour)
				asked := r.forgetAsked()
				if n := len(asked); n < c.least || n > c.most {
					t.Errorf("asked %d times in an hour, want %d to %d", n, c.least, c.most)
				}
				if len(asked) > 1 && asked[1].at > c.first {
					t.Errorf("the first wait took %s, want %s at most", asked[1].at, c.first)
				}
				server.refuse("endpointslices", 0)
				server.set("endpointslices", uniformSlice(0, 2))
				time.Sleep(longestLack)
				if n := r.endpoints(); n != 2 {
					t.Errorf("%d endpoints %s after it is there", n, longestLack)
				}
			})
		})
	}
}

// noProblem checks that nothing has been reported so far but what a test has taken.
func (o *observer) noProblem() {
	o.Helper()
	for {
		select {
		case p := <-o.reported:
			o.Errorf("said %v", p)
		default:
			return
		}
	}
}

package watch

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnknownField: an API server before 1.31 does not know spec.clusterIP of Services. It is asked without the selector,
// for the list and for the watch, without a word, and what it sends too much is left out.
func TestUnknownField(t *testing.T) {
	s := newAPIServer(t)
	s.resources["services"].noFields = true
	headless := kindService(uniformService(1))
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	s.set("nodes", node("192.168.0.2"))
	s.set("services", headless)
	o := observe(t, s, Options{})
	o.await(textNode)
	s.set("services", kindService(uniformService(0)))
	o.await(textNode + textSvc0)
	s.set("services", headless.DeepCopy())
	s.remove("services", "svc-0")
	o.await(textNode)
	o.noProblem()

	// After the list that asked in vain, neither the watch nor the next list asks for the field.
	s.forget()
	s.set("services", kindService(uniformService(0)))
	o.await(textNode + textSvc0)
	queries := s.seen("services")
	for i, q := range queries {
		if got, want := q.Get("fieldSelector"), i == 0; (got != "") != want {
			t.Errorf("request %d of %d asks for the fields %q", i, len(queries), got)
		}
	}
}

// TestFieldsAgain: an API server that refuses a selector gets it again after some minutes, and not before; a request that
// is bad for another reason is one.
func TestFieldsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		known := false
		bad := apierrors.NewBadRequest("no")
		ask := func(_ context.Context, options metav1.ListOptions) (int, error) {
			asked = append(asked, options.FieldSelector)
			if options.FieldSelector != "" && !known {
				return 0, bad
			}
			return 1, nil
		}
		var again time.Time
		for range 60 {
			if n, err := askKnown(t.Context(), &again, metav1.ListOptions{FieldSelector: serviceFields}, ask); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			time.Sleep(time.Minute)
		}
		selected := 0
		for _, fields := range asked {
			if fields != "" {
				selected++
			}
		}
		if least, most := 60/8, 60/5; selected < least || selected > most {
			t.Errorf("asked for the field %d times in an hour, want %d to %d", selected, least, most)
		}
		known, asked = true, nil
		time.Sleep(2 * lackPeriod)
		if _, err := askKnown(t.Context(), &again, metav1.ListOptions{FieldSelector: serviceFields}, ask); err != nil || len(asked) != 1 || asked[0] == "" {
			t.Errorf("after an upgrade: asked for %q, %v", asked, err)
		}
		_, err := askKnown(t.Context(), &again, metav1.ListOptions{FieldSelector: serviceFields}, func(context.Context, metav1.ListOptions) (int, error) { return 0, bad })
		if !errors.Is(err, bad) {
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
	return &networkingv1beta1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1beta1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// TestNoServiceCIDRs: an API server without ServiceCIDRs is one problem, which is no failed request.
func TestNoServiceCIDRs(t *testing.T) {
	s := newAPIServer(t)
	s.refuse("servicecidrs", http.StatusNotFound)
	s.set("nodes", node("192.168.0.2"))
	s.set("services", kindService(uniformService(0)))
	o := observe(t, s, Options{ListTimeout: time.Hour})
	p := o.awaitProblem(func(Problem) bool { return true })
	if absent := (*AbsentError)(nil); !errors.As(p, &absent) || absent.Resource != "servicecidrs" {
		t.Errorf("said %v", p)
	}
	o.await(textNode + textSvc0)
	o.noProblem()
}

// TestLacks: an API server is asked for ServiceCIDRs that it does not have every few minutes only. Where it had them
// before, or refuses them, it is asked soon at first.
func TestLacks(t *testing.T) {
	notFound := apierrors.NewNotFound(networkingv1.Resource("servicecidrs"), "")
	forbidden := apierrors.NewForbidden(networkingv1.Resource("servicecidrs"), "", nil)
	for name, c := range map[string]struct {
		seen        bool
		err         error
		least, most int // requests in an hour
		first       time.Duration
	}{
		"never there":  {false, notFound, 8, 12, 8 * time.Minute},
		"there before": {true, notFound, 14, 22, 2 * time.Second},
		"forbidden":    {false, forbidden, 14, 22, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := NewWatcher(Options{}, nil).newRequests("servicecidrs")
				r.optional = true
				if c.seen {
					r.lacks(t.Context(), nil)
				}
				start, asked := time.Now(), 0
				for time.Since(start) < time.Hour {
					if !r.lacks(t.Context(), c.err) {
						t.Fatal("did not wait")
					}
					if asked++; asked == 1 && time.Since(start) > c.first {
						t.Errorf("the first wait took %s, want %s at most", time.Since(start), c.first)
					}
				}
				if asked < c.least || asked > c.most {
					t.Errorf("asked %d times in an hour, want %d to %d", asked, c.least, c.most)
				}
				if r.lacks(t.Context(), apierrors.NewInternalError(errors.New("x"))) || r.lacks(t.Context(), nil) {
					t.Error("waited for a resource that is there")
				}
				if r.optional = false; r.lacks(t.Context(), c.err) {
					t.Error("waited for a resource that the proxy needs")
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

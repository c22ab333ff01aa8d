package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// publisher is a watcher that publishes when it is told to.
func publisher() (*Watcher, *service.Mailbox) {
	out := service.NewMailbox()
	w := NewWatcher(Options{Node: "node-0"}, out)
	w.synced, w.bounds = true, newBounds()
	return w, out
}

// dualStack is a Service with a cluster IP of each family; n distinguishes it.
func dualStack(n int) *corev1.Service {
	ips := []string{fmt.Sprint("10.96.0.", n), fmt.Sprint("fd00:96::", n)}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("svc-", n)},
		Spec:       corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// slice1 is a slice of the first such Service with one endpoint.
func slice1(family ip.Family) *discoveryv1.EndpointSlice {
	protocol, port := corev1.ProtocolTCP, int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-4",
			Labels: map[string]string{discoveryv1.LabelServiceName: "svc-1"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Protocol: &protocol, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}}},
	}
	if family == ip.V6 {
		s.Name, s.AddressType, s.Endpoints[0].Addresses = "web-6", discoveryv1.AddressTypeIPv6, []string{"fd00:244::1"}
	}
	return s
}

// TestTriggers: a slice that changes gives the time of its cause once. An older one than
// the watcher counts for nothing, nor does a slice that stays the same or goes.
func TestTriggers(t *testing.T) {
	w, out := publisher()
	at := w.index.start.Add(time.Minute).UTC().Truncate(time.Nanosecond)
	slice := func(family ip.Family, ready bool, trigger time.Time) *discoveryv1.EndpointSlice {
		s := slice1(family)
		s.Endpoints[0].Conditions.Ready = &ready
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger.Format(time.RFC3339Nano)}
		return s
	}
	set := func(s *discoveryv1.EndpointSlice) { w.change(func(ix *index) { ix.setSlice(convertSlice(s)) }) }
	want := func(what string, v4, v6 []time.Time) {
		t.Helper()
		w.publish()
		u, _ := out.Take()
		if diff := cmp.Diff(service.Triggers{PerFamily: ip.PerFamily[[]time.Time]{v4, v6}}, u.Triggers); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	w.change(func(ix *index) { ix.setService(convertService(dualStack(1))) })
	set(slice(ip.V4, true, at))
	set(slice(ip.V6, true, at.Add(time.Second)))
	want("two new slices", []time.Time{at}, []time.Time{at.Add(time.Second)})
	set(slice(ip.V4, true, at.Add(2*time.Second)))
	want("a slice that stays the same", nil, nil)
	w.change(func(ix *index) {
		ix.setSlice(convertSlice(slice(ip.V4, false, at.Add(3*time.Second))))
		ix.setSlice(convertSlice(slice(ip.V4, true, at.Add(4*time.Second))))
		ix.setSlice(convertSlice(slice(ip.V4, false, at.Add(5*time.Second))))
	})
	want("three changes", []time.Time{at.Add(3 * time.Second), at.Add(4 * time.Second), at.Add(5 * time.Second)}, nil)
	set(slice(ip.V6, false, w.index.start.Add(-time.Second)))
	want("an old cause", nil, nil)
	w.change(func(ix *index) { ix.deleteSlice(service.NewName("default", "web-4")) })
	want("a slice that goes", nil, nil)
}

// TestPublishedAtOnce: a change whose predecessor was taken is in the mailbox when change
// returns. The loop is woken for a change that comes before that, and for problems.
func TestPublishedAtOnce(t *testing.T) {
	w, out := publisher()
	woken := func() bool {
		select {
		case <-w.wake:
			return true
		default:
			return false
		}
	}
	set := func(s *corev1.Service) { w.change(func(ix *index) { ix.setService(convertService(s)) }) }
	set(dualStack(1))
	if woken() || out.Empty() {
		t.Error("the first change is not in the mailbox at once")
	}
	set(dualStack(2))
	if !woken() {
		t.Error("nobody publishes a change that comes before its predecessor is taken")
	}
	w.publish()
	if u, _ := out.Take(); u.Snapshot.Services.Len() != 2 || u.Changes.Services != 2 {
		t.Errorf("%d services after %d changes, want 2", u.Snapshot.Services.Len(), u.Changes.Services)
	}
	set(dualStack(2))
	if woken() || !out.Empty() {
		t.Error("a change without a difference is published")
	}
	bad := dualStack(3)
	bad.Spec.ExternalIPs = []string{"nonsense"}
	set(bad)
	if !woken() || out.Empty() {
		t.Error("a change with a problem is not in the mailbox at once, or nobody reports the problem")
	}
}

// TestTriggerTime: a time that cannot be read is reported.
func TestTriggerTime(t *testing.T) {
	s := slice1(ip.V4)
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "yesterday"}
	object := convertSlice(s)
	if !object.trigger.IsZero() || len(object.ports) != 1 {
		t.Errorf("trigger %v, %d ports", object.trigger, len(object.ports))
	}
	const want = `EndpointSlice default/web-4: metadata.annotations[endpoints.kubernetes.io/last-change-trigger-time]: ` +
		`"yesterday": ` +
		`not a time such as 2006-01-02T15:04:05.999Z: the delay of this change is not measured`
	if len(object.problems) != 1 || object.problems[0].Error() != want {
		t.Errorf("problems %v, want %s", object.problems, want)
	}
}

// TestPending: a change is pending until an update that counts it is in force, unless it
// makes no difference to one that is.
func TestPending(t *testing.T) {
	w, out := publisher()
	services := func(n uint64) service.Changes { return service.Changes{Services: n} }
	want := func(what string, inForce, pending service.Changes) {
		t.Helper()
		if got := w.Pending(inForce); got != pending {
			t.Errorf("%s: %+v pending, want %+v", what, got, pending)
		}
	}
	set := func(n int) { w.change(func(ix *index) { ix.setService(convertService(dualStack(n))) }) }
	set(1)
	want("before the first update", service.Changes{}, services(1))
	w.publish()
	want("in the mailbox", service.Changes{}, services(1))
	u, _ := out.Take()
	want("in force", u.Changes, services(0))
	set(1)
	want("the same again", u.Changes, services(0))
	set(2)
	w.publish()
	want("another", u.Changes, services(2)) // with the one before, which is not in force by itself
	u, _ = out.Take()
	want("both in force", u.Changes, services(0))
	if got := w.Changes(); got != services(3) {
		t.Errorf("%+v in all", got)
	}
	w.change(func(ix *index) {
		ix.deleteService(service.NewName("default", "svc-1"))
		ix.setSlice(convertSlice(slice1(ip.V4)))
		ix.deleteSlice(service.NewName("default", "web-4"))
	})
	if got, all := w.Changes(), (service.Changes{Services: 4, EndpointSlices: 2}); got != all {
		t.Errorf("%+v in all, want %+v", got, all)
	}
}

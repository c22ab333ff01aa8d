package workload

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nftproxy/test/lib/controlplane"
)

// at is a time of the trials in these tests: seconds since the API server went away.
func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// outageOf is a trial of 30 s, with the notes of a record.
func outageOf(r *record, failures ...Failure) *account {
	return &account{
		phases: []phase{
			{name: "before", from: at(-10), to: at(0)}, {name: "away", from: at(0), to: at(30)},
			{name: "starting", from: at(30), to: at(33)}, {name: "back", from: at(33), to: at(120)},
		},
		notes: r.taken(), failures: failures,
	}
}

func failure(began, ended float64, client string) Failure {
	return Failure{Began: at(began), Ended: at(ended), Client: client, Err: errors.New("refused")}
}

// sliceOf is the slice of a family, with endpoints that are ready or not.
func sliceOf(name string, ready ...bool) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}}
	for i, r := range ready {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint(name, i)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(r)}})
	}
	return s
}

// emptied is a record in which both families lose their endpoints, from 40 s to 53 s for both.
func emptied() *record {
	r := newRecord("smoke", "web")
	for _, w := range []controlplane.Write{
		{At: at(-20), Object: sliceOf("a", true, true)}, {At: at(-20), Object: sliceOf("b", true, true)},
		{At: at(39), Object: sliceOf("a", false, true)}, {At: at(39.5), Object: sliceOf("a", false, false)},
		{At: at(40), Object: sliceOf("b", false, false)},
		{At: at(45), Object: sliceOf("b", false, false)}, // no change
		{At: at(53), Object: sliceOf("b", true, false)}, {At: at(54), Object: sliceOf("a", true, true)},
	} {
		r.take(w)
	}
	return r
}

func TestBlame(t *testing.T) {
	for _, c := range []struct {
		name    string
		failure Failure
		others  int
	}{
		{"without endpoints", failure(45, 45.1, "pod"), 0},
		{"begun before they went, ended after", failure(39, 41, "pod"), 0},
		{"begun just after they came back", failure(54, 54.1, "pod"), 0},
		{"while the API server was away", failure(10, 10.1, "pod"), 1},
		{"ended before they went", failure(39, 39.9, "pod"), 1},
		{"long after they came back", failure(59, 59.1, "pod"), 1},
		{"a datagram on its way when an endpoint went", failure(38.9, 43.9, "pod by udp"), 0},
		{"a datagram later", failure(60, 65, "pod by udp"), 1},
		{"on an open connection, which needs no endpoint", failure(45, 45.1, "pod, open since before"), 1},
	} {
		a := outageOf(emptied(), c.failure)
		if itsWord, others := a.blame(); len(others) != c.others || len(itsWord) != 1-c.others {
			t.Errorf("%s: %d because of the control plane, %d others; want %d others", c.name, len(itsWord), len(others),
				c.others)
		}
		if err := a.verdict(); (err != nil) != (c.others > 0) {
			t.Errorf("%s: verdict %v", c.name, err)
		}
	}
}

// TestEmptyToTheEnd: endpoints that do not come back are away until the end of the trial.
func TestEmptyToTheEnd(t *testing.T) {
	r := newRecord("smoke", "web")
	r.take(controlplane.Write{At: at(-20), Object: sliceOf("a", true)})
	r.take(controlplane.Write{At: at(50), Object: sliceOf("a", false)})
	spans := outageOf(r).empty()
	if len(spans) != 1 || !spans[0].from.Equal(at(50)) || !spans[0].to.Equal(at(120)) {
		t.Errorf("without endpoints: %v", spans)
	}
}

// TestWriter: of a change the writer is named, and only changes are noted.
func TestWriter(t *testing.T) {
	// A manager has fewer fields once another one has changed them.
	fields := func(manager string, second int64, raw string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status",
			Time: ptr.To(metav1.Unix(second, 0)), FieldsV1: metav1.NewFieldsV1(raw),
		}
	}
	pod := func(status corev1.ConditionStatus, managed ...metav1.ManagedFieldsEntry) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-1", ManagedFields: managed}, Spec: corev1.PodSpec{NodeName: "node-1"},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
		}
	}
	r := newRecord("smoke", "web")
	const two, one = `{"f:a":{},"f:b":{}}`, `{"f:a":{}}`
	r.take(controlplane.Write{At: at(-20), Object: pod(corev1.ConditionTrue, fields("kubelet", 1, two))})
	r.notes = nil
	r.take(controlplane.Write{At: at(40), Object: pod(corev1.ConditionFalse, fields("kubelet", 1, one),
		fields("kube-controller-manager", 2, one))})
	r.take(controlplane.Write{At: at(41), Object: pod(corev1.ConditionFalse, fields("kubelet", 1, one),
		fields("kube-controller-manager", 2, one), fields("scheduler", 3, one))})
	r.take(controlplane.Write{At: at(53), Object: pod(corev1.ConditionTrue, fields("kubelet", 4, two),
		fields("scheduler", 3, one))})
	var got []string
	for _, n := range r.taken() {
		got = append(got, n.text)
	}
	want := []string{
		"Pod web-1 on node-1: Ready is False, written by kube-controller-manager",
		"Pod web-1 on node-1: Ready is True, written by kubelet",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("notes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAccount: the account tells each phase, and of the leases the last renewal before the return and the first after
// it.
func TestAccount(t *testing.T) {
	r := emptied()
	for _, second := range []float64{-9, -3, 34, 44} {
		r.notes = append(r.notes, note{at: at(second), text: "Lease of node-1 is renewed", ready: -1, renewal: true})
	}
	var out bytes.Buffer
	outageOf(r, failure(45, 45.1, "pod")).write(&out)
	for _, want := range []string{
		"  +0.0 s  away, for 30.0 s", "  -3.0 s  Lease", " +34.0 s  Lease", "no endpoint was ready for 13.0 s, from  +40.0 " +
			"s to  +53.0 s\n",
		"1 requests failed because endpoints had gone, the first at  +45.1 s", "0 requests failed for another reason\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the account lacks %q:\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "Lease"); n != 2 {
		t.Errorf("%d renewals are told, want 2:\n%s", n, out.String())
	}
}

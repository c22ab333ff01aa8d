package watch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"nftproxy/model/service"
)

// eventStore keeps events as the API server does, by their names.
type eventStore struct {
	mu      sync.Mutex
	events  map[string]*corev1.Event
	creates int
	refuses error
	// stored has the name of each object whose event has arrived.
	stored chan string
}

func newEventStore() *eventStore {
	return &eventStore{events: map[string]*corev1.Event{}, stored: make(chan string, 10000)}
}

func (s *eventStore) Create(e *corev1.Event) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.stored <- e.InvolvedObject.Name }()
	s.creates++
	resource, key := schema.GroupResource{Resource: "events"}, e.Namespace+"/"+e.Name
	switch {
	case s.refuses != nil:
		return nil, s.refuses
	case s.events[key] != nil:
		return nil, apierrors.NewAlreadyExists(resource, e.Name)
	case len(validation.IsDNS1123Subdomain(e.Name)) > 0:
		return nil, apierrors.NewBadRequest("name " + e.Name)
	}
	s.events[key] = e.DeepCopy()
	return e.DeepCopy(), nil
}

func (s *eventStore) Update(*corev1.Event) (*corev1.Event, error) { panic("not used") }

func (s *eventStore) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := e.Namespace + "/" + e.Name
	if s.events[key] == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, e.Name)
	}
	s.events[key] = e.DeepCopy()
	s.stored <- e.InvolvedObject.Name
	return e.DeepCopy(), nil
}

// await waits until an event for the object has come. All earlier events of the same
// recorder have come by then.
func (s *eventStore) await(object string) {
	for name := range s.stored {
		if name == object {
			return
		}
	}
}

// notes lists the texts of the events, each with its count.
func (s *eventStore) notes() map[string]int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	notes := map[string]int32{}
	for _, e := range s.events {
		o := &e.InvolvedObject
		notes[fmt.Sprintf("%s %s/%s %s: %s", o.Kind, e.Namespace, o.Name, e.Reason, e.Message)] += e.Count
	}
	return notes
}

func recorderForTest(t *testing.T, s *eventStore, node string) (emit func(Event), unwritten func() []error) {
	var mu sync.Mutex
	var failed []error
	emit = newRecorder(t.Context(), s, node, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = append(failed, err)
	})
	return emit, func() []error {
		mu.Lock()
		defer mu.Unlock()
		return failed
	}
}

func aService(name string) Object {
	return Object{Kind: "Service", Namespace: "shop", Name: name, UID: "u-" + name}
}

func TestProblemEvent(t *testing.T) {
	web := aService("web")
	claim := service.Claim{Addr: netip.MustParseAddr("203.0.113.7"), Protocol: service.TCP, Port: 80}
	for name, c := range map[string]struct {
		problem Problem
		want    Event // without Reason: none
	}{
		"a bad field": {
			Problem{Object: web, Field: "spec.externalIPs[1]", Err: &ValueError{Value: "1.2.3", Reason: "not an IP address"}},
			Event{web, "spec.externalIPs[1]", ReasonInvalid, `spec.externalIPs[1]: "1.2.3": not an IP address`},
		},
		"a conflict": {
			Problem{Object: web,
				Err: &ConflictError{ConflictList{Conflicts: []string{claim.String() + " belongs to Service shop/older"}}}},
			Event{web, "", ReasonConflict, "203.0.113.7:80/tcp belongs to Service shop/older"},
		},
		"a claim that the node needs": {
			Problem{Object: web, Err: &ProtectedError{ConflictList{Conflicts: []string{claim.String() + ": the kubelet's"},
				More: 2}}},
			Event{web, "", ReasonProtected, "not served: 203.0.113.7:80/tcp: the kubelet's; and 2 more"},
		},
		"too large": {
			Problem{Object: web, Err: &SizeError{service.LeftOut{Limit: 100, ExternalIPs: 2}}},
			Event{web, "", ReasonTooLarge, "left out: 2 external IPs: the service would take more than 100 elements " +
				"(--nftproxy-max-service-elements)"},
		},
		"without affinity": {
			Problem{Object: web, Err: &AffinityError{service.WithoutAffinity{Ports: 1, Limit: 25, Namespace: true}}},
			Event{web, "", ReasonWithoutAffinity, "served without session affinity, by a hash of the client's address: the " +
				"services of one namespace may have it on 25 ports, the oldest first (a quarter of --nftproxy-max-affinity-ports)"},
		},
		"too many for affinity": {
			Problem{Object: web, Err: &AffinityError{service.WithoutAffinity{Ports: 1, Limit: 100}}},
			Event{web, "", ReasonWithoutAffinity, "served without session affinity, by a hash of the client's address: all " +
				"services together may have it on 100 ports, the oldest first (--nftproxy-max-affinity-ports)"},
		},
		"source ranges closed": {
			Problem{Object: web, Err: &SourcesError{service.ClosedSources{Limit: 100}}},
			Event{web, "", ReasonSourcesClosed, "no client is let in where source ranges apply: there is room for 100 " +
				"different lists of source ranges, and for 25 by the Services of one namespace, the oldest Services first " +
				"(--nftproxy-max-source-lists)"},
		},
		"externalIPs ignored": {
			Problem{Object: web, Field: "spec.externalIPs", Err: ErrExternalIPsIgnored},
			Event{web, "spec.externalIPs", ReasonExternalIPsIgnored, "spec.externalIPs: ignored: the feature gate " +
				"AllowServiceExternalIPs is off"},
		},
		"no Node": {
			Problem{Object: NodeObject("n"), Err: ErrNoNode},
			Event{NodeObject("n"), "", ReasonInvalid, ErrNoNode.Error()},
		},
		"a request that failed": {problem: Problem{Err: &RequestError{Verb: "list", Resource: "services",
			Err: errors.New("no")}}},
		"a kind that is ignored": {problem: Problem{Object: Object{Kind: "Pod", Name: "p"}, Err: ErrIgnoredKind}},
		"a file":                 {problem: Problem{Source: "f.yaml", Err: errors.New("not YAML")}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := c.problem.Event()
			if diff := cmp.Diff(c.want, got); diff != "" || ok != (c.want.Reason != "") {
				t.Errorf("%t (-want +got):\n%s", ok, diff)
			}
		})
	}
}

// TestServiceObject: kubectl describe finds a Service's events by its UID.
func TestServiceObject(t *testing.T) {
	w := NewWatcher(Options{Node: "n"}, service.NewMailbox())
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u-web"}}
	s.Spec.ClusterIP = "10.96.0.1"
	w.change(func(ix *index) { ix.setService(convertService(s)) })
	if diff := cmp.Diff(aService("web"), w.ServiceObject("shop/web")); diff != "" {
		t.Errorf("a known one (-want +got):\n%s", diff)
	}
	if at := w.IdledAt("shop/web"); !at.IsZero() {
		t.Errorf("it is idled at %v", at)
	}
	s = s.DeepCopy()
	s.Annotations = map[string]string{"idling.alpha.openshift.io/idled-at": "2026-01-01T02:00:00+02:00"}
	w.change(func(ix *index) { ix.setService(convertService(s)) })
	if at := w.IdledAt("shop/web"); !at.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("it is idled at %v", at)
	}
	if diff := cmp.Diff(Object{Kind: "Service", Namespace: "shop", Name: "gone"},
		w.ServiceObject("shop/gone")); diff != "" {
		t.Errorf("an unknown one (-want +got):\n%s", diff)
	}
}

// TestIdledAtOnTheWire: the decoder keeps the annotation of a Service that OpenShift has idled.
func TestIdledAtOnTheWire(t *testing.T) {
	server, idled := newAPIServer(t), uniformService(0)
	idled.Annotations = map[string]string{"idling.alpha.openshift.io/idled-at": "2026-01-01T00:00:00Z"}
	server.set("services", idled)
	list, err := server.client().services.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(list.Items) != 1 || !list.Items[0].idledAt.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("the list has %+v", list.Items)
	}
}

// TestRecorderReference: the event has the fields by which kubectl describe finds it.
func TestRecorderReference(t *testing.T) {
	for _, c := range []struct {
		event Event
		want  corev1.ObjectReference
	}{
		{Event{Object: aService("web"), Field: "spec.ports[0]"},
			corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "web", UID: "u-web",
				FieldPath: "spec.ports[0]"}},
		{Event{Object: NodeObject("node-1")}, corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-1",
			UID: "node-1"}},
		{Event{Object: Object{"EndpointSlice", "shop", "web-1", "u"}},
			corev1.ObjectReference{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", Namespace: "shop", Name: "web-1",
				UID: "u"}},
		{Event{Object: Object{"ServiceCIDR", "", "k", "u"}}, corev1.ObjectReference{APIVersion: "networking.k8s.io/v1",
			Kind: "ServiceCIDR", Name: "k", UID: "u"}},
	} {
		if diff := cmp.Diff(c.want, *c.event.reference()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.event.Object, diff)
		}
	}
}

// TestRecorderShares: a problem that every node finds in an object is one event. A
// problem of a node itself or its kernel is an event of its own.
func TestRecorderShares(t *testing.T) {
	store := newEventStore()
	const nodes = 20
	for i := range nodes {
		node := fmt.Sprintf("node-%d", i)
		emit, unwritten := recorderForTest(t, store, node)
		emit(Event{aService("web"), "spec.externalIPs[0]", ReasonInvalid, "bad"})
		emit(Event{aService("web"), "spec.externalIPs[1]", ReasonInvalid, "bad"})
		emit(Event{aService("api"), "", ReasonConflict, "taken"})
		emit(Event{aService("api"), "", ReasonRefused, "no memory"})
		emit(Event{NodeObject(node), "", ReasonSysctl, "read-only"})
		store.await(node)
		if got := unwritten(); len(got) > 0 {
			t.Errorf("reported %v", got)
		}
	}
	want := map[string]int32{
		"Service shop/web Invalid: bad": 2, "Service shop/api Conflict: taken": 1,
		"Service shop/api RefusedByKernel: no memory": nodes,
	}
	for i := range nodes {
		want[fmt.Sprintf("Node default/node-%d SysctlNotSet: read-only", i)] = 1
	}
	if diff := cmp.Diff(want, store.notes()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestRecorderWithoutStorms: a repeated event is counted, and an object that changes all
// the time has few events.
func TestRecorderWithoutStorms(t *testing.T) {
	store := newEventStore()
	emit, _ := recorderForTest(t, store, "node-1")
	for range 5 {
		emit(Event{aService("again"), "", ReasonConflict, "taken"})
	}
	const many = 500
	for i := range many {
		emit(Event{aService("restless"), fmt.Sprintf("spec.externalIPs[%d]", i), ReasonInvalid, fmt.Sprintf("bad %d", i)})
	}
	emit(Event{aService("last"), "", ReasonConflict, strings.Repeat("ä", maxNote)})
	store.await("last")
	restless, last := 0, ""
	for note, count := range store.notes() {
		switch {
		case strings.Contains(note, "shop/again"):
			if count != 5 {
				t.Errorf("%s: %d times, want 5", note, count)
			}
		case strings.Contains(note, "shop/restless"):
			restless++
		default:
			last = note
		}
	}
	if restless == 0 || restless > 25 {
		t.Errorf("%d events for %d problems", restless, many)
	}
	if _, note, _ := strings.Cut(last, ": "); len(note) > maxNote || !strings.HasSuffix(note, "ä...") {
		t.Errorf("a long note has %d bytes", len(note))
	}
	if store.creates > 30 {
		t.Errorf("%d events were made", store.creates)
	}
}

func TestSharedName(t *testing.T) {
	for _, name := range []string{"web", strings.Repeat("a", 253), strings.Repeat("a", 235) + "-b",
		strings.Repeat("a", 235) + "..b"} {
		e := &corev1.Event{InvolvedObject: corev1.ObjectReference{Name: name}}
		if problems := validation.IsDNS1123Subdomain(sharedName(e)); len(problems) > 0 {
			t.Errorf("%s: %v", sharedName(e), problems)
		}
	}
}

// TestRecorderRefused: a missing right is reported once. It is reported again if events
// could be written in the meantime.
func TestRecorderRefused(t *testing.T) {
	store := newEventStore()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no right"))
	store.refuses = forbidden
	emit, unwritten := recorderForTest(t, store, "node-1")
	record := func(names ...string) {
		for _, name := range names {
			emit(Event{aService(name), "", ReasonConflict, "taken"})
		}
		store.await(names[len(names)-1])
	}
	set := func(err error) {
		store.mu.Lock()
		defer store.mu.Unlock()
		store.refuses = err
	}
	record("a", "b", "c")
	set(nil)
	record("d")
	set(forbidden)
	record("e", "f")
	set(nil)
	record("g") // By now the recorder has handled all earlier events.
	got := unwritten()
	if len(got) != 2 || !errors.Is(got[0], forbidden) {
		t.Errorf("reported %v", got)
	}
	want := map[string]int32{"Service shop/d Conflict: taken": 1, "Service shop/g Conflict: taken": 1}
	if diff := cmp.Diff(want, store.notes()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// stuckStore does not answer until its context ends.
type stuckStore struct {
	*eventStore
	ctx context.Context
}

func (s stuckStore) Create(*corev1.Event) (*corev1.Event, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// TestRecorderDoesNotBlock: an API server that does not answer does not block the writer.
func TestRecorderDoesNotBlock(t *testing.T) {
	emit := newRecorder(t.Context(), stuckStore{newEventStore(), t.Context()}, "node-1", func(error) {})
	for i := range 5000 { // more than the queue can hold
		emit(Event{aService(fmt.Sprint("web-", i)), "", ReasonConflict, "taken"})
	}
}

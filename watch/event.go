package watch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"nftproxy/internal/service"
)

// Reason is an event's, by which people and programs tell one sort from another.
type Reason string

const (
	// ReasonInvalid: something in the object cannot be used and is left out.
	ReasonInvalid Reason = "Invalid"
	// ReasonConflict: an address, port or node port belongs to another Service.
	ReasonConflict Reason = "Conflict"
	// ReasonRefused: the node's kernel refuses the Service, which is left out.
	ReasonRefused Reason = "RefusedByKernel"
	// ReasonSysctl: a setting of the node's kernel is not what was asked for.
	ReasonSysctl Reason = "SysctlNotSet"
	// ReasonConntrackFull: the node's connection tracking table is full.
	ReasonConntrackFull Reason = "ConntrackFull"
)

// everywhere says whether each node finds the same, since the cause is in the
// API server's objects alone.
func (r Reason) everywhere() bool { return r == ReasonInvalid || r == ReasonConflict }

// Event is a warning for whoever looks at an object with kubectl describe.
type Event struct {
	Object Object
	// Field is a path like spec.externalIPs[1], empty for the whole object.
	Field  string
	Reason Reason
	// Note is for people. The API server takes 1,024 bytes; more is cut.
	Note string
}

// Event is what to tell of the problem, and whether there is anything: not of
// requests that fail, and not without an object.
func (p Problem) Event() (Event, bool) {
	request := (*RequestError)(nil)
	if p.Object.Name == "" || errors.As(p, &request) || errors.Is(p, ErrIgnoredKind) {
		return Event{}, false
	}
	e := Event{Object: p.Object, Field: p.Field, Reason: ReasonInvalid, Note: Problem{Field: p.Field, Err: p.Err}.Error()}
	if conflict := (*ConflictError)(nil); errors.As(p, &conflict) {
		e.Reason = ReasonConflict
	}
	return e, true
}

// NodeObject names a Node.
func NodeObject(name string) Object { return Object{Kind: "Node", Name: name} }

// ServiceObject names a Service, with its UID if the watcher knows it. It may
// be called from any goroutine.
func (w *Watcher) ServiceObject(name service.Name) Object {
	namespace, base := name.Split()
	o := Object{Kind: "Service", Namespace: namespace, Name: base}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.index.service(name); s != nil {
		o.UID = string(s.UID)
	}
	return o
}

// reference is how an event names an object. A Node goes by its name in the
// place of the UID, as with the kubelet and kube-proxy: kubectl describe looks
// for that.
func (e *Event) reference() *corev1.ObjectReference {
	o := &e.Object
	r := &corev1.ObjectReference{APIVersion: "v1", Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.UID), FieldPath: e.Field}
	switch o.Kind {
	case "Node":
		r.UID = types.UID(o.Name)
	case "EndpointSlice":
		r.APIVersion = discoveryv1.SchemeGroupVersion.String()
	case "ServiceCIDR":
		r.APIVersion = "networking.k8s.io/v1"
	}
	return r
}

// What the API server takes: a note's length in bytes (events.k8s.io), an
// object's name's.
const (
	maxNote = 1024
	maxName = 253
)

// Recorder writes events to the API server: beside everything else, one after
// the other, five a second, and no more than client-go lets through of one
// object (25, then one in five minutes; repeated ones are counted in one event,
// and of many alike one is kept). What is too much is dropped. Safe for
// concurrent use.
type Recorder struct {
	client record.EventRecorder
}

// component is the name that events are reported under.
const component = "nftproxy"

// EventClientConfig is a copy of the client's configuration with the rate that
// kube-proxy writes events at.
func EventClientConfig(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 5, 10
	return config
}

// NewRecorder starts a Recorder, which works until the context ends. The client
// should be limited (EventClientConfig). unwritten is called when an event
// could not be written, but once only until one could again, and by one
// goroutine at a time. Nothing else depends on events.
func NewRecorder(ctx context.Context, client kubernetes.Interface, node string, unwritten func(error)) *Recorder {
	sink := &typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")}
	return newRecorder(ctx, sink, node, unwritten)
}

func newRecorder(ctx context.Context, to record.EventSink, node string, unwritten func(error)) *Recorder {
	// client-go would log each attempt for each event, with all of the event.
	silent := klog.Logger{}
	broadcaster := record.NewBroadcaster(record.WithContext(klog.NewContext(ctx, silent)))
	broadcaster.StartRecordingToSink(&sink{to: to, unwritten: unwritten})
	source := corev1.EventSource{Component: component, Host: node}
	return &Recorder{client: broadcaster.NewRecorder(runtime.NewScheme(), source).WithLogger(silent)}
}

// Record writes an event, later. It never blocks.
func (r *Recorder) Record(e Event) {
	note := e.Note
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-len("...")], "") + "..."
	}
	r.client.Event(e.reference(), corev1.EventTypeWarning, string(e.Reason), note)
}

// sink is the API server's events, with names of our own for those that every
// node has: the first node makes the event, the others find it there. In a
// cluster of 5,000 nodes a bad field would else be told of 5,000 times.
type sink struct {
	to        record.EventSink
	unwritten func(error)

	mu      sync.Mutex
	failing bool
}

// Create is part of record.EventSink.
func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	if Reason(e.Reason).everywhere() {
		e = e.DeepCopy()
		e.Name = sharedName(e)
	}
	made, err := s.to.Create(e)
	return made, s.result("create", err)
}

// Update is part of record.EventSink. client-go does not use it.
func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) {
	made, err := s.to.Update(e)
	return made, s.result("update", err)
}

// Patch is part of record.EventSink.
func (s *sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	made, err := s.to.Patch(e, patch)
	return made, s.result("patch", err)
}

// result reports what is worth it. An event that is there is as good as made,
// and one that is gone client-go makes anew.
func (s *sink) result(verb string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		s.failing = false
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
	case !s.failing:
		s.failing = true
		s.unwritten(fmt.Errorf("%s event: %w", verb, err))
	}
	return err
}

// sharedName is the same for equal events about an object, whoever makes them.
func sharedName(e *corev1.Event) string {
	o := &e.InvolvedObject
	sum := sha256.Sum256([]byte(strings.Join([]string{
		o.APIVersion, o.Kind, o.Namespace, o.Name, string(o.UID), o.FieldPath, e.Reason, e.Message,
	}, "\x00")))
	suffix := fmt.Sprintf(".%x", sum[:8])
	return strings.TrimRight(o.Name[:min(len(o.Name), maxName-len(suffix))], "-.") + suffix
}

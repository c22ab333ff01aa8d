package watch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"nftproxy/model/service"
)

// Reason is the reason of an event: people and programs distinguish events by it.
type Reason string

const (
	// ReasonInvalid: something in the object cannot be used and is left out.
	ReasonInvalid Reason = "Invalid"
	// ReasonConflict: an address, port or node port belongs to another Service.
	ReasonConflict Reason = "Conflict"
	// ReasonProtected: an address and port is the API server's, the node's, or a pod's.
	ReasonProtected Reason = "Protected"
	// ReasonTooLarge: the Service asks for more than one Service may cost.
	ReasonTooLarge Reason = "TooLarge"
	// ReasonWithoutAffinity: the Service is served without session affinity, since the limit on
	// ports with it is reached.
	ReasonWithoutAffinity Reason = "WithoutAffinity"
	// ReasonSourcesClosed: the Service's source ranges let in nobody, since the limit on different
	// lists is reached.
	ReasonSourcesClosed Reason = "SourceRangesClosed"
	// ReasonExternalIPsIgnored: spec.externalIPs are not served.
	ReasonExternalIPsIgnored Reason = "ExternalIPsIgnored"
	// ReasonRefused: the node's kernel refuses the Service, which is left out.
	ReasonRefused Reason = "RefusedByKernel"
	// ReasonNoEndpoints: clients on the node keep connecting to the Service, which has no
	// endpoints.
	ReasonNoEndpoints Reason = "NoEndpoints"
	// ReasonNoLocalEndpoints: clients keep connecting to the Service on the node, where its
	// traffic policy Local leaves it no endpoint.
	ReasonNoLocalEndpoints Reason = "NoLocalEndpoints"
	// ReasonNeedPods: clients on the node connect to the Service, which OpenShift has idled, or which holds connections
	// since it has no endpoints. This is the reason that OpenShift's unidling controller waits for (annotationIdledAt).
	ReasonNeedPods Reason = "NeedPods"
	// ReasonNetworkInServiceCIDR: the node's network, or an API server, is in a ServiceCIDR.
	ReasonNetworkInServiceCIDR Reason = "NetworkInServiceCIDR"
	// ReasonSysctl: a setting of the node's kernel is not what was asked for.
	ReasonSysctl Reason = "SysctlNotSet"
	// ReasonConntrackFull: the node's connection tracking table is full.
	ReasonConntrackFull Reason = "ConntrackFull"
	// ReasonKubeProxy: the node's kernel has rules of kube-proxy beside ours.
	ReasonKubeProxy Reason = "RulesOfKubeProxy"
	// ReasonTooManyChanges: the changes of the Service's namespace take too much CPU time of a node, so they wait; or it
	// changes most on a node where those of all do.
	ReasonTooManyChanges Reason = "TooManyChanges"
	// ReasonNotAnswering: an endpoint of the Service gives the node no answer.
	ReasonNotAnswering Reason = "EndpointNotAnswering"
	// ReasonTablesRewritten: another program changes the proxy's tables again and again.
	ReasonTablesRewritten Reason = "TablesRewritten"
	// ReasonOtherTable: a table of another nftproxy has addresses and ports of this one's, or nobody keeps it.
	ReasonOtherTable Reason = "OtherTable"
	// ReasonConfigInvalid: the proxy's configuration file has changed and cannot be used.
	ReasonConfigInvalid Reason = "ConfigInvalid"
	// ReasonConfigRestart: the proxy's configuration file has changed in a field that
	// counts from the next start on.
	ReasonConfigRestart Reason = "ConfigRestartRequired"
	// ReasonRetained: a list lacks most Services, which are still served for a while.
	ReasonRetained Reason = "ServicesRetained"
	// ReasonMissing: a list lacks all Services, which are too few to be retained.
	ReasonMissing Reason = "ServicesMissing"
	// ReasonRemoved: Services that were retained are no longer served.
	ReasonRemoved Reason = "RetainedServicesRemoved"
	// ReasonStarting: the proxy starts on the node. This reason and the next two are
	// kube-proxy's.
	ReasonStarting Reason = "Starting"
	// ReasonNoHealthServer: the proxy cannot listen for health probes.
	ReasonNoHealthServer Reason = "FailedToStartProxierHealthcheck"
	// ReasonNoMetricsServer: the proxy cannot listen for Prometheus.
	ReasonNoMetricsServer Reason = "FailedToStartMetricServer"
)

// everywhere returns whether all nodes report the same event: its cause is only in the
// API server's objects and the cluster's configuration.
func (r Reason) everywhere() bool {
	return slices.Contains([]Reason{ReasonInvalid, ReasonConflict, ReasonTooLarge, ReasonWithoutAffinity,
		ReasonSourcesClosed, ReasonExternalIPsIgnored}, r)
}

// kind returns the type of an event, as the API has it.
func (r Reason) kind() string {
	if r == ReasonStarting || r == ReasonNeedPods {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// Event is news about an object, for people who run kubectl describe: a warning, but
// for ReasonStarting and ReasonNeedPods.
type Event struct {
	Object Object
	// Field is a path like spec.externalIPs[1], empty for the whole object.
	Field  string
	Reason Reason
	// Note is for people. The API server accepts 1,024 bytes; the rest is cut.
	Note string
}

// Event returns the problem's event, and whether there is one. Failed requests and
// problems without an object have none.
func (p Problem) Event() (Event, bool) {
	request := (*RequestError)(nil)
	if p.Object.Name == "" || errors.As(p, &request) || errors.Is(p, ErrIgnoredKind) {
		return Event{}, false
	}
	e := Event{Object: p.Object, Field: p.Field, Reason: ReasonInvalid, Note: Problem{Field: p.Field, Err: p.Err}.Error()}
	cause := (interface{ reason() Reason })(nil)
	switch {
	case errors.As(p, &cause):
		e.Reason = cause.reason()
	case errors.Is(p, ErrExternalIPsIgnored):
		e.Reason = ReasonExternalIPsIgnored
	}
	return e, true
}

// The reasons of the errors that have one of their own.

func (*NetworkError) reason() Reason   { return ReasonNetworkInServiceCIDR }
func (*RetainedError) reason() Reason  { return ReasonRetained }
func (*MissingError) reason() Reason   { return ReasonMissing }
func (*RemovedError) reason() Reason   { return ReasonRemoved }
func (*ConflictError) reason() Reason  { return ReasonConflict }
func (*ProtectedError) reason() Reason { return ReasonProtected }
func (*SizeError) reason() Reason      { return ReasonTooLarge }
func (*AffinityError) reason() Reason  { return ReasonWithoutAffinity }
func (*SourcesError) reason() Reason   { return ReasonSourcesClosed }
func (*RangesError) reason() Reason    { return ReasonTooLarge }
func (*SlowStartError) reason() Reason { return ReasonTooLarge }
func (*HeldError) reason() Reason      { return ReasonTooManyChanges }

// NodeObject names a Node.
func NodeObject(name string) Object { return Object{Kind: "Node", Name: name} }

// ServiceObject names a Service, with its UID if the watcher knows it. It may
// be called from any goroutine.
func (w *Watcher) ServiceObject(name service.Name) Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index.serviceNamed(name)
}

// IdledAt says when OpenShift has idled the Service, by the clock of whoever did; zero if it has not. It may be called
// from any goroutine.
func (w *Watcher) IdledAt(name service.Name) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.index.service(name); s != nil {
		return s.idledAt
	}
	return time.Time{}
}

// reference names the object for an event. For a Node the UID is its name, as with the
// kubelet and kube-proxy: kubectl describe looks for that.
func (e *Event) reference() *corev1.ObjectReference {
	o := &e.Object
	r := &corev1.ObjectReference{APIVersion: apiVersion(o.Kind), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name,
		UID: types.UID(o.UID), FieldPath: e.Field}
	if o.Kind == "Node" {
		r.UID = types.UID(o.Name)
	}
	return r
}

// The API server accepts a note of at most maxNote bytes (events.k8s.io) and an
// object's name of at most maxName.
const (
	maxNote = 1024
	maxName = 253
)

// newRecorder returns a function that writes an event, later, until the context ends: in the background, one after the
// other. It never blocks, and is safe for concurrent use. client-go limits the events of one object to 25, then one in
// five minutes. It counts repeated events in one event, and keeps one of many similar ones. The rest is dropped.
// unwritten is called when an event cannot be written, and not again before one has been; from one goroutine at a time.
// Nothing else depends on events.
func newRecorder(ctx context.Context, to record.EventSink, node string, unwritten func(error)) (write func(Event)) {
	// client-go would log each attempt to write an event, with the whole event.
	silent := klog.Logger{}
	broadcaster := record.NewBroadcaster(record.WithContext(klog.NewContext(ctx, silent)))
	broadcaster.StartRecordingToSink(&sink{to: to, unwritten: unwritten})
	source := corev1.EventSource{Component: "nftproxy", Host: node}
	recorder := broadcaster.NewRecorder(runtime.NewScheme(), source).WithLogger(silent)
	return func(e Event) {
		note := e.Note
		if len(note) > maxNote {
			note = strings.ToValidUTF8(note[:maxNote-len("...")], "") + "..."
		}
		recorder.Event(e.reference(), e.Reason.kind(), string(e.Reason), note)
	}
}

// sink writes events to the API server. An event that all nodes report gets the same
// name on each: the first node creates it, and the others find it there. Otherwise a
// bad field in a cluster of 5,000 nodes would have 5,000 events.
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

// result reports the first error of a series. An event that already exists counts as
// written. client-go creates an event again that is not found.
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

// eventClient is a record.EventSink: it writes events to the API server, each in its own namespace.
type eventClient struct{ core *rest.RESTClient }

// Create is part of record.EventSink.
func (c eventClient) Create(e *corev1.Event) (*corev1.Event, error) {
	return c.send(c.core.Post(), e, e)
}

// Update is part of record.EventSink.
func (c eventClient) Update(e *corev1.Event) (*corev1.Event, error) {
	return c.send(c.core.Put().Name(e.Name), e, e)
}

// Patch is part of record.EventSink.
func (c eventClient) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return c.send(c.core.Patch(types.StrategicMergePatchType).Name(e.Name), e, patch)
}

func (c eventClient) send(r *rest.Request, e *corev1.Event, body any) (written *corev1.Event, _ error) {
	written = &corev1.Event{}
	return written, r.NamespaceIfScoped(e.Namespace, e.Namespace != "").Resource("events").Body(body).
		Do(context.Background()).Into(written)
}

// sharedName returns the same name on all nodes for equal events about an object.
func sharedName(e *corev1.Event) string {
	o := &e.InvolvedObject
	sum := sha256.Sum256([]byte(strings.Join([]string{
		o.APIVersion, o.Kind, o.Namespace, o.Name, string(o.UID), o.FieldPath, e.Reason, e.Message,
	}, "\x00")))
	suffix := fmt.Sprintf(".%x", sum[:8])
	return strings.TrimRight(o.Name[:min(len(o.Name), maxName-len(suffix))], "-.") + suffix
}

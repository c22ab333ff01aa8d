package watch

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"nftproxy/model/service"
)

// Object names the Kubernetes object that a problem is about.
type Object struct {
	// Kind is Service, EndpointSlice, Node, or another kind in a manifest. It is empty
	// if the kind in a manifest could not be read.
	Kind string
	// Namespace is empty for a Node.
	Namespace, Name string
	// UID is the API server's, empty where there is none.
	UID string
}

// objectNamed names an object of a kind, without its UID.
func objectNamed(kind string, name service.Name) Object {
	namespace, base := name.Split()
	return Object{Kind: kind, Namespace: namespace, Name: base}
}

func (o Object) String() string {
	switch {
	case o.Kind == "":
		return ""
	case o.Namespace == "":
		return o.Kind + " " + o.Name
	}
	return fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
}

// Problem is a part of an object that cannot be used. The rest of the object is used.
// The watcher reports a problem once for each change of the object that causes it.
// A Problem is an error.
type Problem struct {
	// Source is the manifest's file, document and line; empty for an object
	// from the API server.
	Source string
	Object Object
	// Field is a path like spec.externalIPs[1]. It is empty when the problem is not in
	// one field.
	Field string
	// Err is or wraps one of this package's errors, where a caller may want to
	// distinguish the problem from others.
	Err error
}

// Error reads like
//
//	Service default/web: spec.externalIPs[1]: "1.2.3": not an IP address
func (p Problem) Error() string {
	parts := []string{p.Source, p.Object.String(), p.Field, p.Err.Error()}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// Unwrap returns Err.
func (p Problem) Unwrap() error { return p.Err }

// Problems that a caller may want to treat differently from a bad field.
var (
	// ErrIgnoredKind: a manifest has a kind that no service proxy reads. It is no
	// mistake.
	ErrIgnoredKind = errors.New("ignored: not a Service, EndpointSlice, Node or ServiceCIDR")
	// ErrNoNode: there is no Node object with the node's name (yet). Everything works
	// that does not need the node's own addresses.
	ErrNoNode = errors.New("no such Node: the node's own addresses are unknown")
	// ErrNoNodeAddress: the Node has no usable address (yet).
	ErrNoNodeAddress = errors.New("none that is usable: the node's own addresses are unknown")
	// ErrForeignNode: the Node may be another host's.
	ErrForeignNode = errors.New("none of them is on an interface of this host, so the Node may be another one's: is the " +
		"name (--hostname-override) right? Node ports on the Node's addresses do not answer here")
	// ErrNoPodCIDRs: the Node has no usable podCIDRs (yet), and the proxy is to recognize pods by
	// them.
	ErrNoPodCIDRs = errors.New("none that is usable")
	// ErrStrangePods: pods of the node are not recognized.
	ErrStrangePods = errors.New("pods of this node have addresses outside, so that their connections to cluster IPs are " +
		"masqueraded: use another --detect-local-mode")
	// ErrExternalIPsIgnored: no Service gets addresses by spec.externalIPs.
	ErrExternalIPsIgnored = errors.New("ignored: the feature gate AllowServiceExternalIPs is off")
)

// ValueError is a field value that cannot be used.
type ValueError struct {
	Value  string
	Reason string
}

func (e *ValueError) Error() string { return fmt.Sprintf("%q: %s", e.Value, e.Reason) }

// SliceIgnoredError says that an EndpointSlice does not count at all.
type SliceIgnoredError struct{ Err error }

func (e *SliceIgnoredError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *SliceIgnoredError) Unwrap() error { return e.Err }

// UnreadableError says that the manifests cannot be read at the start. The rules stay as they are until that succeeds.
type UnreadableError struct{ Err error }

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%v: trying again; until then the rules stay as they are", e.Err)
}

// Unwrap returns the reason.
func (e *UnreadableError) Unwrap() error { return e.Err }

// AwaitError says that the first snapshot waits for objects, or that it is made without them. It
// concerns no single object.
type AwaitError struct {
	// For names, for people, what has not come.
	For []string
	// Limit is the longest time of the wait; 0 means no limit.
	Limit time.Duration
	// Without says what happens without the objects, if the limit is over; it is empty before.
	Without string
}

func (e *AwaitError) Error() string {
	list := strings.Join(e.For, ", ")
	switch {
	case e.Without != "":
		return fmt.Sprintf("%s: not there after %s; going on without: %s", list, e.Limit, e.Without)
	case e.Limit == 0:
		return fmt.Sprintf("waiting for %s; until then the rules stay as they are", list)
	}
	return fmt.Sprintf("waiting for %s, for %s at most; until then the rules stay as they are", list, e.Limit)
}

// OmittedError counts the problems that were not reported because there were too many.
type OmittedError struct {
	// Kinds has the number of problems by the kind of the object.
	Kinds map[string]int
	// Namespaces is the number of namespaces of the objects.
	Namespaces int
	// Example is the last of them.
	Example Problem
}

// Count returns how many problems were left out.
func (e *OmittedError) Count() int {
	n := 0
	for _, of := range e.Kinds {
		n += of
	}
	return n
}

func (e *OmittedError) Error() string {
	return fmt.Sprintf("%d more problems (namespaces: %d), the last of them: %v", e.Count(), e.Namespaces, e.Example)
}

// RequestError is a request that the API server does not answer, or refuses. The watcher
// sends it again; until it succeeds the last state stays.
type RequestError struct {
	// Verb is list or watch.
	Verb, Resource string
	Err            error
}

// newRequestError leaves out the URL, which has a random time-out in it: each error's text would be another.
func newRequestError(verb, resource string, err error) *RequestError {
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	return &RequestError{Verb: verb, Resource: resource, Err: err}
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("%s %s: %v: trying again", e.Verb, e.Resource, e.Err)
}

// Unwrap returns the client's error.
func (e *RequestError) Unwrap() error { return e.Err }

// Problems says in sentences what cannot be used now of a Service, of its EndpointSlices, and of the manifests that
// they are from: the first maxProblems, and then how many more there are. It may be called from any goroutine.
func (w *Watcher) Problems(name service.Name) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index.standing(name)
}

func (ix *index) standing(name service.Name) []string {
	j := ix.joined[name]
	if j == nil {
		return nil
	}
	var texts []string
	more := 0
	add := func(list []Problem) {
		for _, p := range list {
			if len(texts) == maxProblems {
				more++
			} else {
				texts = append(texts, p.about(name))
			}
		}
	}
	if barred := ix.barred(j); barred != nil {
		add(barred.text)
		add(barred.problems)
	}
	if j.object != nil {
		add(j.object.text)
		add(j.object.problems)
		for _, h := range ix.headless[name] {
			add([]Problem{h.problem()})
		}
	}
	for _, s := range j.slices {
		add(s.text)
		add(s.problems)
	}
	for _, s := range ix.straysOf(j) {
		add([]Problem{s.problem(j)})
	}
	if more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more problems", more))
	}
	return texts
}

// about is the problem beside the name of its Service, which it leaves out.
func (p Problem) about(name service.Name) string {
	p.Source = ""
	if p.Object.Kind == "Service" && service.NewName(p.Object.Namespace, p.Object.Name) == name {
		p.Object = Object{}
	}
	return p.Error()
}

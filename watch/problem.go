package watch

import (
	"errors"
	"fmt"
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
	var parts []string
	for _, part := range []string{p.Source, p.Object.String(), p.Field, p.Err.Error()} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
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

// AwaitError says that the first snapshot waits for objects, or that it is made without them. It
// concerns no single object.
type AwaitError struct {
	// For names, for people, what has not come.
	For []string
	// Limit is the longest time of the wait; 0 means no limit.
	Limit time.Duration
	// Past says that the limit is over. Without then says what happens without the
	// objects.
	Past    bool
	Without string
}

func (e *AwaitError) Error() string {
	list := strings.Join(e.For, ", ")
	switch {
	case e.Past:
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

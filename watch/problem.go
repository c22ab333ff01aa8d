package watch

import (
	"errors"
	"fmt"
	"strings"

	"nftproxy/internal/service"
)

// Object names the Kubernetes object that a problem is about.
type Object struct {
	// Kind is Service, EndpointSlice, Node, or another kind in a manifest;
	// empty if a manifest could not be read far enough to know.
	Kind string
	// Namespace is empty for a Node.
	Namespace, Name string
	// UID is the API server's, empty where there is none.
	UID string
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

// Problem is something in an object that cannot be used as it stands. The rest
// of the object is used. It is reported once for each change of the object
// that brings it, and is an error itself.
type Problem struct {
	// Source is the manifest's file, document and line; empty for an object
	// from the API server.
	Source string
	Object Object
	// Field is a path like spec.externalIPs[1], empty when the problem is not
	// with one field.
	Field string
	// Err is one of this package's errors, or wraps one, where the reader of
	// the problem may want to tell it from others.
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

// Problems that a reader may want to treat differently from a bad field.
var (
	// ErrIgnoredKind: a manifest of a kind that no service proxy reads. It is
	// worth a debug line at most.
	ErrIgnoredKind = errors.New("ignored: not a Service, EndpointSlice, Node or ServiceCIDR")
	// ErrNoNode: there is no Node object of the node's name (yet). Everything
	// works except what depends on the node's own addresses.
	ErrNoNode = errors.New("no such Node: the node's own addresses are unknown")
	// ErrNoPodCIDRs: the Node has no usable podCIDRs (yet), though pods are to
	// be told by them.
	ErrNoPodCIDRs = errors.New("none that is usable")
)

// ValueError is a field value that cannot be used.
type ValueError struct {
	Value  string
	Reason string
}

func (e *ValueError) Error() string { return fmt.Sprintf("%q: %s", e.Value, e.Reason) }

// ConflictError is a claim that another service has the better right to.
type ConflictError struct {
	Claim service.Claim
	Owner service.Name
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s belongs to Service %s", e.Claim, e.Owner)
}

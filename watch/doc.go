// Package watch promises the latest service.Snapshot of an API server or of a
// directory of manifests, however often and in whatever order the objects change. The
// reader takes the newest snapshot when it is ready for it.
//
// Both sources take the same path. Pure functions convert a Service, EndpointSlice or
// Node. An index joins each Service with its slices, and rebuilds only the Services
// that an event concerns. The snapshot goes into a Mailbox. A Problem names each field
// that cannot be used; the rest of that object, and every other object, counts.
//
// A Recorder writes the problems as events of their objects. It limits them, so that
// neither API servers nor people get too many.
//
// The package does not log. It does not decide what the node does with a snapshot, or
// which problems become events. Only this package and the command know the types of
// Kubernetes.
package watch

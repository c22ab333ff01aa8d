// Package watch promises the latest service.Snapshot of an API server or of a
// directory of manifests, however often and in whatever order things change
// there: the reader takes what is newest when it is ready for it.
//
// Both sources go the same way: a Service, EndpointSlice or Node is converted
// by pure functions, an index joins each Service with its slices and rebuilds
// only the service that an event concerns, and the result goes into a Mailbox.
// What cannot be used in an object is reported as a Problem that names the
// field; the rest of that object, and every other object, counts.
//
// A Recorder tells whoever looks at an object what is wrong with it, as events,
// and keeps API servers and people from storms of them.
//
// The package does not log, or decide what the node does with a snapshot or what
// is worth an event. It and the command are the only ones that know Kubernetes'
// types.
package watch

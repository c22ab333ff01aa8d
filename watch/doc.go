// Package watch promises the latest service.Snapshot of an API server or of a
// directory of manifests, however often and in whatever order the objects change. The
// reader takes the newest snapshot when it is ready for it.
//
// Both sources take the same path. Pure functions convert a Service, EndpointSlice or
// Node. An index joins each Service with its slices, and rebuilds only the Services
// that an event concerns. The snapshot goes into a Mailbox. A Problem names each field
// that cannot be used; the rest of that object, and every other object, counts.
//
// # Lists and watches
//
// The watcher keeps four resources of an API server, each by a loop of its own (listWatch):
//
//  1. It lists, without a version and a limit: the list has everything that was written before the request. The whole
//     list replaces what was there, or nothing of it: one that breaks off changes nothing.
//  2. It watches from the list's version on, and goes on by the next watch from the version of the last event or bookmark.
//     The server ends a watch after 5 to 10 minutes, as it was asked to.
//  3. When a watch ends, or its connection does, in whatever way, the next one follows at once. If a watch brings nothing
//     (it is refused, fails, or ends within a second without a change), a pause comes before the next request. Pauses double from
//     0.4 s to 8 s, and each is random between a half and the whole of that, so that nodes come back spread over the pause. The first
//     answer of a server that was away begins with the shortest again. Where the server asks to wait (Retry-After), the pause is
//     longer by that, up to a minute.
//  4. It lists again only where a watch cannot go on: its version is too old (410, as an answer or as an event) or cannot be read
//     (400, 422); nobody listened at the address, since etcd may have been restored and versions given out again; an event
//     cannot be decoded; or the server has failed five times in a row (5xx). Everything else, such as a refusal (401, 403, 404
//     or 429) or a page of a proxy, leaves the version as it is.
//  5. What a server does not know it is asked for in a lesser way at once (ways), and in the best way again after some minutes.
//     A resource that it does not have, and that the proxy can do without, it is asked for every few minutes.
//
// Each failure is a RequestError, told at once and not again while it stays the same. A resource is up to date once its watch
// has been open for a second or has brought a change.
//
// A Recorder writes the problems as events of their objects. It limits them, so that
// neither API servers nor people get too many.
//
// The package does not log. It does not decide what the node does with a snapshot, or
// which problems become events. Only this package and the command know the types of
// Kubernetes.
package watch

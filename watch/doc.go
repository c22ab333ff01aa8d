// Package watch follows an API server or a directory of manifests, and provides the latest
// service.Snapshot of its objects, however often and in whatever order they change. The reader
// takes the newest snapshot when it is ready for it.
//
// Both sources use the same code. Pure functions convert a Service, EndpointSlice or Node. An index
// joins each Service with its slices, and rebuilds only the Services that an event concerns. The
// snapshot goes into a Mailbox. A Problem names each field that cannot be used; the rest of that
// object, and every other object, is used.
//
// # Lists and watches
//
// The watcher follows four resources of an API server, each in its own loop (listWatch):
//
//  1. It lists, without a version and a limit: the list has everything that was written before the request. The whole
//     list replaces the old state. A list that breaks off changes nothing.
//  2. It watches from the list's version on. The next watch continues from the version of the last event or bookmark.
//     The server ends a watch after 5 to 10 minutes, as the request asks.
//  3. When a watch or its connection ends, for any reason, the next watch follows at once. If a watch fails, or was
//     open for less than 8 s, whatever it brought, a pause comes before the next request, less the time that it was
//     open. Pauses double from 0.4 s to 8 s, and each is random between half of that and the whole, so that nodes do
//     not come back all at once. The first answer of a server that was away resets the pause. If the server asks to
//     wait (Retry-After), the pause is longer by that time, up to a minute.
//  4. It lists again only if a watch cannot continue: its version is too old (410, as an answer or as an event) or
//     cannot be read (400, 422); nothing listened at the address, since etcd may have been restored and assign versions
//     again; an event cannot be decoded or has more than 16 MiB; or the server has failed five times in a row (5xx).
//     After every other answer, such as a refusal (401, 403, 404 or 429) or the page of a proxy, the watch continues
//     from its version.
//  5. If a server does not know a part of a request, the loop leaves that part out at once (ways), and tries it again
//     after some minutes. It asks every few minutes for a resource that the server lacks and that the proxy can do
//     without.
//
// Each failure is a RequestError. It is reported at once, and not again while it stays the same. A resource is up to
// date when its watch has been open for a second or has brought a change.
//
// Connection.Recorder writes the problems as events of their objects. It limits them, so that
// neither API servers nor people get too many.
//
// The package does not log. It does not decide what the node does with a snapshot, or
// which problems become events. Only this package and the command know the types of
// Kubernetes.
package watch

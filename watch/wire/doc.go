// Package wire promises the Services and EndpointSlices of an API server, converted one by one while their bytes
// arrive. A node hears of every change in the cluster, and most of what it hears it does not need: who manages which
// field, where a pod comes from. The package decodes only the fields that package watch reads, and holds one object
// at a time.
//
// The package speaks protobuf. What a server sends as JSON it leaves to client-go's own decoders. It does not follow
// the API server: it makes one list or one watch, and package watch decides on the next.
package wire

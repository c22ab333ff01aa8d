// Package wire provides the Services and EndpointSlices of an API server, converted one by one while their bytes
// arrive. A node hears of every change in the cluster, and most of what it hears it does not need: who manages which
// field, where a pod comes from. The package decodes only the fields that package watch reads, and holds one object
// at a time.
//
// What that gains by itself, beside client-go's decoder (BenchmarkDecodeList in package watch, two runs on two shared
// cores): a list of 1,000 EndpointSlices with 10 endpoints each takes 9 to 12 ms and 1.8 MB of allocations in place of
// 22 to 26 ms and 8.6 MB, and 1,000 Services take 2.5 to 4 ms and 0.7 MB in place of 5 ms and 3.1 MB.
//
// The package speaks protobuf. What a server sends as JSON it leaves to client-go's own decoders. It does not follow
// the API server: it makes one list or one watch, and package watch decides on the next.
package wire

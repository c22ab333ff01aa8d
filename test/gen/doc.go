// Package gen generates random input for tests: Services and streams of changes to them, clusters with all features,
// configurations of the proxy, packets that aim at Services, tables as other programs leave them, and choices that a
// fuzzer steers. The same source of randomness gives the same. ReadSnapshot has no randomness: it reads a snapshot that
// a test writes as text.
//
// Services are valid, as package watch makes them. Their addresses and ports come from small pools, so that Services
// often claim the same ones, and claim again what others have left. The package makes no assertion, and sends nothing
// to a kernel.
package gen

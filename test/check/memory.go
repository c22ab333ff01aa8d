package check

import "runtime/metrics"

// TB has the methods of testing.TB that Bounded needs.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Bounded calls the function, and fails the test if the function allocates more bytes than
// the limit (Allocated).
func Bounded(t TB, limit uint64, call func()) {
	t.Helper()
	if n := Allocated(call); n > limit {
		t.Errorf("%d bytes were allocated, more than %d", n, limit)
	}
}

// Allocated calls the function, and returns how many bytes it allocates. Memory that is free again counts too, and so
// does that of goroutines beside it.
func Allocated(call func()) uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	call()
	metrics.Read(sample)
	return sample[0].Value.Uint64() - before
}

package check

import "runtime/metrics"

// TB has the methods of testing.TB that Bounded needs.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Bounded calls the function, and fails the test if the function allocates more bytes than
// the limit. Memory that is free again counts too, and so does that of goroutines beside it.
func Bounded(t TB, limit uint64, call func()) {
	t.Helper()
	before := allocated()
	call()
	if n := allocated() - before; n > limit {
		t.Errorf("%d bytes were allocated, more than %d", n, limit)
	}
}

func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

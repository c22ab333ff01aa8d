package proxy_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestSpentOfAllTransactions: Encode and Commit of a sync are the sums over all of its
// transactions, refused ones too. They are 0 if nothing was written.
func TestSpentOfAllTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newKernel(), services(3))
		want := func(when string, transactions int) {
			t.Helper()
			n := time.Duration(transactions)
			if s := r.last(); s.Encode != n*time.Millisecond || s.Commit != n*2*time.Millisecond {
				t.Errorf("%s: encode %v, commit %v, want those of %d transactions", when, s.Encode, s.Commit, n)
			}
			r.sleep(time.Minute)
		}
		r.kernel.refuse = refuseParts(errRefused, "ns-1/svc-1")
		r.publishAndWait()
		want("one part refused", 2)
		r.services.Set(both("web", "10.1.0.1:8080", "[fd00:1::1]:8080"))
		r.publishAndWait()
		want("a change", 1)
		r.services.Delete("none/none")
		r.publish()
		r.sleep(time.Second)
		want("nothing to write", 0)
	})
}

package conntrack

import (
	"context"
	"runtime"
	"time"

	"nftproxy/model/service"
)

// Unanswered yields the TCP connections with DNAT whose first packet has had no answer, and returns the CPU time that
// it took. The kernel selects them by status from 5.15 on; an older one returns every entry, and this package selects.
// Either way the kernel walks through its whole table. Errors are those of Flows.
func (t *Table) Unanswered(ctx context.Context, yield func(Flow) error) (cpu time.Duration, err error) {
	runtime.LockOSThread() // The CPU time of this thread is that of the walk.
	defer runtime.UnlockOSThread()
	start := ThreadTime()
	err = t.Flows(ctx, Filter{Status: DstNAT, Mask: DstNAT | SeenReply}, func(f Flow) error {
		if f.Protocol != service.TCP || f.TCPState > TCPSynSent && f.TCPState != TCPSynSent2 {
			return nil
		}
		return yield(f)
	})
	return ThreadTime() - start, err
}

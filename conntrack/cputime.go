package conntrack

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime returns the CPU time of the calling thread so far. The kernel walks its
// table in the system calls of the thread that reads the dump. So the difference
// of two calls is the cost of a pass, whatever else the process and the machine do.
// It returns 0 if the kernel gives no answer, which does not happen.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

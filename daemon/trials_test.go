package daemon

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"nftproxy/nft/kernel"
)

// TestRemembered: the kernel is asked until it has told, and then no more. If it has not told, it is asked again after
// a while.
func TestRemembered(t *testing.T) {
	undecided := fmt.Errorf("try: %w: no memory", kernel.ErrUndecided)
	for _, told := range []error{nil, errors.New("no such file")} {
		now, asked, answer := time.Unix(0, 0), 0, undecided
		try := remembered(func() error { asked++; return answer }, func() time.Time { return now })
		step := func(after time.Duration, want error, times int) {
			t.Helper()
			now = now.Add(after)
			if err := try(); err != want || asked != times {
				t.Errorf("the trial says %v after %d questions, want %v after %d", err, asked, want, times)
			}
		}
		step(0, undecided, 1)
		step(undecidedFor-1, undecided, 1)
		step(1, undecided, 2)
		answer = told
		step(0, undecided, 2)
		step(undecidedFor, told, 3)
		answer = undecided
		step(time.Hour, told, 3)
	}
}

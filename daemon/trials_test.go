package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// answers are a kernel's to trials of time-outs, one after the other; the last one stays.
type answers []error

func (answers) TryCounters() error { return nil }
func (answers) TryLabels() error   { return nil }
func (answers) TryFlows() error    { return nil }

func (a *answers) TryTimeouts() error {
	err := (*a)[0]
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	return err
}

// TestTriedTimeouts: DNS has its time-outs if the kernel gives any, though it may first have no memory to tell. The log
// says why it has none.
func TestTriedTimeouts(t *testing.T) {
	undecided, without := fmt.Errorf("try: %w: no memory", kernel.ErrUndecided), errors.New("no such file")
	given := service.Timeouts{Protocol: service.UDP, Unreplied: 5 * time.Second, Replied: 15 * time.Second}
	for name, c := range map[string]struct {
		kernel answers
		want   service.Timeouts
		says   string
	}{
		"with":          {answers{nil}, given, ""},
		"without":       {answers{without}, service.Timeouts{}, "CONFIG_NF_CONNTRACK_TIMEOUT"},
		"with, later":   {answers{undecided, undecided, nil}, given, ""},
		"without, too":  {answers{undecided, without}, service.Timeouts{}, "CONFIG_NF_CONNTRACK_TIMEOUT"},
		"never decided": {answers{undecided}, service.Timeouts{}, "did not say"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newListener()
			got := tried(ruleset.Config{DNSTimeouts: given}, &c.kernel, l.log).DNSTimeouts
			said := l.logged()
			if got != c.want || !strings.Contains(said, c.says) || c.says == "" && said != "" {
				t.Errorf("%s: time-outs %v, log %q; want %v, %q", name, got, said, c.want, c.says)
			}
		})
	}
}

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

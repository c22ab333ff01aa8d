package kernel_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/netlinkfault"
)

// TestTry: this kernel can count, and has labels and time-outs, and a trial leaves nothing behind: no table, and no
// new generation of the ruleset.
func TestTry(t *testing.T) {
	ns, c := open(t)
	before, err := c.Generation()
	must(t, err)
	for range 2 {
		must(t, c.TryCounters())
		must(t, c.TryLabels())
		must(t, c.TryFlows())
		must(t, c.TryTimeouts())
	}
	if after, err := c.Generation(); err != nil || after != before {
		t.Errorf("the trial raised the generation from %d to %d, err %v", before, after, err)
	}
	listing, err := netfilter.NFTForTest(t).Ruleset(ns)
	must(t, err)
	if listing != "" {
		t.Errorf("the trial left behind:\n%s", listing)
	}
}

// TestTryCountersOfAKernelWithout: a kernel that has no memory for the counters of the elements, or no
// module nft_counter, cannot count, by the error that a trial returns.
func TestTryCountersOfAKernelWithout(t *testing.T) {
	injector, c, _ := openFaulty(t)
	for message, errno := range map[string]unix.Errno{"add element": unix.ENOMEM, "add set": unix.ENOENT,
		"add rule": unix.ENOENT} {
		met := 0
		injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
			if p.Message != message {
				return netlinkfault.Fault{}, false
			}
			met++
			return netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: errno}, true
		})
		if err := c.TryCounters(); !errors.Is(err, errno) || met == 0 {
			t.Errorf("%d times %q is refused with %v: the trial says %v", met, message, errno, err)
		}
	}
	injector.Decide(netlinkfault.None)
	must(t, c.TryCounters())
}

// TestTryLabelsOfAKernelWithout: a kernel without labels refuses the rule that sets one.
func TestTryLabelsOfAKernelWithout(t *testing.T) {
	injector, c, _ := openFaulty(t)
	injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
		return netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: unix.EOPNOTSUPP}, p.Message == "add rule"
	})
	if err := c.TryLabels(); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("the trial says %v", err)
	}
	injector.Decide(netlinkfault.None)
	must(t, c.TryLabels())
}

// TestTryTimeoutsOfAKernelWithout: a kernel without time-outs refuses the object.
func TestTryTimeoutsOfAKernelWithout(t *testing.T) {
	injector, c, _ := openFaulty(t)
	injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
		return netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: unix.EOPNOTSUPP}, p.Message == "add object"
	})
	if err := c.TryTimeouts(); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("the trial says %v", err)
	}
	injector.Decide(netlinkfault.None)
	must(t, c.TryTimeouts())
}

// TestTryTimeoutsUndecided: want of memory and a lost answer say nothing about the kernel, and a refusal of the object
// does.
func TestTryTimeoutsUndecided(t *testing.T) {
	injector, c, _ := openFaulty(t)
	for _, f := range []struct {
		message   string
		fault     netlinkfault.Fault
		undecided bool
	}{
		{"add object", netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: unix.ENOENT}, false},
		{"add object", netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: unix.EOPNOTSUPP}, false},
		{"add object", netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: unix.ENOMEM}, true},
		{"add rule", netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: unix.EINTR}, true},
		{"add object", netlinkfault.Fault{Kind: netlinkfault.RefuseSilently, Errno: unix.ENOENT}, true},
		{"add object", netlinkfault.Fault{Kind: netlinkfault.Unsent, Errno: unix.ENOBUFS}, true},
	} {
		injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) { return f.fault, p.Message == f.message })
		if err := c.TryTimeouts(); err == nil || errors.Is(err, kernel.ErrUndecided) != f.undecided {
			t.Errorf("%s, %v: the trial says %v, want undecided: %t", f.message, f.fault, err, f.undecided)
		}
		injector.Decide(netlinkfault.None)
		must(t, c.TryTimeouts())
	}
}

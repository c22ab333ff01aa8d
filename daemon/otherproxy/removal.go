package otherproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// removeTries is how often a removal is tried while other processes change the ruleset.
const removeTries = 20

// The pause before another try doubles from the shortest to the longest. All pauses of one removal
// take 4 s at most.
const (
	shortestPause = 2 * time.Millisecond
	longestPause  = 256 * time.Millisecond
)

// RemoveAll removes all rules of kube-proxy that Find returns, except where keep returns an error, such
// as KeepForward; nil keeps none. It calls report with each table's
// rules and the outcome: nil, or why the rules are still there. Where another process changes the
// ruleset at the same time it tries again after a pause, 20 times. The error says that the rules
// cannot be found, or that the context has ended.
func RemoveAll(ctx context.Context, keep func(Rules) error, report func(Rules, error)) error {
	found, err := Find()
	if err != nil {
		return err
	}
	for _, r := range found {
		latest, err := removeLatest(ctx, r, keep)
		if ctx.Err() != nil {
			return fmt.Errorf("remove the rules of kube-proxy: %w", ctx.Err())
		}
		report(latest, err)
	}
	return nil
}

// Final says whether the outcome of a removal is a reason to keep the rules, so that another try
// would have the same outcome while the rules are the same.
func Final(outcome error) bool {
	return outcome == nil || errors.Is(outcome, ErrForeign) || errors.Is(outcome, ErrIPVS) || errors.Is(outcome, ErrForward) || errors.Is(outcome, ErrUnknownTable)
}

// removeLatest removes the rules as they are now: earlier removals have changed the ruleset.
func removeLatest(ctx context.Context, r Rules, keep func(Rules) error) (Rules, error) {
	for try := 1; ; try++ {
		latest, there, err := r.again()
		switch {
		case err != nil:
			return r, fmt.Errorf("remove the rules of kube-proxy in %s: %w", r.Table, err)
		case !there:
			return r, nil
		}
		if keep != nil {
			if err := keep(latest); err != nil {
				return latest, err
			}
		}
		if err = Remove(latest); err == nil || try == removeTries || !errors.Is(err, ErrChanged) {
			return latest, err
		}
		if err := pause(ctx, try); err != nil {
			return latest, err
		}
	}
}

// pause waits after a try. The wait is random, so that two programs that disturb each other fall out
// of step.
func pause(ctx context.Context, try int) error {
	timer := time.NewTimer(pauseAfter(try))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// pauseAfter is between half the pause of a try and the whole of it.
func pauseAfter(try int) time.Duration {
	whole := longestPause
	if shift := try - 1; shift < 7 {
		whole = min(longestPause, shortestPause<<shift)
	}
	return whole/2 + rand.N(whole/2+1)
}

// again returns the rules as they are now, and whether there are any.
func (r Rules) again() (latest Rules, there bool, err error) {
	if r.Kind == IPVS || r.Kind == IPTablesLegacy { // These depend on no generation.
		return r, true, nil
	}
	c, err := dial()
	if err != nil {
		return r, false, err
	}
	defer c.Close()
	if r.Kind == NFTables {
		return findTable(c, r.family)
	}
	_, name, _ := cutTable(r.Table)
	latest, err = findNFTChainsIn(c, r.family, name)
	return latest, latest.Chains > 0, err
}

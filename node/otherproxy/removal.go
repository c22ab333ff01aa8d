package otherproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"nftproxy/node/hostaddr"
)

// removeTries is how often a removal is tried while other processes change the ruleset.
const removeTries = 20

// The pause before another try doubles from the shortest to the longest. All pauses of one removal
// take 4 s at most.
const (
	shortestPause = 2 * time.Millisecond
	longestPause  = 256 * time.Millisecond
)

// Removal says what RemoveAll leaves.
type Removal struct {
	// Closed says what may drop the packets that a chain accepts; such a chain stays. Nil says so of none.
	Closed func(Opening) error
	// Exclude has the ranges of other programs' virtual servers.
	Exclude []netip.Prefix
	// EndConnections removes also what open connections of IPVS mode use.
	EndConnections bool
	// KeepSign says why an empty chain stays in each table of the kind NFTables, as SignOfFelix does; nil if none does.
	KeepSign func() error
}

// RemoveAll removes all rules of kube-proxy that Find returns, apart from what the removal leaves. It calls report with
// the rules and the outcome: nil, or why they are still there. A table of which a part stays is reported twice. Where
// another process changes the ruleset at the same time it tries again after a pause, 20 times. The error says that the
// rules cannot be found, or that the context has ended.
func RemoveAll(ctx context.Context, of Removal, report func(Rules, error)) error {
	found, err := Find()
	if err != nil {
		return err
	}
	settleErr := settleIPVS() // before the chains: they may hide its addresses as sources
	for _, r := range found { // what IPVS mode left comes last: chains use its ipsets
		if r.Kind == IPVS {
			if settleErr != nil {
				report(r, fmt.Errorf("remove what kube-proxy's IPVS mode left (%s): %w", r, settleErr))
			} else {
				removeAllOfIPVS(of, report)
			}
			continue
		}
		if err := removeLatest(ctx, r, of, report); err != nil {
			return fmt.Errorf("remove the rules of kube-proxy: %w", err)
		}
	}
	return nil
}

func removeAllOfIPVS(of Removal, report func(Rules, error)) {
	gone, stays, err := removeIPVS(of.Exclude, of.EndConnections)
	if gone != nil && !gone.empty() {
		report(gone.rules(), nil)
	}
	if err != nil {
		left := Rules{Kind: IPVS, Table: hostaddr.ServiceDevice}
		if stays != nil {
			left = stays.rules()
		}
		report(left, fmt.Errorf("remove what kube-proxy's IPVS mode left (%s): %w", left, err))
	}
}

// Final says whether the outcome of a removal is a reason to keep the rules, so that another try
// would have the same outcome while the rules are the same.
func Final(outcome error) bool {
	return outcome == nil || slices.ContainsFunc([]error{ErrForeign, ErrOpens, ErrUnknownTable, ErrOthersServer,
		ErrSetUsed, ErrSign}, func(reason error) bool {
		return errors.Is(outcome, reason)
	})
}

// removeLatest removes the rules as they are now: earlier removals have changed the ruleset. It judges again at each
// try what closes: the ruleset that it is about is the one that the kernel then changes.
func removeLatest(ctx context.Context, r Rules, of Removal, report func(Rules, error)) error {
	for try := 1; ; try++ {
		latest, err := r.again()
		if err != nil {
			err = fmt.Errorf("remove the rules of kube-proxy in %s: %w", r.Table, err)
		}
		if err != nil || !latest.there() {
			report(r, err)
			return ctx.Err()
		}
		gone, stays, staysErr := latest.part(of)
		if gone.there() {
			err := Remove(gone)
			if errors.Is(err, ErrChanged) && try < removeTries {
				if err := pause(ctx, try); err != nil {
					return err
				}
				continue
			}
			report(gone, err)
		}
		if staysErr != nil {
			report(stays, staysErr)
		}
		return ctx.Err()
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

// again returns the rules as they are now.
func (r *Rules) again() (Rules, error) {
	c, err := dial()
	if err != nil {
		return *r, err
	}
	defer c.close()
	return c.read(r.Kind, r.family, r.name)
}

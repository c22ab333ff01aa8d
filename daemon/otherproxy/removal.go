package otherproxy

import (
	"errors"
	"fmt"
)

// removeTries is how often a removal is tried while other processes change the ruleset.
const removeTries = 20

// RemoveAll removes all rules of kube-proxy that Find returns. It calls report with each table's
// rules and the outcome: nil, or why the rules are still there. Where another process changes the
// ruleset at the same time it tries again, 20 times. The error says that the rules cannot be
// found.
func RemoveAll(report func(Rules, error)) error {
	found, err := Find()
	if err != nil {
		return err
	}
	for _, r := range found {
		latest, err := removeLatest(r)
		report(latest, err)
	}
	return nil
}

// removeLatest removes the rules as they are now: earlier removals have changed the ruleset.
func removeLatest(r Rules) (Rules, error) {
	for try := 1; ; try++ {
		latest, there, err := r.again()
		switch {
		case err != nil:
			return r, fmt.Errorf("remove the rules of kube-proxy in %s: %w", r.Table, err)
		case !there:
			return r, nil
		}
		if err = Remove(latest); err == nil || try == removeTries || !errors.Is(err, ErrChanged) {
			return latest, err
		}
	}
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

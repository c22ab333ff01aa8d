package proxy

import (
	"slices"
	"time"
)

// maxRetries bounds the transactions of one sync in which refused parts are tried again.
const maxRetries = 16

// retryDueParts tries the parts that are due, in transactions of their own. The first one has all of them. The next
// ones are without the parts that the kernel refused by name, or are halves where it named none.
func (a *applier) retryDueParts(s *Sync, tables []*familyTable) {
	due := a.quarantine.dueParts(time.Now())
	if len(due) == 0 {
		return
	}
	start := time.Now()
	groups := [][]string{due}
	for range maxRetries {
		if len(groups) == 0 || len(tablesThatAre(unread, tables)) > 0 {
			break // A table that is unread cannot be planned.
		}
		group := groups[0]
		groups = append(groups[1:], a.retryGroup(s, group, tables)...)
	}
	now := time.Now()
	a.quarantine.postponed(slices.Concat(groups...), now)
	a.quarantine.pausedUntil = now.Add(retryShare * now.Sub(start))
}

// retryGroup tries some parts together and returns those that it leaves to be tried, in the groups to try them in.
func (a *applier) retryGroup(s *Sync, group []string, tables []*familyTable) [][]string {
	err := a.writeWith(s, group, tables)
	if err == nil {
		a.quarantine.accepted(group)
		return nil
	}
	named := refusedParts(err)
	var refused, rest []string
	for _, name := range group {
		if len(group) == 1 || slices.Contains(named, name) {
			refused = append(refused, name)
		} else {
			rest = append(rest, name)
		}
	}
	for _, name := range refused {
		a.quarantine.refused(name, partsOf(s.Program, name), err, time.Now())
	}
	switch half := len(rest) / 2; {
	case len(rest) == 0:
		return nil
	case len(refused) > 0:
		return [][]string{rest}
	default:
		return [][]string{rest[:half], rest[half:]}
	}
}

// writeWith writes the program with the held parts of the group.
func (a *applier) writeWith(s *Sync, group []string, tables []*familyTable) error {
	want := a.quarantine.withoutHeld(s.Program, group)
	batch, next := a.plan(s, want, tables)
	before, err := a.kernel.Generation()
	if err != nil {
		return err
	}
	if err := a.write(s, batch); err != nil {
		// The tables are as they were, unless some of the batch went in.
		if after, failed := a.kernel.Generation(); failed != nil || after != before {
			allMustBeRead(tables)
		}
		return err
	}
	keepWritten(tables, want, next)
	return nil
}

package proxy

import (
	"errors"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// Sync is the result of one round of the loop.
type Sync struct {
	Snapshot service.Snapshot
	// Since is when the oldest change arrived that was not in force before this sync. It is zero if the sync only removed
	// idle chains.
	Since time.Time
	// Changes is how many changes of objects the snapshot counts.
	Changes service.Changes
	// Triggers are the causes of the changes that this sync put in force, or tried to.
	Triggers service.Triggers
	// Start is when the sync began; the durations are those of its steps.
	Start                      time.Time
	Compile, Read, Plan, Apply time.Duration
	// Encode and Commit are the two parts of Apply.
	Encode, Commit time.Duration
	Program        *nft.Program
	// Applied is the program in force: Program without the parts in quarantine. In a family where Program is not in force,
	// it has the last table that went in, as far as known, or one without sets if none did yet.
	Applied *nft.Program
	// Adopted says that the loop read a table whose contents were, as far as
	// known, not those of the last Applied. The effect of its rules is then unknown.
	Adopted bool
	// Found is what the kernel had in our tables before this loop wrote to them. It has the families that this sync read
	// for the first time, and is nil if there are none.
	Found *nft.Model
	// Written is the number of elements, rules and other objects that the
	// batches touched; 0 means that the kernel had everything already.
	Written int
	// Parts is the number of elements of each part that the batches touched.
	Parts map[string]int
	// Check says that the loop made this sync because another program had changed
	// the ruleset. Everything that the sync wrote is repair.
	Check bool
	// Rest is how long the next sync waits since syncs have taken more CPU time than they
	// may in the long run; 0 is the rule.
	Rest time.Duration
	// Quarantined lists the parts that the kernel refused, each with the first error
	// for its present content. Everything else is in force. The loop tries them again.
	Quarantined map[string]error
	// Err is why the program is not in force in at least one family; InForce says in which.
	Err error
}

// InForce says whether the program, without the parts in quarantine, is in force in the family.
func (s *Sync) InForce(f nft.Family) bool { return s.FamilyErr(f) == nil }

// FamilyErr is why the program is not in force in the family; nil if it is.
func (s *Sync) FamilyErr(f nft.Family) error {
	var failed FamilyErrors
	if errors.As(s.Err, &failed) {
		return failed[f]
	}
	return s.Err
}

// Repaired says that the sync undid what another program had done to our tables.
func (s *Sync) Repaired() bool { return s.Check && s.Written > 0 }

// Latency is the time from the oldest change to the end of the sync.
func (s *Sync) Latency() time.Duration {
	if s.Since.IsZero() {
		return 0
	}
	return s.End().Sub(s.Since)
}

// End is when the last step ended.
func (s *Sync) End() time.Time { return s.Start.Add(s.Compile + s.Read + s.Plan + s.Apply) }

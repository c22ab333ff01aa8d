package proxy

import (
	"fmt"
	"slices"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/pace"
	"nftproxy/nft"
)

// maxWrites bounds the transactions in which one sync tries to write the same tables. Each but the first few leaves out
// at least one more part.
const maxWrites = 32

// applier writes programs to the kernel, as far as the kernel takes them. Both families
// are in one transaction, unless one of them fails.
type applier struct {
	kernel Kernel
	// tables has the table of each family, in the order of nft.Families.
	tables ip.PerFamily[*familyTable]
	// found collects the tables that were read for the first time, until a Sync reports them.
	found *nft.Model
	// separate says that the last sync failed in some family. Each family then has
	// a transaction of its own, so that neither holds up the other.
	separate bool
	// generation is the ruleset's number as long as only the loop writes;
	// generationRead is its number just before the last read.
	generation, generationRead uint32
	quarantine                 *quarantine
	// shortSyncs are the syncs that failed in a row for want of memory.
	shortSyncs int
}

func newApplier(k Kernel, jitter func() float64) applier {
	return applier{kernel: k, tables: newFamilyTables(), quarantine: newQuarantine(jitter)}
}

// applyProgram writes s.Program and fills in the rest of s. Refused parts come last, so that they hold up nothing else.
func (a *applier) applyProgram(s *Sync) error {
	a.quarantine.follow(s.Program, time.Now())
	failed := a.writeFamilies(s)
	var succeeded []*familyTable
	for _, t := range a.tables {
		if failed[t.family] == nil {
			succeeded = append(succeeded, t)
		}
	}
	if len(succeeded) > 0 {
		a.retryDueParts(s, succeeded)
	}
	a.separate = len(failed) > 0
	a.shortSyncs++
	if !isShort(failed) {
		a.shortSyncs = 0
	}
	s.Applied, s.Quarantined = inForce(a.tables), a.quarantine.reasons()
	s.Found, a.found = a.found, nil
	if a.separate {
		return failed
	}
	return nil
}

// writeFamilies writes both families together, or each by itself if that fails.
func (a *applier) writeFamilies(s *Sync) FamilyErrors {
	if !a.separate && a.writeAccepted(s, a.tables[:]) == nil {
		return nil
	}
	failed := FamilyErrors{}
	for i, t := range a.tables {
		if err := a.writeAccepted(s, a.tables[i:i+1]); err != nil {
			failed[t.family] = err
			t.mustBeRead()
		}
	}
	return failed
}

// writeAccepted writes the tables in one transaction, without the parts that the kernel refuses.
func (a *applier) writeAccepted(s *Sync, tables []*familyTable) error {
	var err error
	refusal := inquiry{applier: a, sync: s, tables: tables}
	for range maxWrites {
		var batch nft.Batch
		if batch, err = a.writeOnce(s, tables); err == nil {
			return nil
		}
		if !refusal.mayWriteAgain(batch, err) {
			break
		}
	}
	return err
}

// writeOnce reads the tables where needed, and writes what differs. It returns the batch also if the kernel refuses it.
func (a *applier) writeOnce(s *Sync, tables []*familyTable) (nft.Batch, error) {
	want := a.quarantine.withoutHeld(s.Program, nil)
	if err := a.readUnread(s, want, tables); err != nil {
		return nft.Batch{}, err
	}
	batch, next := a.plan(s, want, tables)
	adopted := slices.ContainsFunc(tables, func(t *familyTable) bool { return t.adoptedBy(batch) })
	if err := a.write(s, batch); err != nil {
		return batch, err
	}
	keepWritten(tables, want, next)
	s.Adopted = s.Adopted || adopted
	return batch, nil
}

// keepWritten keeps what the kernel holds after a batch that went in.
func keepWritten(tables []*familyTable, want *nft.Program, next []nft.State) {
	for i, t := range tables {
		t.wasWritten(next[i], want.Table(t.family))
	}
}

// readUnread reads those of the tables that have to be read before a plan.
func (a *applier) readUnread(s *Sync, want *nft.Program, tables []*familyTable) error {
	tables = tablesThatAre(unread, tables)
	if len(tables) == 0 {
		return nil
	}
	start := time.Now()
	defer func() { s.Read += time.Since(start) }()
	for _, t := range tables {
		if err := a.kernel.Own(want.Table(t.family).ID()); err != nil {
			return err // Own says in its error what it did; so do the other methods.
		}
	}
	// The generation is from before the read, so that a write in between leads to another read. If only one family is
	// read now, the checks compare with an older one: the other family may have changed since then.
	generation, err := a.kernel.Generation()
	if err != nil {
		return err
	}
	if len(tablesThatAre(unread, a.tables[:])) == len(a.tables) {
		a.generation = generation
	}
	a.generationRead = generation
	for _, t := range tables {
		if err := a.readTable(t, want); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) readTable(t *familyTable, want *nft.Program) error {
	contents, err := a.kernel.ReadTable(want.Table(t.family))
	if err != nil {
		return err
	}
	m := nft.NewModel()
	if contents != nil {
		m.Put(contents)
	}
	if !t.everRead {
		if a.found == nil {
			a.found = nft.NewModel()
		}
		if contents != nil {
			a.found.Put(contents)
		}
	}
	id := want.Table(t.family).ID()
	t.wasRead(nft.Adopt(m, want), func() bool { return a.ours(id) })
	return nil
}

// ours says whether no other program can change the table, as from Linux 6.9 on.
func (a *applier) ours(id nft.TableID) bool {
	owned, err := a.kernel.Owned(id)
	return err == nil && owned
}

// tampered says whether another program has written to the ruleset and may have changed our tables; the next write then
// reads them. A table that is unread has a retry due anyway.
func (a *applier) tampered() bool {
	generation, err := a.kernel.Generation()
	if err != nil || generation == a.generation {
		return false
	}
	a.generation = generation
	return a.mustReadWhere(func(have *nft.Table) bool { return !a.ours(have.ID()) })
}

// owned says whether the kernel keeps all other programs from changing our tables. It asks
// the kernel once after each read.
func (a *applier) owned() bool {
	for _, t := range a.tables {
		if t.known != written || !t.exists() || !t.ours() {
			return false
		}
	}
	return true
}

// lost says whether another program has removed one of our tables or, with parts, chains or
// sets of it; the next write then reads the table. What else it did only a read tells.
func (a *applier) lost(parts bool) bool {
	generation, err := a.kernel.Generation()
	if err != nil || generation == a.generation {
		return false
	}
	return a.mustReadWhere(func(have *nft.Table) bool {
		n, err := a.kernel.Objects(have.ID())
		return err == nil && (n == 0 || parts && n < have.Chains.Len()+have.Sets.Len()+have.Timeouts.Len())
	})
}

// mustReadWhere has those of our tables in the kernel read before the next plan that are so, and says whether any is.
func (a *applier) mustReadWhere(is func(have *nft.Table) bool) (found bool) {
	for _, t := range a.tables {
		if t.known != unread && t.exists() && is(t.inKernel()) {
			t.mustBeRead()
			found = true
		}
	}
	return found
}

// plan returns the batch for all of the tables, and what the kernel holds of each after it.
func (a *applier) plan(s *Sync, want *nft.Program, tables []*familyTable) (nft.Batch, []nft.State) {
	start := time.Now()
	defer func() { s.Plan += time.Since(start) }()
	var batch nft.Batch
	next := make([]nft.State, len(tables))
	for i, t := range tables {
		var one nft.Batch
		one, next[i] = t.state.PlanTable(want.Table(t.family), start)
		batch = nft.Join(batch, one)
	}
	return batch, next
}

func (a *applier) write(s *Sync, b nft.Batch) error {
	if b.Empty() {
		return nil
	}
	start := time.Now()
	defer func() { s.Apply += time.Since(start) }()
	if s.Parts == nil {
		s.Parts = map[string]int{}
	}
	for part, n := range b.Parts() {
		s.Parts[part] += n
	}
	err := a.kernel.Apply(b)
	encode, commit := a.kernel.Spent()
	s.Encode, s.Commit = s.Encode+encode, s.Commit+commit
	if err != nil {
		return fmt.Errorf("apply batch: %w", err)
	}
	a.generation += uint32(len(b.Transactions()))
	s.Written += b.Size()
	return nil
}

func (a *applier) mustRead() bool { return len(tablesThatAre(unread, a.tables[:])) > 0 }

// due is when the applier has work although no snapshot comes; the zero time means never.
func (a *applier) due() time.Time {
	due := a.quarantine.nextRetry()
	for _, t := range a.tables {
		due = pace.Soonest(due, t.state.Due()) // when something idle is to be removed
	}
	return due
}

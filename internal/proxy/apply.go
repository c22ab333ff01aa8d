package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nftproxy/nft"
)

// maxTries bounds the transactions of one sync. Each but the first and the last
// puts at least one more part into quarantine; the rest waits for the next sync.
const maxTries = 32

// refusal is an error of the kernel's that concerns certain parts only.
type refusal interface {
	error
	Parts() []string
}

// FamilyErrors says why the program is not in force in some families, while it
// is in those that it does not list.
type FamilyErrors map[nft.Family]error

// IPFamily is the Kubernetes API's name for the family, as metrics and health
// have it too: "IPv4" or "IPv6".
func IPFamily(f nft.Family) string {
	if f == nft.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

func (e FamilyErrors) Error() string {
	var words []string
	for _, f := range nft.Families() {
		if e[f] != nil {
			words = append(words, fmt.Sprintf("family %s: %v", f, e[f]))
		}
	}
	return strings.Join(words, "; ")
}

// Unwrap yields the errors in the order of the families.
func (e FamilyErrors) Unwrap() []error {
	var errs []error
	for _, f := range nft.Families() {
		if e[f] != nil {
			errs = append(errs, e[f])
		}
	}
	return errs
}

// applier brings the kernel from what it holds to a program: both families in
// one transaction, unless one of them stands in the way.
type applier struct {
	kernel Kernel
	// state is what the kernel holds in the families of which that is sure.
	state nft.State
	sure  map[nft.Family]bool
	// inForce is the last program that went in, family by family.
	inForce *nft.Program
	// found is what the first look at a family found, until it was told; seen
	// are the families that had it.
	found *nft.Model
	seen  map[nft.Family]bool
	// apart says that the last sync did not succeed in both families: then each
	// has a transaction of its own, so that neither holds up the other.
	apart bool
	// generation is the ruleset's number as long as only we write.
	generation uint32
	// quarantine holds the parts that the kernel refused. One gets another
	// chance when it changes.
	quarantine map[string]quarantined
}

type quarantined struct {
	parts [2]*nft.Part
	err   error
}

func newApplier(k Kernel) applier {
	return applier{
		kernel: k, sure: map[nft.Family]bool{}, seen: map[nft.Family]bool{}, quarantine: map[string]quarantined{},
		inForce: &nft.Program{IPv4: &nft.Table{Family: nft.IPv4}, IPv6: &nft.Table{Family: nft.IPv6}},
	}
}

// run applies s.Program and fills in what it took.
func (a *applier) run(s *Sync) error {
	defer func() {
		s.Applied, s.Quarantined = a.inForce, a.refused()
		s.Found, a.found = a.found, nil
	}()
	both := nft.Families()
	if !a.apart && a.bring(s, both[:]) == nil {
		return nil
	}
	failed := FamilyErrors{}
	for i, f := range both {
		if err := a.bring(s, both[i:i+1]); err != nil {
			failed[f] = err
		}
	}
	if a.apart = len(failed) > 0; a.apart {
		return failed
	}
	return nil
}

// bring writes some families together, without what the kernel refuses.
func (a *applier) bring(s *Sync, families []nft.Family) error {
	var err error
	for range maxTries {
		// What fails although it was planned from memory is tried again after a
		// look: the usual reason is that somebody else has changed the tables.
		// What fails after a look is about what was written.
		remembered := !slices.ContainsFunc(families, func(f nft.Family) bool { return !a.sure[f] })
		if err = a.try(s, families); err == nil {
			return nil
		}
		if !remembered && !a.isolate(s.Program, err) {
			break
		}
	}
	return err
}

// try is one attempt, with a look at the kernel first where needed.
func (a *applier) try(s *Sync, families []nft.Family) error {
	want := a.allowed(s.Program)
	looked := slices.ContainsFunc(families, func(f nft.Family) bool { return !a.sure[f] })
	if err := a.look(s, want, families); err != nil {
		return err
	}
	batch, next := a.plan(s, want, families)
	adopted := looked && (!batch.Empty() || slices.ContainsFunc(families, a.never))
	if err := a.write(s, batch); err != nil {
		for _, f := range families {
			// Nothing of it or, with an unknown outcome, some or all may be in.
			a.sure[f] = false
		}
		return err
	}
	a.state, a.inForce = next, with(a.inForce, want, families)
	s.Adopted = s.Adopted || adopted
	return nil
}

// never says that nothing of ours has been in force in the family yet.
func (a *applier) never(f nft.Family) bool { return len(a.inForce.Table(f).Sets) == 0 }

// with is the program old with some families' tables of the program new.
func with(old, new *nft.Program, families []nft.Family) *nft.Program {
	p := *old
	for _, f := range families {
		if f == nft.IPv4 {
			p.IPv4 = new.IPv4
		} else {
			p.IPv6 = new.IPv6
		}
	}
	return &p
}

// look makes sure what the kernel holds.
func (a *applier) look(s *Sync, want *nft.Program, families []nft.Family) error {
	var unsure []nft.Family
	for _, f := range families {
		if !a.sure[f] {
			unsure = append(unsure, f)
		}
	}
	if len(unsure) == 0 {
		return nil
	}
	start := time.Now()
	defer func() { s.Read += time.Since(start) }()
	for _, f := range unsure {
		if err := a.kernel.Claim(want.Table(f).ID()); err != nil {
			return err // It says itself what it was doing, and so do the others.
		}
	}
	// Asked before the read: what comes in between is looked at again. What is
	// known of a family that is not read now is as old as before.
	generation, err := a.kernel.Generation()
	if err != nil {
		return err
	}
	if !a.sure[nft.IPv4] && !a.sure[nft.IPv6] {
		a.generation = generation
	}
	for _, f := range unsure {
		contents, err := a.kernel.ReadTable(want.Table(f))
		if err != nil {
			return err
		}
		m := nft.NewModel()
		if contents != nil {
			m.Put(contents)
		}
		a.state, a.sure[f] = a.state.With(f, nft.Adopt(m, want)), true
		a.tell(f, contents)
	}
	return nil
}

// tell keeps what was found in a family at the first look; nil is no table.
func (a *applier) tell(f nft.Family, c *nft.Contents) {
	if a.seen[f] {
		return
	}
	a.seen[f] = true
	if a.found == nil {
		a.found = nft.NewModel()
	}
	if c != nil {
		a.found.Put(c)
	}
}

// tampered says whether somebody else has written to the ruleset where it may
// have been to our tables; they will then be read before the next write. Where
// it is not sure what the kernel holds, a retry is due anyway.
func (a *applier) tampered() bool {
	generation, err := a.kernel.Generation()
	if err != nil || generation == a.generation {
		return false
	}
	a.generation = generation
	tampered := false
	for _, f := range nft.Families() {
		t := a.state.Applied().Table(f)
		if !a.sure[f] || t.Name == "" {
			continue
		}
		if owned, err := a.kernel.Owned(t.ID()); err != nil || !owned {
			a.sure[f], tampered = false, true
		}
	}
	return tampered
}

func (a *applier) plan(s *Sync, want *nft.Program, families []nft.Family) (nft.Batch, nft.State) {
	start := time.Now()
	defer func() { s.Plan += time.Since(start) }()
	var batch nft.Batch
	next := a.state
	for _, f := range families {
		var one nft.Batch
		one, next = next.PlanTable(want.Table(f), start)
		batch.Ops = append(batch.Ops, one.Ops...)
	}
	return batch, next
}

func (a *applier) write(s *Sync, b nft.Batch) error {
	if b.Empty() {
		return nil
	}
	start := time.Now()
	defer func() { s.Apply += time.Since(start) }()
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

// allowed is the program without what is in quarantine. A part that has
// changed since is let out.
func (a *applier) allowed(p *nft.Program) *nft.Program {
	if len(a.quarantine) == 0 {
		return p
	}
	allowed := &nft.Program{IPv4: p.IPv4.Clone(), IPv6: p.IPv6.Clone()}
	for name, q := range a.quarantine {
		if q.parts != partsOf(p, name) {
			delete(a.quarantine, name)
			continue
		}
		allowed.IPv4.Parts = allowed.IPv4.Parts.Delete(name)
		allowed.IPv6.Parts = allowed.IPv6.Parts.Delete(name)
	}
	return allowed
}

// isolate puts the parts that the error is about into quarantine; false means
// that there is none that is not there yet, so that trying again is no use. A
// part that the program no longer has cannot be left out of it.
func (a *applier) isolate(p *nft.Program, err error) bool {
	var r refusal
	if !errors.As(err, &r) {
		return false
	}
	isolated := false
	for _, name := range r.Parts() {
		parts := partsOf(p, name)
		if _, already := a.quarantine[name]; already || parts == [2]*nft.Part{} {
			continue
		}
		a.quarantine[name] = quarantined{parts, err}
		isolated = true
	}
	return isolated
}

func partsOf(p *nft.Program, name string) [2]*nft.Part {
	return [2]*nft.Part{p.IPv4.Parts.At(name), p.IPv6.Parts.At(name)}
}

func (a *applier) refused() map[string]error {
	if len(a.quarantine) == 0 {
		return nil
	}
	errs := make(map[string]error, len(a.quarantine))
	for name, q := range a.quarantine {
		errs[name] = q.err
	}
	return errs
}

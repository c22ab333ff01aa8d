package proxy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"nftproxy/nft"
)

// maxTries bounds the transactions of one sync. Each but the last few puts at
// least one more part into quarantine; the rest waits for the next sync.
const maxTries = 32

// refusal is an error of the kernel's that concerns certain parts only.
type refusal interface {
	error
	Parts() []string
}

// applier brings the kernel from what it holds to a program.
type applier struct {
	kernel Kernel
	// state is what the kernel holds, if sure.
	state nft.State
	sure  bool
	// quarantine holds the parts that the kernel refused. One gets another
	// chance when it changes.
	quarantine map[string]quarantined
}

type quarantined struct {
	parts [2]*nft.Part
	err   error
}

// run applies s.Program and fills in what it took.
func (a *applier) run(s *Sync) error {
	want := a.allowed(s.Program)
	defer func() { s.Quarantined = a.refused() }()
	err := a.try(s, want)
	if err == nil {
		return nil
	}
	// The usual reason is that somebody else has changed the tables: look, then
	// write what differs. An error that comes again is about what was written.
	a.sure = false
	for range maxTries {
		if err = a.try(s, want); err == nil {
			return nil
		}
		var r refusal
		if !errors.As(err, &r) || len(r.Parts()) == 0 {
			break
		}
		for _, part := range r.Parts() {
			a.isolate(part, s.Program, err)
		}
		want = a.allowed(s.Program)
	}
	return a.alone(s, want, err)
}

// try is one transaction, with a look at the kernel first where needed.
func (a *applier) try(s *Sync, want *nft.Program) error {
	if !a.sure {
		if err := a.look(s, want); err != nil {
			return err
		}
	}
	batch, next := a.plan(s, want)
	if err := a.write(s, batch); err != nil {
		return err
	}
	a.state = next
	return nil
}

func (a *applier) look(s *Sync, want *nft.Program) error {
	start := time.Now()
	defer func() { s.Read += time.Since(start) }()
	if err := a.kernel.Claim(want); err != nil {
		return fmt.Errorf("claim tables: %w", err)
	}
	m, err := a.kernel.Read(want)
	if err != nil {
		return fmt.Errorf("read tables: %w", err)
	}
	a.state, a.sure = nft.Adopt(m, want), true
	return nil
}

func (a *applier) plan(s *Sync, want *nft.Program) (nft.Batch, nft.State) {
	start := time.Now()
	defer func() { s.Plan += time.Since(start) }()
	return a.state.Plan(want, start)
}

func (a *applier) write(s *Sync, b nft.Batch) error {
	if b.Empty() {
		return nil
	}
	start := time.Now()
	defer func() { s.Apply += time.Since(start) }()
	if err := a.kernel.Apply(b); err != nil {
		return fmt.Errorf("apply batch: %w", err)
	}
	s.Written += b.Size()
	return nil
}

// alone tries one family after the other: what stands in the way of one shall
// not hold up the other. It returns why something is missing.
func (a *applier) alone(s *Sync, want *nft.Program, cause error) error {
	if !a.sure {
		return cause
	}
	batch, next := a.plan(s, want)
	var failed error
	for _, f := range nft.Families() {
		if err := a.write(s, batch.Only(f)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("family %s: %w", f, err))
			continue
		}
		a.state = a.state.With(f, next)
	}
	if failed != nil {
		a.sure = false
	}
	return failed
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

func (a *applier) isolate(name string, p *nft.Program, err error) {
	if a.quarantine == nil {
		a.quarantine = map[string]quarantined{}
	}
	a.quarantine[name] = quarantined{partsOf(p, name), err}
}

func partsOf(p *nft.Program, name string) [2]*nft.Part {
	return [2]*nft.Part{p.IPv4.Parts.At(name), p.IPv6.Parts.At(name)}
}

func (a *applier) refused() map[string]error {
	if len(a.quarantine) == 0 {
		return nil
	}
	errs := map[string]error{}
	for _, name := range slices.Sorted(maps.Keys(a.quarantine)) {
		errs[name] = a.quarantine[name].err
	}
	return errs
}

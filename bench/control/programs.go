package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// swap is a change and what takes it back, as batches that can be carried out in
// turn any number of times once first has been.
type swap struct {
	first, back, again nft.Batch
}

// programs are nftproxy's own for the objects of the API server, and for the
// changes that are measured: what others load is what nftproxy would.
type programs struct {
	whole *nft.Program
	// one replaces an endpoint, scale adds one, and add adds a service.
	one, scale, add swap
}

// programs makes the changes through the API server, and takes what an informer
// sees of them.
func (w *world) programs(ctx context.Context) (_ *programs, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mailbox := service.NewMailbox()
	watcher := watch.NewWatcher(watch.Options{Node: "bench-none", NodeTimeout: time.Millisecond}, mailbox)
	ended := make(chan error, 1)
	go func() { ended <- watcher.RunKubernetes(ctx, w.client) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()

	compiler := ruleset.NewCompiler(ruleset.Config{
		Table: ruleset.DefaultTable, MasqueradeBit: ruleset.DefaultMasqueradeBit,
		// As on the nodes.
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")},
	})
	next := func() (*nft.Program, error) {
		select {
		case <-mailbox.C():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		u, _ := mailbox.Take()
		return compiler.Compile(u.Snapshot), nil
	}
	p := &programs{}
	if p.whole, err = next(); err != nil {
		return nil, fmt.Errorf("read the API server's objects: %w", err)
	}
	before := p.whole
	extra := w.extraServices(1)
	scalings := w.scalings(2)
	additions, removals := w.additions(extra), w.removals(extra, 1)
	added := func(p *nft.Program) bool { return len(extra[0].part(p).Pools) > 0 }
	removed := func(p *nft.Program) bool { return len(extra[0].part(p).Elements) == 0 }
	any := func(*nft.Program) bool { return true }
	for _, c := range []struct {
		what    string
		to      *swap
		changes changes
		// A service and its slice come by watches of their own, in either order.
		complete func(*nft.Program) bool
	}{
		{"replace an endpoint", &p.one, w.replacements(1), any},
		{"add an endpoint", &p.scale, changes{list: scalings.list[:1]}, any},
		{"take it away", nil, changes{list: scalings.list[1:]}, any},
		{"add a service", &p.add, additions, added},
		{"delete it", nil, removals, removed},
	} {
		after, err := c.changes.once(ctx, next, c.complete)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.what, err)
		}
		if c.to != nil {
			*c.to = newSwap(before, after)
		}
		before = after
	}
	return p, nil
}

// part is what the service has in a program, empty where it is not there.
func (x *extraService) part(p *nft.Program) *nft.Part {
	if part, found := p.IPv4.Parts.Get(namespace + "/" + x.name); found {
		return part
	}
	return &nft.Part{}
}

// once makes the only change and returns the first program that has all of it.
func (c changes) once(ctx context.Context, next func() (*nft.Program, error), complete func(*nft.Program) bool) (*nft.Program, error) {
	if c.prepare != nil {
		if err := c.prepare(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.list[0].write(ctx); err != nil {
		return nil, err
	}
	p, err := next()
	for err == nil && !complete(p) {
		p, err = next()
	}
	if err == nil && c.clean != nil {
		err = c.clean(ctx)
	}
	return p, err
}

// newSwap plans from one program to another and back. The first time there is
// more to do: chains are made, which then stay for a while.
func newSwap(from, to *nft.Program) swap {
	var s swap
	now := time.Now()
	_, state := nft.State{}.Plan(from, now)
	s.first, state = state.Plan(to, now)
	s.back, state = state.Plan(from, now)
	s.again, _ = state.Plan(to, now)
	return s
}

// load is the batch that makes a program in an empty kernel.
func load(p *nft.Program) nft.Batch {
	b, _ := nft.State{}.Plan(p, time.Now())
	return b
}

// sized is the program with the size of each set declared: room for twice what is
// in it, as a set that is to grow would have.
func sized(p *nft.Program) *nft.Program {
	return &nft.Program{IPv4: sizedTable(p.IPv4), IPv6: sizedTable(p.IPv6)}
}

func sizedTable(t *nft.Table) *nft.Table {
	counts := map[string]int{}
	for _, part := range t.Parts.All() {
		for _, e := range part.Elements {
			counts[e.Set]++
		}
		for _, pool := range part.Pools {
			counts[pool.Map] += len(pool.Targets)
		}
	}
	const least = 16
	t = t.Clone()
	sets := t.Sets
	t.Sets = nil
	for _, s := range sets {
		declared := *s
		if !s.Dynamic {
			declared.Size = uint32(max(least, 2*counts[s.Name]))
		}
		t.Sets = append(t.Sets, &declared)
	}
	return t
}

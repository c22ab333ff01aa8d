package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// swap is a change and its reverse, as batches. After first, back and again can be
// applied in turn any number of times.
type swap struct {
	first, back, again nft.Batch
}

// programs are nftproxy's own programs, for the objects of the API server and for the
// measured changes. So other backends load the same elements as nftproxy.
type programs struct {
	whole *nft.Program
	// one replaces an endpoint, scale adds one, and add adds a service.
	one, scale, add swap
}

// programs makes the changes through the API server, and compiles what an informer sees
// of them.
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
		Table: ruleset.DefaultTable, Settings: service.Settings{
			// The nodes have the same CIDRs.
			ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")},
		},
	})
	next := func() (service.Snapshot, error) {
		select {
		case <-mailbox.C():
		case <-ctx.Done():
			return service.Snapshot{}, ctx.Err()
		}
		u, _ := mailbox.Take()
		return u.Snapshot, nil
	}
	before, err := next()
	if err != nil {
		return nil, fmt.Errorf("read the API server's objects: %w", err)
	}
	p := &programs{whole: compiler.Compile(before)}
	extra := w.extraServices(1)
	scalings, replacements := w.scalings(2), w.replacements(1)
	for _, c := range []struct {
		what    string
		to      *swap
		changes changes
		// by is the endpoint that identifies the changed Service; gone says that the
		// change removes it.
		by   netip.Addr
		gone bool
	}{
		{"replace an endpoint", &p.one, replacements, replacements.list[0].seen, false},
		{"add an endpoint", &p.scale, changes{list: scalings.list[:1]}, scalings.list[0].seen, false},
		{"take it away", nil, changes{list: scalings.list[1:]}, scalings.list[0].seen, true},
		{"add a service", &p.add, w.additions(extra), extra[0].first, false},
		{"delete it", nil, w.removals(extra, 1), extra[0].first, true},
	} {
		changed, err := c.changes.once(ctx, next, c.by, c.gone)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.what, err)
		}
		if c.to == nil {
			continue
		}
		// Only this Service counts: the API server has some of its own.
		after := before
		after.Services = before.Services.Set(changed.Name, changed)
		*c.to = newSwap(p.whole, compiler.Compile(after))
	}
	return p, nil
}

// once makes a single change. It returns the Service that has the endpoint then, or nil
// once no Service has it.
func (c changes) once(ctx context.Context, next func() (service.Snapshot, error), endpoint netip.Addr, gone bool) (*service.Service, error) {
	if c.prepare != nil {
		if err := c.prepare(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.list[0].write(ctx); err != nil {
		return nil, err
	}
	for {
		s, err := next()
		if err != nil {
			return nil, err
		}
		found := sendsTo(s, endpoint)
		if (found == nil) != gone {
			continue // A Service and its slice arrive by two watches.
		}
		if c.clean != nil {
			err = c.clean(ctx)
		}
		return found, err
	}
}

// sendsTo returns the Service that has an endpoint with the address, or nil.
func sendsTo(s service.Snapshot, a netip.Addr) *service.Service {
	for _, svc := range s.Services.All() {
		for _, p := range svc.Ports {
			for e := range p.Endpoints.All() {
				if e.Addr.Addr() == a {
					return svc
				}
			}
		}
	}
	return nil
}

// newSwap plans from one program to another and back. The first way is longer: it makes
// chains, which then stay for a while.
func newSwap(from, to *nft.Program) swap {
	var s swap
	now := time.Now()
	_, state := nft.State{}.Plan(from, now)
	s.first, state = state.Plan(to, now)
	s.back, state = state.Plan(from, now)
	s.again, _ = state.Plan(to, now)
	return s
}

// load returns the batch that makes a program in an empty kernel. It declares a size for
// each set.
func load(p *nft.Program) nft.Batch {
	b, _ := nft.State{}.Plan(p, time.Now())
	return b
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// wanted is the program that the manifests ask for. nftproxy's own packages make it, but
// not in the running process.
func (w *world) wanted(ctx context.Context) (*nft.Program, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	mailbox := service.NewMailbox()
	var problem error
	watcher := watch.NewWatcher(watch.Options{Node: nodeName, Report: func(p watch.Problem) {
		if problem == nil {
			problem = p
		}
	}}, mailbox)
	group, watching := errgroup.WithContext(ctx)
	done := errors.New("done")
	group.Go(func() error { return watcher.RunManifests(watching, w.dir) })
	group.Go(func() error {
		select {
		case <-mailbox.C():
			return done
		case <-watching.Done():
			return context.Cause(watching)
		}
	})
	if err := group.Wait(); err != done {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if problem != nil {
		return nil, fmt.Errorf("read manifests: %w", problem)
	}
	latest, _ := mailbox.Take()
	w.asked = latest.Snapshot
	program := ruleset.Compile(w.rulesetConfig(), w.asked)
	w.programs = append(w.programs, program)
	return program, nil
}

func (w *world) rulesetConfig() ruleset.Config {
	return ruleset.Config{
		Table: ruleset.DefaultTable, Settings: service.Settings{
			ClusterCIDRs: w.net.ClusterCIDRs,
		},
	}
}

// holds says whether the kernel has the whole program, and beside it only idle chains.
func (w *world) holds(want *nft.Program) (bool, error) {
	have, err := w.tables.Read(want)
	if err != nil {
		return false, fmt.Errorf("read tables: %w", err)
	}
	want = w.asSlotted(want, have)
	missing, _ := nft.Adopt(have, want).Plan(want, time.Now())
	return missing.Empty(), nil
}

// asSlotted is the wanted program with the slots that connections have moved.
func (w *world) asSlotted(want *nft.Program, have *nft.Model) *nft.Program {
	if slotted := ruleset.WithSlots(w.asked, have, ruleset.DefaultTable); slotted.Services != w.asked.Services {
		return ruleset.Compile(w.rulesetConfig(), slotted)
	}
	return want
}

func showTable(ctx context.Context, w *world, _ tellFunc) ([]block, error) {
	want, err := w.wanted(ctx)
	if err != nil {
		return nil, err
	}
	texts, err := w.readTexts(want)
	if err != nil {
		return nil, err
	}
	if w.config.FullTable {
		return []block{listing(texts[0]), listing(texts[1])}, nil
	}
	lines := strings.Count(texts[0]+texts[1], "\n")
	return []block{
		listing(shorten(texts[0])),
		textf("{ ... } and table ip6, its twin, are left out: bin/demo --full-table prints all %d lines.", lines),
	}, nil
}

// readTexts returns the node's tables as nft text. It fails if they differ from the
// wanted program.
func (w *world) readTexts(want *nft.Program) (texts [2]string, err error) {
	// Read recognises only chains whose names it is given.
	have, err := w.tables.Read(withOldChains(want, w.programs))
	if err != nil {
		return texts, fmt.Errorf("read tables: %w", err)
	}
	want = w.asSlotted(want, have)
	missing, _ := nft.Adopt(have, want).Plan(want, time.Now())
	if err := w.expect(missing.Empty(), "tables in the kernel", "what the manifests ask for", "this difference:\n"+
		missing.String()); err != nil {
		return texts, err
	}
	for i, f := range nft.Families() {
		table := want.Table(f)
		contents := have.Table(table.ID())
		one := nft.NewModel()
		one.Put(contents)
		t := one.String()
		unknown := strings.Contains(t, nft.Unknown{}.Text(f))
		if err := w.expect(!unknown, fmt.Sprintf("rules of table %s in the kernel", table.ID()), "known ones",
			"one that nftproxy does not make"); err != nil {
			return texts, err
		}
		for name := range contents.Chains {
			if _, used := table.Chains.Get(name); !used {
				head := "\tchain " + name + " {\n"
				t = strings.Replace(t, head, head+fmt.Sprintf("\t\t# unused by now: removed after %v\n", nft.IdleLife), 1)
			}
		}
		texts[i] = t
	}
	return texts, nil
}

// withOldChains returns the program with the chains of earlier programs: idle chains stay
// for a while.
func withOldChains(want *nft.Program, earlier []*nft.Program) *nft.Program {
	all := &nft.Program{IPv4: want.IPv4.Clone(), IPv6: want.IPv6.Clone()}
	for _, p := range earlier {
		for _, f := range nft.Families() {
			t := all.Table(f)
			for name, chain := range p.Table(f).Chains.All() {
				if _, ok := t.Chains.Get(name); !ok {
					t.Chains = t.Chains.Set(name, chain)
				}
			}
		}
	}
	return all
}

// shorten leaves out the pieces of a table that a newcomer does not need, and the rest of
// long lists of elements.
func shorten(table string) string {
	const elements = 3
	keep := []string{"map services", "map endpoints", "chain prerouting", "chain dispatch", "chain refuse",
		fmt.Sprintf("chain endpoints-%d", podsScaledTo), "chain postrouting"}
	var b strings.Builder
	folded, listed := false, 0
	for line := range strings.Lines(table) {
		depth := len(line) - len(strings.TrimLeft(line, "\t"))
		switch head, opens := strings.CutSuffix(line, " {\n"); {
		case depth == 1 && opens && !slices.Contains(keep, strings.TrimSpace(head)):
			fmt.Fprintf(&b, "%s { ... }\n", head)
			folded = true
			continue
		case folded:
			folded = line != "\t}\n"
			continue
		case depth == 3:
			if listed++; listed > elements {
				continue
			}
		case listed > elements:
			fmt.Fprintf(&b, "\t\t\t# ... and %d more\n", listed-elements)
			fallthrough
		default:
			listed = 0
		}
		b.WriteString(line)
	}
	return b.String()
}

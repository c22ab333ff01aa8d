package ruleset_test

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
)

// withoutCauses is the program as the previous version had it: nothing was counted, and
// where this version goes to the chain of a cause, that one dropped packets by itself.
func withoutCauses(p *nft.Program) *nft.Program {
	old := &nft.Program{IPv4: p.IPv4.Clone(), IPv6: p.IPv6.Clone()}
	for _, table := range []*nft.Table{old.IPv4, old.IPv6} {
		for name := range ruleset.RefusalSets() {
			table.Sets = table.Sets.Delete(name)
		}
		for _, cause := range ruleset.Causes() {
			for _, chain := range cause.Chains() {
				if chain != "refuse" {
					table.Chains = table.Chains.Delete(chain)
				}
			}
		}
		for name, chain := range table.Chains.All() {
			next := &nft.Chain{Name: name, Hook: chain.Hook}
			for _, r := range chain.Rules {
				var rule nft.Rule
				for _, s := range r.Body() {
					if v, ok := s.(nft.Verdict); ok {
						s = withoutCause(v)
					}
					if (s != nft.Counter{}) {
						rule = append(rule, s)
					}
				}
				if in, ok := r[0].(nft.InSet); len(r.Body()) == 1 && ok && in.Set != "" {
					continue // it only counts
				}
				next.Rules = append(next.Rules, rule) // without its comment, as that version
			}
			table.Chains = table.Chains.Set(name, next)
		}
		for name, part := range table.Parts.All() {
			var elements []nft.Element
			for _, e := range part.Elements {
				if _, counts := ruleset.RefusalSets()[e.Set]; counts {
					continue
				}
				e.Verdict = withoutCause(e.Verdict)
				elements = append(elements, e)
			}
			table.Parts = table.Parts.Set(name, nft.NewPart(elements, part.Pools))
		}
	}
	return old
}

func withoutCause(v nft.Verdict) nft.Verdict {
	for _, cause := range ruleset.Causes() {
		switch {
		case !slices.Contains(cause.Chains(), v.Chain):
		case cause.Drops():
			return nft.Verdict{Code: nft.Drop}
		default:
			v.Chain = "refuse"
		}
	}
	return v
}

// The tables of the previous version become those of this version and are not replaced.
// In every state between, each packet has a right outcome.
func TestUpgradeOfRefusals(t *testing.T) {
	s := newSender(t)
	p := refusingProgram()
	must(t, s.c.Apply(load(withoutCauses(p))))
	have, err := s.c.Read(p)
	must(t, err)
	if diff := check.Diff(p, have); diff == "" {
		t.Fatal("the program of the previous version is that of this version")
	}
	before := ruleset.ReadBack(have, ruleset.DefaultTable, &service.Node{Name: "node"})
	b, state := nft.Adopt(have, p).Plan(p, time.Time{})
	for _, op := range b.Ops {
		switch op.(type) {
		case nft.DeleteTable, nft.DeleteSet:
			t.Fatalf("a table or set is replaced: %s", op.Text())
		}
	}
	got := s.upgrade(t, p, b, state, func() error {
		_, open := s.send(5, inRanges(5), netip.AddrPortFrom(openAddress, firstPort), translated)
		_, admitted := s.send(5, inRanges(5), netip.AddrPortFrom(restrictedAddress, firstPort), translated)
		_, restricted := s.send(5, inNone(10), netip.AddrPortFrom(restrictedAddress, firstPort), dropped)
		_, local := s.send(5, inRanges(5), netip.AddrPortFrom(externalAddress, firstPort), dropped)
		return errors.Join(open, admitted, restricted, local)
	})
	after := ruleset.ReadBack(got, ruleset.DefaultTable, &service.Node{Name: "node"})
	if before.String() != after.String() {
		t.Errorf("the tables of the previous version read back as\n%s\nand those of this version as\n%s", before, after)
	}
}

// upgrade carries out the batch, and what the state asks for later, while packets are sent. It returns the tables,
// which have to be the program's.
func (s *sender) upgrade(t *testing.T, p *nft.Program, b nft.Batch, state nft.State, round func() error) *nft.Model {
	t.Helper()
	end := s.sendMeanwhile(t, round)
	must(t, s.c.Apply(b))
	rest, _ := state.Plan(p, time.Time{}.Add(nft.IdleLife))
	must(t, s.c.Apply(rest))
	end()
	got, err := s.c.Read(p)
	must(t, err)
	if diff := check.Diff(p, got); diff != "" {
		t.Errorf("wanted and read (-want +got):\n%s", diff)
	}
	return got
}

// sendMeanwhile sends until the end is called. It returns once the first round is done.
func (s *sender) sendMeanwhile(t *testing.T, round func() error) (end func()) {
	t.Helper()
	stop := make(chan struct{})
	var sending sync.WaitGroup
	began := make(chan struct{})
	started := sync.OnceFunc(func() { close(began) })
	sending.Go(func() {
		defer started()
		for {
			if err := round(); err != nil {
				t.Error(err)
				return
			}
			started()
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	<-began
	end = sync.OnceFunc(func() { close(stop); sending.Wait() })
	t.Cleanup(end)
	return end
}

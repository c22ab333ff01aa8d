package ruleset_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/nft/ruleset/rulesettest"
)

// TestReadBack: what a table is read back as serves the same.
func TestReadBack(t *testing.T) {
	seen := map[string]int{}
	seeds(t, 300, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := rulesettest.Config(rng)
		node := rulesettest.Node(rng)
		s := build(node, rulesettest.Services(rng, &node), rulesettest.ServiceCIDRs(rng)...)
		p := ruleset.Compile(cfg, s)
		got := ruleset.ReadBack(p.Model(), cfg.Table, s.Node)
		if diff := cmp.Diff(reachable(s, p), reachable(got, p)); diff != "" {
			t.Errorf("what the table serves (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(maps.Collect(s.ServiceCIDRs.All()))), slices.Sorted(maps.Keys(maps.Collect(got.ServiceCIDRs.All())))); diff != "" {
			t.Errorf("ServiceCIDRs (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(legible(p), legible(ruleset.Compile(cfg, got))); diff != "" {
			t.Errorf("the program of it (-want +got):\n%s\nwant:\n%s\ngot:\n%s", diff, s, got)
		}
		count(seen, got)
	})
	for _, what := range []string{"cluster IP", "external", "restricted", "node port", "lost", "internal Local", "external Local", "affinity", "hints", "local endpoint"} {
		if seen[what] == 0 {
			t.Errorf("no cluster had any %q", what)
		}
	}
}

// reachable lists, as text, what the table of p serves according to the
// snapshot: each target with its owner and all of its endpoints.
func reachable(s service.Snapshot, p *nft.Program) []string {
	var all []string
	for name, svc := range s.Services.All() {
		lost := s.Conflicts.At(name)
		for i := range svc.Ports {
			port := &svc.Ports[i]
			targets := map[string]service.Claim{}
			for _, a := range svc.Addresses() {
				c := service.Claim{Addr: a, Protocol: port.Protocol, Port: port.Port}
				targets[c.String()] = c
			}
			for _, v6 := range []bool{false, true} {
				if c := service.NodePortClaim(v6, port); port.NodePort != 0 && svc.InFamily(v6) {
					targets[fmt.Sprintf("%s %v", c, v6)] = c
				}
			}
			for text, c := range targets {
				if lost.Has(c) {
					continue
				}
				all = append(all, fmt.Sprintf("%s %s", text, svc.ID(port)))
				choice := svc.Choose(port, s.Node, c.Addr.Is6())
				lists := [][]netip.AddrPort{choice.Cluster, choice.Local}
				if slices.Contains(svc.ClusterIPs, c.Addr) {
					lists = lists[:1]
					if svc.InternalPolicy == service.Local {
						lists[0] = choice.Local
					}
				} else if svc.ExternalPolicy == service.Cluster {
					lists = lists[:1]
				}
				for i, list := range lists {
					for _, e := range list {
						all = append(all, fmt.Sprintf("%s %s list %d %s", text, svc.ID(port), i, e))
					}
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// legible is the program with what nobody can tell from the table made alike:
// cluster IPs with endpoints on other nodes only are refused, and nothing is
// said of hairpins, since services that serve nothing may have some, and random
// ones do not agree on where an address is.
func legible(p *nft.Program) string {
	next := &nft.Program{IPv4: p.IPv4.Clone(), IPv6: p.IPv6.Clone()}
	for _, table := range []*nft.Table{next.IPv4, next.IPv6} {
		for name, part := range table.Parts.All() {
			elements := slices.Clone(part.Elements)
			for i := range elements {
				if elements[i].Verdict.Code == nft.Drop {
					elements[i].Verdict = nft.Verdict{Code: nft.Goto, Chain: "refuse"}
				}
			}
			elements = slices.DeleteFunc(elements, func(e nft.Element) bool { return e.Set == "hairpin" })
			table.Parts = table.Parts.Set(name, nft.NewPart(elements, part.Pools))
		}
	}
	return next.Model().String()
}

func count(seen map[string]int, s service.Snapshot) {
	for _, svc := range s.Services.All() {
		seen["cluster IP"] += len(svc.ClusterIPs)
		seen["external"] += len(svc.ExternalIPs)
		seen["restricted"] += len(svc.LoadBalancerIPs)
		for what, is := range map[string]bool{
			"internal Local": svc.InternalPolicy == service.Local, "external Local": svc.ExternalPolicy == service.Local,
			"affinity": svc.AffinityTimeout > 0,
		} {
			if is {
				seen[what]++
			}
		}
		for _, p := range svc.Ports {
			seen["node port"] += min(1, int(p.NodePort))
			for _, e := range p.Endpoints {
				seen["hints"] += min(1, len(e.Nodes))
				seen["local endpoint"] += strings.Count(e.Node, s.Node.Name)
			}
		}
	}
	for _, c := range s.Conflicts.All() {
		seen["lost"] += len(c.Lost)
	}
}

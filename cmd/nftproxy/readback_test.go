package main

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// TestFlowsByTable: the kernel's tables and the objects give the same judgment of flows. A
// flow that the present rules make is stale by neither. A flow that is stale by the objects
// is stale by the tables, and belongs to the same Service.
func TestFlowsByTable(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 7))
		cfg, node, services, builder := gen.Cluster(rng)
		builder.SetServiceCIDRs(gen.ServiceCIDRs(rng))
		snapshot := builder.Snapshot()
		kernel := ruleset.Compile(cfg, snapshot).Model()

		objects := conntrack.NewIndex(conntrack.Options{NodePortAddresses: cfg.NodePortAddresses, Pod: cfg.Pod})
		objects.Update(snapshot)
		back := ruleset.ReadBackConfig(kernel, cfg.Table)
		table := conntrack.NewIndex(conntrack.Options{NodePortAddresses: back.NodePortAddresses, Pod: back.Pod})
		// The command knows no Node object either.
		table.Update(ruleset.ReadBack(kernel, cfg.Table, &service.Node{Name: node.Name, HostAddresses: node.HostAddresses}))

		// Without that, the table does not tell endpoints that no longer serve from other programs' targets.
		objects.Presume()
		table.Presume()

		local := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(node.HostAddresses, a) }
		for range 200 {
			p := gen.Packet(rng, node, services)
			for _, r := range kernel.Outcomes(p, local) {
				f := conntrack.Flow{
					Protocol: service.Protocol(p.Protocol), Original: conntrack.Tuple{Src: p.Src, Dst: p.Dst}, Reply: conntrack.Tuple{Src: p.Dst, Dst: p.Src},
				}
				switch r.Fate {
				case nft.DNATed:
					if f.Reply.Src = r.To; r.To != p.Dst {
						f.Status |= conntrack.DstNAT
					}
				case nft.Untouched:
				default:
					continue // It makes no entry.
				}
				for name, index := range map[string]*conntrack.Index{"objects": objects, "table": table} {
					if reason, stale := index.Stale(f); stale {
						t.Fatalf("seed %d: %v is as the rules make it (%v), but stale by the %s: %s\n%s", seed, f, r, name, reason, snapshot)
					}
				}
				seen[string(r.Fate)]++
				if want, got := ownerOf(objects, f), ownerOf(table, f); want != got {
					t.Fatalf("seed %d: %v belongs to %s by the objects, to %s by the table\n%s", seed, f, want, got, snapshot)
				}
			}
			f := anyFlow(rng, p, services)
			reason, stale := objects.Stale(f)
			if !stale {
				continue
			}
			seen[string(reason)]++
			if _, stale := table.Stale(f); !stale {
				t.Fatalf("seed %d: %v is stale by the objects (%s), but not by the table\n%s", seed, f, reason, snapshot)
			}
		}
	}
	for _, what := range []string{"dnat", "untouched", "endpoint gone", "service address", "node port", "unallocated address", "source not in the ranges", "traffic policy"} {
		if seen[what] == 0 {
			t.Errorf("nothing was %q: %v", what, seen)
		}
	}
}

func ownerOf(x *conntrack.Index, f conntrack.Flow) string {
	s, p, ok := x.Owner(f)
	if !ok {
		return "nobody"
	}
	return s.ID(p)
}

// anyFlow returns a flow that some rules may have made.
func anyFlow(rng *rand.Rand, p nft.Packet, services []*service.Service) conntrack.Flow {
	f := conntrack.Flow{
		Protocol: service.Protocol(p.Protocol), Original: conntrack.Tuple{Src: p.Src, Dst: p.Dst}, Reply: conntrack.Tuple{Src: p.Dst, Dst: p.Src},
		Status: []conntrack.Status{0, conntrack.SeenReply, conntrack.SeenReply | conntrack.Assured}[rng.IntN(3)],
	}
	if rng.IntN(3) == 0 || len(services) == 0 {
		return f
	}
	f.Status |= conntrack.DstNAT
	f.Reply.Src = netip.AddrPortFrom(p.Dst.Addr(), 9)
	s := services[rng.IntN(len(services))]
	for e := range s.Ports[0].Endpoints.All() {
		if e.Addr.Addr().Is6() == f.V6() && rng.IntN(2) == 0 {
			f.Reply.Src = e.Addr
		}
	}
	return f
}

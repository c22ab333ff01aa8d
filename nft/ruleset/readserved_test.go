package ruleset_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// TestServedAgainstInterpreter: what ReadServed says of each frontend is what the
// interpreter does with packets from outside and from the node, and what follows from the policies of its Service.
func TestServedAgainstInterpreter(t *testing.T) {
	seen := map[string]int{}
	seeds(t, 200, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		node := gen.Node(rng)
		s := build(node, gen.Services(rng, &node), gen.ServiceCIDRs(rng)...)
		m := ruleset.Compile(cfg, s).Model()
		snapshot, all := ruleset.ReadServed(m, cfg.Table, s.Node)
		for i := range all {
			for _, p := range all[i].Ports {
				for _, f := range p.Frontends {
					n := share.Count(all[i].Service, p.Port, snapshot.Node, f.Family)
					fate := obstacle.FateAt(all[i].Service, f.Claim(), n.Anywhere(), n.Local > 0)
					// Tables do not tell the endpoints of other nodes behind a cluster IP with policy Local.
					if fate != f.Fate && (fate != obstacle.Refused && fate != obstacle.Held || f.Fate != obstacle.Dropped) {
						t.Errorf("%s is %s, and by the Service %s: %s", f.Claim(), f.Fate, fate, all[i].Service)
					}
					checkFrontend(t, &checkedFrontend{f, &cfg, s.Node, m}, seen)
				}
				for _, c := range p.Clients {
					if !c.Set.Dynamic || m.Table(c.Table).Sets[c.Set.Name] == nil {
						t.Errorf("%s: the clients' map %+v is no map of the table", all[i].Service.ID(p.Port), c)
					}
					seen[fmt.Sprint("clients of the list local ", c.Local)]++
				}
			}
			for _, lost := range all[i].Lost {
				if owner := s.Owners.Of(lost.Claim); lost.Owner != "" && lost.Owner != owner {
					t.Errorf("%s: %s belongs to %s, not to %s", all[i].Service.Name, lost.Claim, owner, lost.Owner)
				}
				seen[fmt.Sprint("lost to a Service ", lost.Owner != "")]++
			}
		}
	})
	for _, what := range []string{
		"served", "refused", "held", "dropped", "dropped-outside", "passed", "passed-outside", "split", "kept out", "let in",
		"node port", "from the node",
		"clients of the list local true", "clients of the list local false", "lost to a Service true", "drawn by a hash",
		"ranges",
	} {
		if seen[what] == 0 && !testing.Short() {
			t.Errorf("no frontend was %q: %v", what, seen)
		}
	}
}

// checkedFrontend is a frontend with the tables that it comes from.
type checkedFrontend struct {
	*ruleset.Frontend
	cfg  *ruleset.Config
	node *service.Node
	m    *nft.Model
}

func checkFrontend(t *testing.T, f *checkedFrontend, seen map[string]int) {
	t.Helper()
	family := f.Family
	dst := f.Addr
	if f.IsNodePort() {
		addrs, all := f.cfg.NodePortAddresses.On(f.node, family)
		if all {
			addrs = f.node.HostAddresses
		}
		at := slices.IndexFunc(addrs, func(a netip.Addr) bool {
			return family.Has(a) && !a.IsLoopback() && isHost(f.node, a)
		})
		if at < 0 {
			return
		}
		// Another Service may have the address itself.
		if dst = addrs[at]; f.addressIsServed(dst) {
			return
		}
		seen["node port"]++
	}
	if f.Ranges != "" {
		if f.Port = f.portOfRanges(); f.Port == 0 {
			return
		}
		seen["ranges"]++
	}
	outside := netip.MustParseAddr(map[ip.Family]string{ip.V4: "203.0.113.200", ip.V6: "2001:db8:200::1"}[family])
	f.check(t, nft.Packet{Src: netip.AddrPortFrom(outside, 40000), Dst: netip.AddrPortFrom(dst, f.Port),
		Protocol: uint8(f.Protocol), Input: "uplink"}, seen)
	if f.Sources != nil {
		ranges, _ := f.Sources.Of(family)
		for _, r := range ranges {
			if src := nft.LastAddr(r); f.isOutside(src) {
				f.check(t, nft.Packet{Src: netip.AddrPortFrom(src, 40000), Dst: netip.AddrPortFrom(dst, f.Port),
					Protocol: uint8(f.Protocol), Input: "uplink"}, seen)
			}
		}
	}
	for _, own := range f.node.HostAddresses {
		if family.Has(own) && own != dst {
			f.check(t, nft.Packet{Src: netip.AddrPortFrom(own, 40000), Dst: netip.AddrPortFrom(dst, f.Port),
				Protocol: uint8(f.Protocol), FromNode: true}, seen)
		}
	}
	seen[string(f.Fate)]++
	if f.Split {
		seen["split"]++
	}
}

func isHost(n *service.Node, a netip.Addr) bool { return slices.Contains(n.HostAddresses, a) }

// isOutside says that the rules take the address for one outside of the cluster, if its
// packets come in by an interface that is not a pod's.
func (f *checkedFrontend) isOutside(a netip.Addr) bool {
	pod, _ := f.cfg.Pod(f.node, a)
	return !pod && !a.IsLoopback() && !isHost(f.node, a)
}

// addressIsServed says that a frontend by address, or a cluster IP, takes the packets to
// the address before node ports are looked up.
func (f *checkedFrontend) addressIsServed(a netip.Addr) bool {
	for _, set := range []string{"services", "cluster-ips"} {
		c := f.m.Table(nft.TableID{Family: f.Family, Name: f.cfg.Table})
		for key := range c.Sets[set].Elements {
			if strings.HasPrefix(string(key), string(nft.AppendAddr(nil, a))) {
				return true
			}
		}
	}
	return false
}

// isReachable says that the rules spare packets to an address: hosts of a network may have it.
func isReachable(c *nft.Contents, a netip.Addr) bool {
	set, key := c.Sets["reachable-networks"], nft.Value(nft.AppendAddr(nil, a))
	if set == nil {
		return false
	}
	for _, e := range set.Elements {
		if e.Key == key || e.Key <= key && key <= e.KeyEnd {
			return true
		}
	}
	return false
}

// portOfRanges returns the first port of the ranges that no Service has for itself, 0 if there is none.
func (f *checkedFrontend) portOfRanges() uint16 {
	c := f.m.Table(nft.TableID{Family: f.Family, Name: f.cfg.Table})
	for r := range f.Ranges.All() {
		for port := int(r.First); port <= int(r.Last); port++ {
			key := nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, f.Addr), uint8(f.Protocol)), uint16(port))
			if _, taken := c.Sets["services"].Elements[nft.Value(key)]; !taken {
				return uint16(port)
			}
		}
	}
	return 0
}

// check compares the interpreter's outcomes of a packet with what the frontend says.
func (f *checkedFrontend) check(t *testing.T, p nft.Packet, seen map[string]int) {
	t.Helper()
	local := func(a netip.Addr) bool { return a.IsLoopback() || isHost(f.node, a) }
	var got []string
	for _, r := range strict.Outcomes(f.m, p, local) {
		fate := string(r.Fate)
		if r.Fate == nft.DNATed {
			fate = r.To.String()
		}
		if !slices.Contains(got, fate) {
			got = append(got, fate)
		}
	}
	want := f.want(p, seen)
	if hashed := strings.Contains(strings.Join(f.Chains, " "), "-by-"); hashed && len(want) > 1 && len(got) == 1 &&
		slices.Contains(want, got[0]) {
		seen["drawn by a hash"]++
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %s (-by ReadServed +by the interpreter):\n%s\n%+v", f.Claim(), p, diff, f.Frontend)
	}
}

func (f *checkedFrontend) want(p nft.Packet, seen map[string]int) []string {
	if p.FromNode {
		seen["from the node"]++
	}
	if f.Sources != nil {
		ranges, all := f.Sources.Of(f.Family)
		if !all && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Src.Addr()) }) {
			seen["kept out"]++
			return []string{"dropped"}
		}
		seen["let in"]++
	}
	list := f.Cluster
	switch {
	case f.Fate == obstacle.Refused && f.Protocol == service.TCP:
		return []string{"reset"}
	case f.Fate == obstacle.Refused:
		return []string{"unreachable"}
	case f.Fate == obstacle.Dropped, f.Fate == obstacle.Held, f.Fate == obstacle.DroppedOutside && !p.FromNode:
		return []string{"dropped"}
	case f.Fate == obstacle.Passed, f.Fate == obstacle.PassedOutside && !p.FromNode:
		// What goes on untranslated to an address of Services leaves the node no more.
		if c, to := f.m.Table(nft.TableID{Family: f.Family, Name: f.cfg.Table}), p.Dst.Addr(); (ruleset.InServiceCIDR(c,
			to) || ruleset.ClusterIPOwner(c, to) != "") && !isReachable(c, to) {
			return []string{"dropped"}
		}
		return []string{"untouched"}
	case f.Split && !p.FromNode:
		list = f.Local
	}
	var want []string
	for _, a := range list {
		if f.Ranges != "" {
			a = netip.AddrPortFrom(a.Addr(), f.Port)
		}
		want = append(want, a.String())
	}
	return want
}

// TestKindOfChain: the compiler's chains have the kinds of their names, and a chain of
// somebody else has none.
func TestKindOfChain(t *testing.T) {
	seen := map[ruleset.ChainKind]bool{}
	seeds(t, 60, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		node := gen.Node(rng)
		s := build(node, gen.Services(rng, &node), gen.ServiceCIDRs(rng)...)
		p := ruleset.Compile(cfg, s)
		for _, f := range nft.Families() {
			for name, c := range p.Table(f).Chains.All() {
				kind := ruleset.KindOfChain(c)
				seen[kind] = true
				if kind == ruleset.ForeignChain {
					t.Errorf("%s is foreign", name)
				}
			}
		}
	})
	if len(seen) != 12 && !testing.Short() {
		t.Errorf("not all kinds were seen: %v", seen)
	}
	for name, want := range map[string]ruleset.ChainKind{
		"endpoints-3": ruleset.EndpointsChain, "endpoints-3-masquerade": ruleset.EndpointsChain,
		"node-port-local-endpoints-1": ruleset.EndpointsChain, "local-endpoints-2": ruleset.EndpointsChain,
		"endpoints-251-by-client-masquerade":                               ruleset.EndpointsChain,
		"node-port-local-endpoints-251-by-flow-local-affinity-ns/a/tcp/80": ruleset.AffinityChain,
		"endpoints-3-affinity-ns/endpoints-1/tcp/80":                       ruleset.AffinityChain,
		"node-port-endpoints-2-local-affinity-ns/learn-it/tcp/80":          ruleset.AffinityChain,
		"learn-10800-ns/affinity/tcp/80":                                   ruleset.LearnChain,
		"node-port-learn-10800-ns/web/tcp/80-both":                         ruleset.LearnChain,
		"source-ranges-none":                                               ruleset.SourceRangesChain,
		"services-restricted":                                              ruleset.SourceRangesChain,
		"port-ranges-80-90_443":                                            ruleset.RangesChain,
		"range-local-endpoints-2":                                          ruleset.EndpointsChain,
		"range-external-local":                                             ruleset.ExternalLocalChain,
		"learn":                                                            ruleset.ForeignChain,
		"KUBE-SERVICES":                                                    ruleset.ForeignChain,
	} {
		if got := ruleset.KindOfChain(&nft.Chain{Name: name}); got != want {
			t.Errorf("%s is of the kind %s, want %s", name, got, want)
		}
	}
}

package ruleset_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// TestReadBack: the snapshot that is read back of a table serves the same endpoints.
func TestReadBack(t *testing.T) {
	seen := map[string]int{}
	seeds(t, 300, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		node := gen.Node(rng)
		services := gen.Services(rng, &node)
		dns := rng.IntN(2) == 0 // Some ports are DNS then, and have the node's time-outs.
		if dns {
			cfg.DNSTimeouts = service.Timeouts{Protocol: service.UDP, Unreplied: 5 * time.Second, Replied: 15 * time.Second}
		}
		for i, s := range services {
			if dns {
				s = withDNS(s)
			}
			if s.Options.Balance != service.ByRandom { // slots of several tables round weights differently
				s = likeWeights(s)
			}
			// Read back, a cluster IP with endpoints on other nodes only has none, and would hold.
			if s.InternalPolicy == service.Local && s.Options.Hold > 0 {
				s = s.Clone()
				s.Options.Hold = 0
			}
			services[i] = s
		}
		s := gen.Slotted(rng, build(node, services, gen.ServiceCIDRs(rng)...))
		p := ruleset.Compile(cfg, s)
		got := ruleset.ReadBack(p.Model(), cfg.Table, s.Node)
		if diff := cmp.Diff(reachable(s), reachable(got)); diff != "" {
			t.Errorf("what the table serves (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(maps.Collect(s.ServiceCIDRs.All()))),
			slices.Sorted(maps.Keys(maps.Collect(got.ServiceCIDRs.All())))); diff != "" {
			t.Errorf("ServiceCIDRs (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(legible(p), legible(ruleset.Compile(cfg, got))); diff != "" {
			t.Errorf("the program of it (-want +got):\n%s\nwant:\n%s\ngot:\n%s", diff, s, got)
		}
		count(seen, got)
	})
	for _, what := range []string{"cluster IP", "external", "restricted", "node port", "conflict", "internal Local",
		"external Local", "affinity", "hints", "local endpoint", "balance", "feedback", "weights", "ranges",
		"source ranges of node ports", "hold"} {
		if seen[what] == 0 {
			t.Errorf("no cluster had any %q", what)
		}
	}
}

// withDNS returns the service with port 53 in the place of port 80 of UDP. The tables do not tell whose the time-outs
// of that port are, so the service asks for none (TestDNSTimeoutsReadBack has one that does).
func withDNS(s *service.Service) *service.Service {
	s = s.Clone()
	for i := range s.Ports {
		if p := &s.Ports[i]; p.Protocol == service.UDP && p.Port == 80 && !p.IsRange() {
			p.Port, s.Options.UDPTimeouts = 53, service.Timeouts{}
		}
	}
	return s
}

// likeWeights returns the service with endpoints of the default weight or 0.
func likeWeights(s *service.Service) *service.Service {
	s = s.Clone()
	for i := range s.Ports {
		list := slices.Collect(s.Ports[i].Endpoints.All())
		for j := range list {
			if !list[j].Drained() {
				list[j].Weight, list[j].Share = 0, service.WholeShare
			}
		}
		s.Ports[i].Endpoints = service.MergeEndpoints(list)
	}
	s.SetRangePorts()
	return s
}

// TestReadBackConfig: a program made from what was read back serves node ports on the
// same addresses, and takes the same addresses for pods'.
func TestReadBackConfig(t *testing.T) {
	seeds(t, 300, func(t *testing.T, rng *rand.Rand) {
		cfg, list := gen.Config(rng)
		node := gen.Node(rng)
		got := ruleset.ReadBackConfig(ruleset.Compile(cfg, build(node, nil)).Model(), cfg.Table)
		if got.AnswerPing != cfg.AnswerPing {
			t.Errorf("answers pings: %v, want %v", got.AnswerPing, cfg.AnswerPing)
		}
		for _, family := range ip.Families() {
			if want, have := cfg.NoMasqueradeOf(family), got.NoMasqueradeOf(family); !slices.Equal(want, have) {
				t.Errorf("not masqueraded: %v, want %v", have, want)
			}
			if cfg.MasqueradeToNode && node.OwnAddress(family).IsValid() && !got.MasqueradeToNode {
				t.Error("masquerading to the Node's address is not read back")
			}
		}
		type answer struct {
			addrs []netip.Addr
			all   bool
		}
		for _, family := range ip.Families() {
			var want, have answer
			want.addrs, want.all = cfg.NodePortAddresses.On(&node, family)
			have.addrs, have.all = got.NodePortAddresses.On(&node, family)
			if diff := cmp.Diff(want, have, cmp.AllowUnexported(answer{}), cmp.Comparer(func(a, b netip.Addr) bool {
				return a == b
			})); diff != "" {
				t.Errorf("%v: node ports, %v (-want +got):\n%s", list, family, diff)
			}
			_, wantLoopback := cfg.NodePortAddresses.Loopback(&node, family)
			if _, loopback := got.NodePortAddresses.Loopback(&node, family); loopback != wantLoopback {
				t.Errorf("%v: node ports on loopback, %v: %t, want %t", list, family, loopback, wantLoopback)
			}
		}
		for _, text := range []string{"10.0.0.1", "10.0.0.9", "10.0.0.17", "11.0.0.1", "fd00:1::1", "fd00:1::9",
			"fd00:2::1"} {
			a := netip.MustParseAddr(text)
			wantPod, wantKnown := cfg.Pod(&node, a)
			pod, known := got.Pod(&node, a)
			if pod != wantPod || known != wantKnown {
				t.Errorf("Pod(%s) = %v, %v, want %v, %v", a, pod, known, wantPod, wantKnown)
			}
		}
	})
}

// TestReadBackNothing: without our own table no service comes back.
func TestReadBackNothing(t *testing.T) {
	node := gen.PlainNode()
	for name, m := range map[string]*nft.Model{"no table": nft.NewModel(), "foreign": foreignTables()} {
		if got, want := ruleset.ReadBack(m, ruleset.DefaultTable, &node).String(), build(node, nil).String(); got != want {
			t.Errorf("%s: got\n%swant\n%s", name, got, want)
		}
		if addrs, all := ruleset.ReadBackConfig(m, ruleset.DefaultTable).NodePortAddresses.On(&node, ip.V4); !all {
			t.Errorf("%s: node ports on %v, want all addresses", name, addrs)
		}
	}
}

// foreignTables have our name, and another program's contents.
func foreignTables() *nft.Model {
	m := nft.NewModel()
	for _, f := range nft.Families() {
		c := nft.NewContents(nft.TableID{Family: f, Name: ruleset.DefaultTable})
		// The table as a reader returns it that does not recognise the chain.
		for _, name := range []string{"services", "endpoints"} {
			c.Sets[name] = &nft.SetContents{Set: &nft.Set{Name: name}}
		}
		c.Chains["dispatch"] = &nft.Chain{Name: "dispatch", Rules: []nft.Rule{{nft.Unknown{}}, {}}}
		key := nft.Value(nft.AppendAddr(nil, []netip.Addr{netip.MustParseAddr("10.96.0.1"),
			netip.MustParseAddr("fd00:96::1")}[f/nft.IPv6]))
		c.Sets["cluster-ips"] = &nft.SetContents{
			Set:      &nft.Set{Name: "cluster-ips", Key: nft.Fields{nft.Daddr}},
			Elements: map[nft.Value]nft.Element{key: {Key: key, Comment: "what?"}},
		}
		m.Put(c)
	}
	return m
}

// TestReadBackNames: comments are too short for the longest names.
func TestReadBackNames(t *testing.T) {
	long := func(r string, n int) string { return strings.Repeat(r, n) }
	ns := long("n", 63)
	for _, test := range []struct {
		name, services string
		want           []string
	}{
		{"port without name", "service a/b created 2026-01-01T00:00:00Z\n cluster-ip 10.96.0.1\n port - tcp 80",
			[]string{"10.96.0.1:80/tcp a/b:80"}},
		{"name of digits", "service a/b created 2026-01-01T00:00:00Z\n cluster-ip 10.96.0.1\n port 443 tcp 80",
			[]string{"10.96.0.1:80/tcp a/b:443"}},
		{
			"port cut, two protocols and a node port",
			"service " + ns + "/svc created 2026-01-01T00:00:00Z\n cluster-ip 10.96.0.1\n port " + long("p", 62) +
				"1 tcp 80 node-port 30000\n port " + long("p", 62) + "2 tcp 81",
			[]string{
				"10.96.0.1:80/tcp " + ns + "/svc:" + long("p", 57) + "...",
				"10.96.0.1:81/tcp " + ns + "/svc:" + long("p", 57) + "...",
				"node port 30000/tcp " + ns + "/svc:" + long("p", 57) + "...",
			},
		},
		{
			"name cut, told by the cluster IP",
			"service " + ns + "/" + long("s", 63) + " created 2026-01-01T00:00:00Z\n cluster-ip 10.96.0.1\n external-ip " +
				"198.51.100.1\n port http tcp 80 node-port 30000",
			[]string{
				"10.96.0.1:80/tcp " + ns + "/" + long("s", 63) + ":80",
				"198.51.100.1:80/tcp " + ns + "/" + long("s", 63) + ":80",
				"node port 30000/tcp " + ns + "/" + long("s", 63) + ":80",
			},
		},
		{
			"names cut to the same: cluster IPs tell, others stay apart",
			"service " + ns + "/" + long("s", 62) + "1 created 2026-01-01T00:00:00Z\n cluster-ip 10.96.0.1\n external-ip " +
				"198.51.100.1\n port http tcp 80\n" +
				"service " + ns + "/" + long("s", 62) + "2 created 2026-01-01T00:00:00Z\n cluster-ip 10.96.0.2\n external-ip " +
				"198.51.100.2\n port http tcp 80",
			[]string{
				"10.96.0.1:80/tcp " + ns + "/" + long("s", 62) + "1:80",
				"10.96.0.2:80/tcp " + ns + "/" + long("s", 62) + "2:80",
				"198.51.100.1:80/tcp " + ns + "/" + long("s", 61) + "... (198.51.100.1:80/tcp):80",
				"198.51.100.2:80/tcp " + ns + "/" + long("s", 61) + "... (198.51.100.2:80/tcp):80",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := gen.ReadSnapshot(strings.NewReader("node node-0\n" + test.services))
			if err != nil {
				t.Fatal(err)
			}
			cfg := ruleset.Config{Table: ruleset.DefaultTable}
			p := ruleset.Compile(cfg, s)
			back := ruleset.ReadBack(p.Model(), cfg.Table, s.Node)
			var got []string
			for _, line := range reachable(back) {
				got = append(got, strings.Replace(line, " (ip)", "", 1))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("what the table serves (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(legible(p), legible(ruleset.Compile(cfg, back))); diff != "" {
				t.Errorf("the program of it (-want +got):\n%s", diff)
			}
		})
	}
}

// reachable lists as text the targets that the snapshot serves, each with its owner and
// all of its endpoints.
func reachable(s service.Snapshot) []string {
	var all []string
	for name, svc := range s.Services.All() {
		conflicts := s.Conflicts.At(name)
		for i := range svc.Ports {
			port := &svc.Ports[i]
			targets := map[string]service.Claim{}
			for _, a := range svc.Addresses() {
				c := service.Claim{Addr: a, Protocol: port.Protocol, Port: port.Port}
				targets[c.String()] = c
			}
			for _, family := range ip.Families() {
				if c := service.NodePortClaim(family, port); port.NodePort != 0 && svc.InFamily(family) {
					targets[fmt.Sprintf("%s (%v)", c, family)] = c
				}
			}
			for text, c := range targets {
				if conflicts.Has(c) {
					continue
				}
				all = append(all, fmt.Sprintf("%s %s", text, svc.ID(port)))
				choice := share.Choose(svc, port, s.Node, ip.Of(c.Addr))
				lists := [][]netip.AddrPort{slices.Collect(choice.Cluster.All()), slices.Collect(choice.Local.All())}
				if slices.Contains(svc.ClusterIPs, c.Addr) {
					lists = lists[:1]
					if svc.InternalPolicy == service.Local {
						lists[0] = slices.Collect(choice.Local.All())
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

// legible is the text of the program without the facts that no table tells. A cluster IP
// with endpoints on other nodes only is refused instead of dropped. There are no
// hairpins: services without frontends have some, and random services disagree on the
// node of an address. Instead of the name of a list, each address and port has its
// admitted sources.
func legible(p *nft.Program) string {
	next := &nft.Program{IPv4: p.IPv4.Clone(), IPv6: p.IPv6.Clone()}
	for _, table := range []*nft.Table{next.IPv4, next.IPv6} {
		for name, part := range table.Parts.All() {
			elements := slices.Clone(part.Elements)
			for i := range elements {
				e := &elements[i]
				switch {
				case e.Verdict.Chain == "no-local-endpoints":
					e.Verdict = nft.Verdict{Code: nft.Goto, Chain: "refuse"}
				case e.Verdict.Chain == "range-no-local-endpoints":
					e.Verdict = nft.Verdict{Code: nft.Goto, Chain: "range-refuse"}
				case strings.HasPrefix(ruleset.SourceSet(e.Verdict.Chain), "source-ranges-"):
					e.Verdict.Chain = fmt.Sprint(admitted(table, ruleset.SourceSet(e.Verdict.Chain), part, e.Key))
				}
			}
			elements = slices.DeleteFunc(elements, func(e nft.Element) bool {
				_, refuses := ruleset.RefusalSets()[e.Set]
				return e.Set == "hairpin" || e.Set == "load-balancer-sources" || refuses
			})
			table.Parts = table.Parts.Set(name, nft.NewPart(elements, part.Pools))
		}
		for name := range table.Chains.All() {
			if strings.HasPrefix(ruleset.SourceSet(name), "source-ranges-") {
				set := ruleset.SourceSet(name)
				table.Chains, table.Sets, table.Parts = table.Chains.Delete(name), table.Sets.Delete(set), table.Parts.Delete(set)
			}
		}
	}
	return next.Model().String()
}

// admitted returns the sources that may reach an address and port of a part: the ranges
// of a list, and the load balancer's addresses.
func admitted(table *nft.Table, list string, part *nft.Part, at nft.Value) []netip.Prefix {
	var ranges []netip.Prefix
	address := func(v nft.Value) netip.Addr {
		a, _ := netip.AddrFromSlice([]byte(v))
		return a
	}
	for _, e := range table.Parts.At(list).Elements {
		for first, bits := address(e.Key), 0; bits <= first.BitLen(); bits++ {
			if p := netip.PrefixFrom(first, bits); p == p.Masked() && nft.LastAddr(p) == address(e.KeyEnd) {
				ranges = append(ranges, p)
			}
		}
	}
	for _, e := range part.Elements {
		if source, ok := strings.CutPrefix(string(e.Key), string(at)); ok && e.Set == "load-balancer-sources" {
			a := address(nft.Value(source))
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return service.NewSources(ranges).Ranges()
}

func count(seen map[string]int, s service.Snapshot) {
	for _, svc := range s.Services.All() {
		seen["cluster IP"] += len(svc.ClusterIPs)
		seen["external"] += len(svc.ExternalIPs)
		seen["restricted"] += len(svc.LoadBalancerIPs)
		for what, is := range map[string]bool{
			"internal Local": svc.InternalPolicy == service.Local, "external Local": svc.ExternalPolicy == service.Local,
			"affinity": svc.AffinityTimeout > 0, "balance": svc.Options.Balance.Hashes(),
			"feedback": len(svc.Slotted()) > 0,
			"hold":     svc.Options.Hold > 0,
			"ranges":   svc.Options.PortRanges != "",
			"source ranges of node ports": svc.Options.SourceRanges != nil && slices.ContainsFunc(svc.Ports,
				func(p service.Port) bool { return p.NodePort != 0 }),
		} {
			if is {
				seen[what]++
			}
		}
		for _, p := range svc.Ports {
			seen["node port"] += min(1, int(p.NodePort))
			for e := range p.Endpoints.All() {
				if e.Weight != 0 {
					seen["weights"]++
				}
				seen["hints"] += min(1, len(e.Nodes))
				seen["local endpoint"] += strings.Count(e.Node, s.Node.Name)
			}
		}
	}
	for _, c := range s.Conflicts.All() {
		seen["conflict"] += c.Len()
	}
}

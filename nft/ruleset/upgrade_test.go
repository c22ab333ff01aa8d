package ruleset_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
)

// sharedAffinity is the program as an earlier version had it: all services of a family
// had one map of clients, keyed by the address of the service.
func sharedAffinity(t *nft.Table) *nft.Table {
	client := nft.Fields{nft.Saddr, nft.Daddr, nft.L4Proto, nft.Dport}
	old := t.Clone()
	old.Sets = old.Sets.Set("affinity", &nft.Set{Name: "affinity", Key: client, Data: nft.Fields{nft.Daddr, nft.Dport},
		Dynamic: true, Size: 262_144})
	for name, s := range t.Sets.All() {
		if s.Dynamic {
			old.Sets = old.Sets.Delete(name)
		}
	}
	// Nor did it note recent connections.
	for name, chain := range t.Chains.All() {
		rules := slices.DeleteFunc(slices.Clone(chain.Rules), func(r nft.Rule) bool {
			u, ok := r[0].(nft.Update)
			return ok && len(u.Data) == 0
		})
		old.Chains = old.Chains.Set(name, &nft.Chain{Name: name, Hook: chain.Hook, Rules: rules})
	}
	names := map[string]string{}
	for name, chain := range t.Chains.All() {
		kind, _, _ := strings.Cut(name, "-default/")
		if kind == name {
			continue
		}
		names[name] = kind
		next := &nft.Chain{Name: kind}
		if strings.HasPrefix(name, "learn-") {
			update := chain.Rules[0][1].(nft.Update)
			update.Map, update.Key = "affinity", nft.Fields{nft.OrigSaddr, nft.OrigDaddr, nft.L4Proto, nft.OrigDport}
			next.Rules = []nft.Rule{{chain.Rules[0][0], update}}
		} else {
			next.Rules = append([]nft.Rule{{nft.DNAT{Key: client, Map: "affinity"}}},
				old.Chains.At(strings.TrimSuffix(kind, "-affinity")).Rules...)
		}
		old.Chains = old.Chains.Delete(name).Set(kind, next)
	}
	for name, part := range t.Parts.All() {
		next := *part
		next.Elements = append([]nft.Element(nil), part.Elements...)
		for i, e := range next.Elements {
			if kind, found := names[e.Verdict.Chain]; found {
				next.Elements[i].Verdict.Chain = kind
			}
		}
		old.Parts = old.Parts.Set(name, &next)
	}
	return old
}

// TestAdoptSharedAffinity: an earlier version had one map of clients for all services.
// Its tables become ours without a gap. The remembered clients are forgotten.
func TestAdoptSharedAffinity(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{Name: "node-0"})
	var list []service.Endpoint
	for _, e := range []string{"10.0.0.1:8080", "10.0.0.2:8080"} {
		list = append(list, service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true})
	}
	p := service.Port{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}
	b.Set(&service.Service{Name: "default/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.41")},
		AffinityTimeout: time.Hour, Ports: []service.Port{p}})
	want := ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot())
	m := (&nft.Program{IPv4: sharedAffinity(want.IPv4), IPv6: want.IPv6}).Model()
	if back := ruleset.ReadBack(m, "t", b.Snapshot().Node).Services.At("default/web"); back == nil ||
		back.AffinityTimeout != time.Hour {
		t.Fatalf("read back: %+v", back)
	}
	host := nft.Host{Local: func(netip.Addr) bool { return false }, Random: func(uint32) uint32 { return 1 }}
	packet := func(client string) nft.Packet {
		return nft.Packet{Protocol: 6, Src: netip.MustParseAddrPort(client), Dst: netip.MustParseAddrPort("172.30.0.41:80")}
	}
	serves := func(when string) {
		t.Helper()
		r := m.Trace(packet("192.0.2.9:40000"), host)
		if r.Fate != nft.DNATed {
			t.Errorf("%s: %s\n%s", when, r, m)
		}
		strict.Learn(m, r)
	}
	serves("before")
	if n := len(m.Table(want.IPv4.ID()).Sets["affinity"].Elements); n != 1 {
		t.Fatalf("%d clients were remembered", n)
	}
	state := nft.Adopt(m, want)
	now := time.Time{}
	for range 3 {
		var batch nft.Batch
		batch, state = state.Plan(want, now)
		for _, transaction := range batch.Transactions() {
			for _, op := range transaction.Ops {
				if _, deletes := op.(nft.DeleteTable); deletes {
					t.Fatalf("the table goes:\n%s", batch)
				}
			}
			if err := strict.Apply(m, transaction); err != nil {
				t.Fatalf("%v\n%s", err, transaction)
			}
			serves("in between")
		}
		now = now.Add(nft.IdleLife)
	}
	for name := range m.Table(want.IPv4.ID()).Sets {
		if want.IPv4.Set(name) == nil {
			t.Errorf("left over: %s", name)
		}
	}
	if n := len(m.Table(want.IPv4.ID()).Sets["affinity-default/web/tcp/80"].Elements); n != 1 {
		t.Errorf("%d clients are remembered", n)
	}
}

package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// The keys of a table with affinity: those of a service and of its client, and both
// with the fields from before translation.
var (
	serviceKey     = nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport}
	clientKey      = nft.Fields{nft.Saddr, nft.Daddr, nft.L4Proto, nft.Dport}
	target         = nft.Fields{nft.Daddr, nft.Dport}
	origServiceKey = nft.Fields{nft.OrigDaddr, nft.L4Proto, nft.OrigDport}
	origClientKey  = nft.Fields{nft.OrigSaddr, nft.OrigDaddr, nft.L4Proto, nft.OrigDport}
)

// affinityOf is a table of one service: UDP port 80 of address 100. It has affinity
// for two clients. Its endpoints are port 8080 of the addresses given. The table does not
// learn the last of them. It admits the clients 0 to 9 and 20 to 29.
func affinityOf(f nft.Family, endpoints ...int) *nft.Table {
	t := &nft.Table{Family: f, Name: "random", Sets: nft.SetsByName([]*nft.Set{
		{Name: "affinity", Key: clientKey, Data: target, Dynamic: true, Size: 2},
		{Name: "affinity-endpoints", Key: slices.Concat(serviceKey, target)},
		{Name: "affinity-services", Key: serviceKey, Verdicts: true},
		{Name: "endpoints", Key: append(slices.Clip(serviceKey), nft.Index), Data: target},
		{Name: "sources", Key: nft.Fields{nft.Dport, nft.Saddr}, Verdicts: true, Interval: true},
	}...)}
	for _, c := range []*nft.Chain{
		{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100},
			Rules: []nft.Rule{{nft.VMap{Key: nft.Fields{nft.Dport, nft.Saddr}, Map: "sources"}}}},
		{Name: "input", Hook: &nft.Hook{Name: nft.Input, Priority: 99}, Rules: []nft.Rule{
			{nft.MatchDNATed{}, nft.VMap{Key: origServiceKey, Map: "affinity-services"}},
		}},
		{Name: "postrouting", Hook: &nft.Hook{Name: nft.Postrouting, Priority: 99}, Rules: []nft.Rule{
			{nft.MatchDNATed{}, nft.VMap{Key: origServiceKey, Map: "affinity-services"}},
			{nft.MatchDNATed{}, nft.Masquerade{}},
		}},
		{Name: "service", Rules: []nft.Rule{
			{nft.DNAT{Key: clientKey, Map: "affinity"}},
			{nft.DNAT{Key: serviceKey, Mod: uint32(len(endpoints)), Map: "endpoints"}},
			{nft.Verdict{Code: nft.Drop}},
		}},
		{Name: "learn", Rules: []nft.Rule{{
			nft.InSet{Key: slices.Concat(origServiceKey, target), Set: "affinity-endpoints"},
			nft.Update{Map: "affinity", Key: origClientKey, Data: target, Timeout: 3 * time.Hour},
		}}},
	} {
		t.Chains = t.Chains.Set(c.Name, c)
	}
	service := nft.Value(nft.AppendPort(nft.AppendProto([]byte(address(f, 100)), 17), 80))
	var targets []nft.Value
	source := func(port uint16, i int) nft.Value { return nft.Value(nft.AppendPort(nil, port)) + address(f, i) }
	elements := []nft.Element{
		{Set: "affinity-services", Key: service, Verdict: nft.Verdict{Code: nft.Jump, Chain: "learn"}},
		{Set: "sources", Key: source(80, 0), KeyEnd: source(81, 9), Verdict: nft.Verdict{Code: nft.Goto, Chain: "service"}},
		{Set: "sources", Key: source(80, 20), KeyEnd: source(80, 29), Verdict: nft.Verdict{Code: nft.Goto, Chain: "service"}},
	}
	for i, e := range endpoints {
		targets = append(targets, endpoint(f, e))
		if i < len(endpoints)-1 {
			elements = append(elements, nft.Element{Set: "affinity-endpoints", Key: service + endpoint(f, e)})
		}
	}
	pool := nft.Pool{Map: "endpoints", Prefix: service, Targets: nft.NewTargets(targets...)}
	t.Parts = t.Parts.Set("service", nft.NewPart(elements, []nft.Pool{pool}))
	return t
}

func endpoint(f nft.Family, i int) nft.Value {
	return nft.Value(nft.AppendPort([]byte(address(f, i)), 8080))
}

// affinityModel has an affinityOf in each family.
func affinityModel(endpoints ...int) *nft.Model {
	p := &nft.Program{IPv4: affinityOf(nft.IPv4, endpoints...), IPv6: affinityOf(nft.IPv6, endpoints...)}
	return p.Model()
}

// trace sends a client's packet to the service; address 200 is the node's.
func trace(m *nft.Model, f nft.Family, client int, random uint32) nft.Result {
	at := func(i int, port uint16) netip.AddrPort {
		a, _ := netip.AddrFromSlice([]byte(address(f, i)))
		return netip.AddrPortFrom(a, port)
	}
	return m.Trace(nft.Packet{Src: at(client, 1024), Dst: at(100, 80), Protocol: 17}, nft.Host{
		Local:  func(a netip.Addr) bool { return a == at(200, 0).Addr() },
		Random: func(uint32) uint32 { return random },
	})
}

// TestTraceLearns: a packet leaves its client and service, as they were before
// translation, in a dynamic map, with the endpoint that it was translated to. The
// endpoint may be remote or on the node. The next packet finds it there.
func TestTraceLearns(t *testing.T) {
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			m := affinityModel(50, 200, 51)
			service := nft.Value(nft.AppendPort(nft.AppendProto([]byte(address(f, 100)), 17), 80))
			learns := func(client, to int) []nft.Learned {
				return []nft.Learned{{
					Table:   nft.TableID{Family: f, Name: "random"},
					Element: nft.Element{Set: "affinity", Key: address(f, client) + service, Data: endpoint(f, to)},
				}}
			}
			for _, step := range []struct {
				client int
				random uint32
				to     int
				want   []nft.Learned
			}{
				{1, 1, 51, nil}, // not to be learned
				{1, 0, 50, learns(1, 50)},
				{1, 1, 50, learns(1, 50)}, // the client stays, and its time starts again
				{2, 2, 200, learns(2, 200)},
				{20, 0, 50, nil}, // the map is full
				{20, 2, 200, nil},
				{2, 0, 200, learns(2, 200)}, // a client in the full map stays in it
				{1, 1, 50, learns(1, 50)},
			} {
				r := trace(m, f, step.client, step.random)
				want := nft.Result{Fate: nft.DNATed, Masqueraded: step.to != 200, Learned: step.want}
				a, _ := netip.AddrFromSlice([]byte(address(f, step.to)))
				want.To = netip.AddrPortFrom(a, 8080)
				if diff := cmp.Diff(want, r, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{}),
					cmpopts.IgnoreFields(nft.Result{}, "Path")); diff != "" {
					t.Errorf("client %d (-want +got):\n%s", step.client, diff)
				}
				strict.Learn(m, r)
			}
			if r := trace(m, f, 15, 0); r.Fate != nft.Untouched || r.Learned != nil {
				t.Errorf("a client that is not admitted: %s, learned %v", r, r.Learned)
			}
		})
	}
}

// TestLearnInAFullMap: several packets are traced before the map learns any of them. It
// learns no more than it has room for.
func TestLearnInAFullMap(t *testing.T) {
	m := affinityModel(50, 51)
	var results []nft.Result
	for client := range 5 {
		results = append(results, trace(m, nft.IPv4, client, 0))
	}
	for _, r := range results {
		if len(r.Learned) != 1 {
			t.Errorf("learned %v", r.Learned)
		}
		strict.Learn(m, r)
	}
	elements := m.Table(nft.TableID{Family: nft.IPv4, Name: "random"}).Sets["affinity"].Elements
	if len(elements) != 2 {
		t.Errorf("%d elements in a map of 2", len(elements))
	}
	for client := range 2 {
		for key := range results[client].Learned {
			if _, found := elements[results[client].Learned[key].Element.Key]; !found {
				t.Errorf("client %d is not in the map", client)
			}
		}
	}
}

// TestUpdateTwice: a packet meets three rules that update a map, with two keys. It takes
// two places, or one if the map has no more.
func TestUpdateTwice(t *testing.T) {
	for _, c := range []struct {
		size, want int
	}{{1, 1}, {2, 2}, {3, 2}} {
		table := &nft.Table{Family: nft.IPv4, Name: "random",
			Sets: nft.SetsByName(&nft.Set{Name: "m", Key: nft.Fields{nft.Saddr}, Data: nft.Fields{nft.Daddr}, Dynamic: true,
				Size: uint32(c.size)})}
		update := func(key nft.Field) nft.Rule {
			return nft.Rule{nft.Update{Map: "m", Key: nft.Fields{key}, Data: nft.Fields{nft.Daddr}, Timeout: time.Second}}
		}
		chain := &nft.Chain{Name: "postrouting", Hook: &nft.Hook{Name: nft.Postrouting}, Rules: []nft.Rule{update(nft.Saddr),
			update(nft.Daddr), update(nft.OrigSaddr)}}
		table.Chains = table.Chains.Set(chain.Name, chain)
		m := (&nft.Program{IPv4: table, IPv6: &nft.Table{Family: nft.IPv6, Name: "random"}}).Model()
		r := trace(m, nft.IPv4, 1, 0)
		strict.Learn(m, r)
		if n := len(m.Table(table.ID()).Sets["m"].Elements); n != c.want {
			t.Errorf("%d elements in a map of %d, learned %v", n, c.size, r.Learned)
		}
	}
}

// TestModelRefusesSets: the model refuses what a kernel refuses of interval sets and
// dynamic maps, and what nft cannot print. Then it has nothing of the batch.
func TestModelRefusesSets(t *testing.T) {
	for _, f := range nft.Families() {
		id := nft.TableID{Family: f, Name: "random"}
		sources := &nft.Set{Name: "sources"}
		source := func(port uint16, i int) nft.Value { return nft.Value(nft.AppendPort(nil, port)) + address(f, i) }
		drop := nft.Verdict{Code: nft.Drop}
		add := func(set string, elements ...nft.Element) nft.Op {
			op := nft.AddElements{Table: id, Set: &nft.Set{Name: set}}
			for _, e := range elements {
				op.Elements = append(op.Elements, nft.OwnedElement{Element: e})
			}
			return op
		}
		interval := func(fromPort, toPort uint16, from, to int) nft.Op {
			return add("sources", nft.Element{Key: source(fromPort, from), KeyEnd: source(toPort, to), Verdict: drop})
		}
		set := func(s nft.Set) nft.Op {
			s.Name = "new"
			return nft.AddSet{Table: id, Set: &s}
		}
		rule := func(s nft.Statement) nft.Op {
			return nft.AddRules{Table: id, Chain: &nft.Chain{Name: "learn", Rules: []nft.Rule{{s}}}}
		}
		update := nft.Update{Map: "affinity", Key: origClientKey, Data: target, Timeout: time.Second}
		of := func(change func(*nft.Update)) nft.Op {
			u := update
			change(&u)
			return rule(u)
		}
		sized := nft.AddSet{Table: id, Set: &nft.Set{Name: "sized", Key: nft.Fields{nft.Daddr}, Size: 2}}
		three := add("sized", nft.Element{Key: address(f, 1)}, nft.Element{Key: address(f, 2)},
			nft.Element{Key: address(f, 3)})
		one := add("affinity", nft.Element{Key: address(f, 1) + address(f, 2) +
			nft.Value(nft.AppendPort(nft.AppendProto(nil, 6), 80)), Data: endpoint(f, 50)})
		for name, c := range map[string]struct {
			ops  []nft.Op
			want error // nil: any error
		}{
			"interval in the middle of one":  {[]nft.Op{interval(80, 80, 3, 4)}, strict.ErrExists},
			"interval around one":            {[]nft.Op{interval(1, 100, 0, 255)}, strict.ErrExists},
			"interval over one's end":        {[]nft.Op{interval(81, 90, 9, 10)}, strict.ErrExists},
			"interval over one's start":      {[]nft.Op{interval(70, 80, 25, 25)}, strict.ErrExists},
			"interval shorter than the same": {[]nft.Op{interval(80, 80, 0, 9)}, strict.ErrExists},
			"interval without end": {[]nft.Op{add("sources", nft.Element{Key: source(90, 1), Verdict: drop})},
				nil},
			"interval with half an end": {[]nft.Op{add("sources", nft.Element{Key: source(90, 1),
				KeyEnd: source(90, 1)[:4], Verdict: drop})}, nil},
			"an end without intervals": {[]nft.Op{add("affinity-endpoints", nft.Element{Key: address(f, 1),
				KeyEnd: address(f, 1)})}, nil},
			"delete a shorter interval": {[]nft.Op{nft.DeleteElements{Table: id, Set: sources,
				Elements: []nft.OwnedElement{{Element: nft.Element{Key: source(80, 0), KeyEnd: source(81, 8)}}}}},
				strict.ErrNotFound},
			"more than fit":            {[]nft.Op{sized, three}, strict.ErrFull},
			"element of a dynamic map": {[]nft.Op{one}, nil},
			"intervals of a protocol":  {[]nft.Op{set(nft.Set{Key: nft.Fields{nft.L4Proto}, Interval: true})}, nil},
			"intervals of one field with a size": {[]nft.Op{set(nft.Set{Key: nft.Fields{nft.Daddr}, Interval: true, Size: 9})},
				nil},
			"dynamic intervals": {[]nft.Op{set(nft.Set{Key: clientKey, Data: target, Interval: true,
				Dynamic: true, Size: 1})}, nil},
			"update without data of a map": {[]nft.Op{of(func(u *nft.Update) { u.Data = nil })}, strict.ErrNotFound},
			"update with data of a set": {[]nft.Op{set(nft.Set{Key: origClientKey, Dynamic: true}),
				of(func(u *nft.Update) { u.Map = "new" })}, strict.ErrNotFound},
			"dynamic map of verdicts": {[]nft.Op{set(nft.Set{Key: clientKey, Verdicts: true, Dynamic: true, Size: 1})},
				nil},
			"update of a map that is not there": {[]nft.Op{of(func(u *nft.Update) { u.Map = "nowhere" })}, strict.ErrNotFound},
			"update of a set": {[]nft.Op{of(func(u *nft.Update) { u.Map = "affinity-endpoints" })},
				strict.ErrNotFound},
			"update of what is not dynamic": {[]nft.Op{of(func(u *nft.Update) { u.Map = "endpoints" })}, nil},
			"update without time-out":       {[]nft.Op{of(func(u *nft.Update) { u.Timeout = 0 })}, nil},
			"update for a split second":     {[]nft.Op{of(func(u *nft.Update) { u.Timeout = 1500 * time.Millisecond })}, nil},
			"update of more than the registers hold": {[]nft.Op{of(func(u *nft.Update) {
				u.Key = slices.Concat(u.Key, u.Key, u.Key, u.Key)
			})}, nil},
		} {
			t.Run(fmt.Sprint(f, " ", name), func(t *testing.T) {
				m := affinityModel(50, 51)
				before := m.String()
				if err := strict.Apply(m, nft.Batch{Ops: c.ops}); err == nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("err %v, want %v", err, c.want)
				}
				if diff := cmp.Diff(before, m.String()); diff != "" {
					t.Errorf("something is in (-before +after):\n%s", diff)
				}
			})
		}
		for name, ops := range map[string][]nft.Op{
			"intervals side by side": {interval(80, 80, 10, 19), interval(82, 90, 0, 9), interval(81, 81, 20, 29)},
			"an interval again": {add("sources", nft.Element{Key: source(80, 20), KeyEnd: source(80, 29),
				Verdict: nft.Verdict{Code: nft.Goto, Chain: "service"}})},
			"an interval for another": {nft.DeleteElements{Table: id, Set: sources,
				Elements: []nft.OwnedElement{{Element: nft.Element{Key: source(80, 20), KeyEnd: source(80, 29)}}}}, interval(80, 80,
				25, 35)},
			"as many as fit": {sized, nft.AddElements{Table: id, Set: &nft.Set{Name: "sized"},
				Elements: three.(nft.AddElements).Elements[:2]}},
			"an update": {rule(update)},
		} {
			t.Run(fmt.Sprint(f, " ", name), func(t *testing.T) {
				if err := strict.Apply(affinityModel(50, 51), nft.Batch{Ops: ops}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestText: statements, declarations and elements as nft writes them.
func TestText(t *testing.T) {
	update := func(timeout time.Duration) string {
		return nft.Update{Map: "m", Key: nft.Fields{nft.OrigSaddr, nft.L4Proto, nft.OrigDport}, Data: target,
			Timeout: timeout}.Text(nft.IPv6)
	}
	id := nft.TableID{Family: nft.IPv4, Name: "t"}
	table := affinityOf(nft.IPv4, 50)
	set := &nft.Set{Name: "s", Key: nft.Fields{nft.Dport, nft.Saddr}, Interval: true}
	element := func(fromPort, toPort uint16, from, to int) string {
		return nft.DeleteElements{Table: id, Set: set, Elements: []nft.OwnedElement{{Element: nft.Element{
			Key:    nft.Value(nft.AppendPort(nil, fromPort)) + address(nft.IPv4, from),
			KeyEnd: nft.Value(nft.AppendPort(nil, toPort)) + address(nft.IPv4, to),
		}}}}.Text()
	}
	for got, want := range map[string]string{
		update(3 * time.Hour): "update @m { ct original ip6 saddr . " +
			"meta l4proto . ct original proto-dst timeout 3h : ip6 daddr . th dport }",
		update(24*time.Hour + time.Minute + 5*time.Second): "update @m { ct original ip6 saddr . meta " +
			"l4proto . ct original proto-dst timeout 1d1m5s : ip6 daddr . th dport }",
		nft.DNAT{Key: serviceKey,
			Map: "m"}.Text(nft.IPv4): "dnat to ip daddr . meta l4proto . th dport map @m",
		nft.InSet{Key: nft.Fields{nft.OrigDaddr}, Set: "s"}.Text(nft.IPv4): "ct original ip daddr @s",
		nft.AddSet{Table: id, Set: table.Set("affinity")}.Text(): "add map ip t affinity { typeof ip saddr . ip " +
			"daddr . meta l4proto . th dport : ip daddr . th dport; size 2; flags dynamic,timeout; }\n",
		nft.AddSet{Table: id, Set: table.Set("sources")}.Text(): "add map ip t sources { typeof th dport . ip saddr : " +
			"verdict; flags interval; }\n",
		element(80, 80, 1,
			1): "delete element ip t s {\n\t80 . 10.0.0.1,\n}\n",
		element(80, 90, 16,
			31): "delete element ip t s {\n\t80-90 . 10.0.0.16/28,\n}\n",
		element(0, 65535, 16, 32): "delete element ip t s {\n\t0-65535 " +
			". 10.0.0.16-10.0.0.32,\n}\n",
		nft.Fields{nft.Saddr}.FormatRange(nft.IPv6, "", "\x00"):     "0x",
		nft.LastAddr(netip.MustParsePrefix("10.1.2.3/0")).String():  "255.255.255.255",
		nft.LastAddr(netip.MustParsePrefix("fd00::1/127")).String(): "fd00::1",
		nft.LastAddr(
			netip.MustParsePrefix("fd00::/9")).String(): "fd7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		nft.LastAddr(netip.PrefixFrom(netip.MustParseAddr("10.1.2.3"), 31)).String(): "10.1.2.3",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// timeZero is some time.
var timeZero = time.Unix(0, 0)

// Read returns what Apply wrote: each set and chain as the program's own value.
func TestReadBack(t *testing.T) {
	_, c := open(t)
	p := everything()
	batch := load(p)
	must(t, c.Apply(batch))
	want := nft.NewModel()
	must(t, strict.Apply(want, batch))

	got, err := c.Read(p)
	must(t, err)
	if diff := cmp.Diff(want.String(), got.String()); diff != "" {
		t.Errorf("applied and read (-want +got):\n%s", diff)
	}
	wantRecognised(t, p, got)
	for _, f := range nft.Families() {
		if diff := cmp.Diff(want.Table(table(f)).Sets, got.Table(table(f)).Sets); diff != "" {
			t.Errorf("table %s: elements applied and read (-want +got):\n%s", f, diff)
		}
	}
}

// TestReadSet: one set reads as it does with its table; a missing one is none.
func TestReadSet(t *testing.T) {
	_, c := open(t)
	p := everything()
	if s, err := c.ReadSet(p.IPv4, "services"); s != nil || err != nil {
		t.Errorf("without a table: %v, %v", s, err)
	}
	must(t, c.Apply(load(p)))
	all, err := c.Read(p)
	must(t, err)
	for _, f := range nft.Families() {
		for name, want := range all.Table(table(f)).Sets {
			got, err := c.ReadSet(p.Table(f), name)
			must(t, err)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("table %s: set %s (-with its table +alone):\n%s", f, name, diff)
			}
		}
	}
	if s, err := c.ReadSet(p.IPv4, "missing"); s != nil || err != nil {
		t.Errorf("a missing set: %v, %v", s, err)
	}
}

// wantRecognised wants each set and chain that was read to be the program's own value.
func wantRecognised(t *testing.T, p *nft.Program, got *nft.Model) {
	t.Helper()
	for _, f := range nft.Families() {
		contents := got.Table(table(f))
		for name, chain := range p.Table(f).Chains.All() {
			if contents.Chains[name] != chain {
				t.Errorf("table %s: chain %s is not recognised", f, name)
			}
		}
		for _, s := range p.Table(f).Sets.All() {
			if !recognised(s, contents.Sets[s.Name].Set) {
				t.Errorf("table %s: set %s is not recognised", f, s.Name)
			}
		}
	}
}

// recognised says that Read returned the set of a program. With MinSize, the size is the
// kernel's.
func recognised(want, got *nft.Set) bool {
	if want.MinSize == 0 {
		return got == want
	}
	declared := *want
	declared.Size, declared.MinSize = got.Size, 0
	return got.Size >= want.MinSize && cmp.Equal(&declared, got)
}

// nft makes the same of a program's text as Apply makes of the program: Read recognises
// each set and chain.
func TestReadTablesOfNft(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	p := parsable(t, cmd)
	if !parsesOriginalPorts(t, cmd) {
		// nft 1.0.6 converts the protocol's one byte to network order before it looks it
		// up in intervals.
		for _, f := range nft.Families() {
			p.Table(f).Chains = p.Table(f).Chains.Set("restricted", &nft.Chain{Name: "restricted"})
		}
	}
	must(t, cmd.Load(ns, load(p).String()))
	got, err := c.Read(p)
	must(t, err)
	wantRecognised(t, p, got)
	if b, _ := nft.Adopt(got, p).Plan(p, timeZero); !b.Empty() {
		t.Errorf("what nft made is changed by\n%s", b)
	}
}

// Read tells each rule from every other: it never takes the kernel's form of one for
// another.
func TestReadTellsRulesApart(t *testing.T) {
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			_, c := open(t)
			rules := []nft.Rule{
				{nft.DNAT{Key: serviceKey, Mod: 1 << 24, Map: "endpoints"}},
				{nft.MatchProto{}, nft.Reject{TCPReset: true}},
				{nft.MatchProto{Protocol: 6}, nft.Reject{}},
				{nft.MatchMark{Mask: 1}, nft.SetMark{Mask: 1}},
				{nft.SetMark{Mask: 0}}, {nft.SetMark{Mask: 1}}, {nft.ClearMark{Mask: 1}},
				{nft.SetLabel{Bit: 0}}, {nft.SetLabel{Bit: 64}}, {nft.MatchLabel{Bit: 0}, nft.SetLabel{Bit: 127}},
				{nft.MatchLabel{Bit: 127}, nft.SetLabel{Bit: 0}},
				{nft.InSet{Key: serviceKey[:1], Set: "addresses"}}, {nft.InSet{Key: nodeKey[:1], Set: "only-proto"}},
				{nft.Verdict{Code: nft.Drop}}, {nft.Verdict{Code: nft.Accept}}, {nft.Verdict{Code: nft.Return}},
				{jump("refuse")}, {goTo("refuse")}, {goTo("empty")}, {},
				{nft.DNAT{Key: clientKey, Mod: 0, Map: "affinity"}}, {nft.DNAT{Key: clientKey[1:], Mod: 1, Map: "endpoints"}},
				{nft.InSet{Key: nft.Fields{nft.OrigDaddr}, Set: "addresses"}},
				{nft.InSet{Key: nft.Fields{nft.OrigSaddr}, Set: "addresses"}},
				{nft.VMap{Key: nft.Fields{nft.OrigDport}, Map: "port-verdicts"}},
				{nft.Update{Map: "affinity", Key: clientKey, Data: target, Timeout: 3 * time.Hour}},
				{nft.Update{Map: "affinity", Key: origClientKey, Data: target, Timeout: 3*time.Hour + time.Second}},
				{nft.Update{Map: "affinity", Key: origClientKey, Data: nft.Fields{nft.OrigDaddr, nft.Dport},
					Timeout: 3 * time.Hour}},
			}
			texts := map[string]bool{}
			for _, chain := range append(chains(f), learning(true)...) {
				rules = append(rules, chain.Rules...)
			}
			rules = slices.DeleteFunc(rules, func(r nft.Rule) bool {
				// Masquerading needs its hook. Another test compares the texts of
				// rules.
				text := r.Text(f)
				again := texts[text]
				texts[text] = true
				return again || strings.Contains(text, "masquerade")
			})
			// Chain i has the rule that comes shift after the i-th.
			program := func(shift int) *nft.Program {
				cs := []*nft.Chain{{Name: "empty"}, {Name: "refuse"}, {Name: "learn-10800"}, {Name: "endpoints-3-masquerade"},
					{Name: "node-endpoints-2"}}
				for i := range rules {
					cs = append(cs, &nft.Chain{Name: fmt.Sprintf("rule-%d", i), Rules: []nft.Rule{rules[(i+shift)%len(rules)]}})
				}
				p := &nft.Program{IPv4: newTable(nft.IPv4, nil, nil, nil), IPv6: newTable(nft.IPv6, nil, nil, nil)}
				*p.Table(f) = *newTable(f, sets(), cs, nil)
				return p
			}
			must(t, c.Apply(load(program(0))))
			for shift := range rules {
				p := program(shift)
				m, err := c.Read(p)
				must(t, err)
				for i, r := range rules {
					name := fmt.Sprintf("rule-%d", i)
					want := p.Table(f).Chains.At(name)
					if got := m.Table(table(f)).Chains[name] == want; got != (shift == 0) {
						t.Errorf("%q read as %q: %v", r.Text(f), want.Rules[0].Text(f), got)
					}
				}
			}
		})
	}
}

// Another process changes the table in every way. The next plan finds the change and
// repairs it.
func TestReadFindsTampering(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	for i, test := range []struct{ name, script string }{
		{"rule removed", "flush chain ip T refuse"},
		{"rule added", "add rule ip T refuse drop"},
		{"rule with a comment", `add rule ip T empty return comment "x"`},
		{"rule replaced by its like", "flush chain ip T refuse; add rule ip T refuse meta l4proto tcp reject with tcp " +
			"reset; add rule ip T refuse reject with icmp type host-unreachable"},
		{"rules swapped", "flush chain ip T node-endpoints-2; add rule ip T node-endpoints-2 drop"},
		{"other constant", "flush chain ip6 T input; add rule ip6 T input meta mark set meta mark & 0xffffbffe"},
		{"other set", "flush chain ip T output; add rule ip T output ip daddr . meta l4proto . th dport vmap @services; " +
			"add rule ip T output fib daddr type != local ip daddr @addresses goto refuse"},
		{"counter", "flush chain ip T input; add rule ip T input counter meta mark set meta mark & 0xffffbfff"},
		{"chain added", "add chain ip T foreign; add rule ip T foreign accept"},
		{"base chain added", "add chain ip T foreign { type filter hook input priority 0; policy drop; }; add rule ip T " +
			"foreign accept"},
		{"element removed", "delete element ip T indexes { 7 }"},
		{"element added", "add element ip T indexes { 8 }"},
		{"element replaced", `delete element ip T only-port { 80 }; add element ip T only-port { 80 : 81 }`},
		{"comment replaced",
			`delete element ip T addresses { 10.96.0.1 }; add element ip T addresses { 10.96.0.1 comment "y" }`},
		{"verdict replaced", `delete element ip T services { 10.96.0.2 . udp . 53 }; add element ip T services { 10.96.0.2 ` +
			`. udp . 53 : goto refuse }`},
		{"set added", "add set ip T foreign { type inet_service; elements = { 1, 2 }; }"},
		{"set with intervals", "add set ip T foreign { type inet_service; flags interval; elements = { 1-2 }; }"},
		{"set with time-out", "delete set ip T indexes; add set ip T indexes { typeof numgen random mod 2; timeout 1h; " +
			"elements = { 7 }; }"},
		{"set of another type", "delete set ip T indexes; add set ip T indexes { type ipv4_addr; elements = { 1.1.1.1 }; }"},
		{"set without typeof", "delete set ip T indexes; add set ip T indexes { type mark; elements = { 7 }; }"},
		{"map with catch-all", "add element ip T only-port { * : 81 }"},
		{"interval shortened", `delete element ip T source-ranges { 10.96.0.0 . tcp . 80 . 0.0.0.0/0 }; add element ip T ` +
			`source-ranges { 10.96.0.0 . tcp . 80 . 0.0.0.0/1 comment "a prefix" }`},
		{"interval added", "add element ip6 T source-ranges { fd00::9-fd00::17 . udp . 80-90 . fd00::/9 }"},
		{"interval removed", "delete element ip T source-verdicts { 91 . 10.96.0.0-10.96.0.7 }"},
		{"map with intervals made one without", "flush chain ip T prerouting; flush chain ip T output; delete map ip T " +
			"source-verdicts; add map ip T source-verdicts { typeof th dport . ip saddr : verdict; }"},
		{"other size", "delete set ip T sized; add set ip T sized { typeof ip daddr; size 101; elements = { 10.96.0.5 }; }"},
		{"no size", "delete set ip T sized; add set ip T sized { typeof ip daddr; elements = { 10.96.0.5 }; }"},
		{"dynamic map of another size", "flush chain ip T learn-clients; delete map ip T client-affinity; add map ip T " +
			"client-affinity { typeof ip saddr : ip daddr; size 4; flags dynamic,timeout; }"},
		{"dynamic map with time-out", "flush chain ip T learn-clients; delete map ip T client-affinity; add map ip T " +
			"client-affinity { typeof ip saddr : ip daddr; size 3; flags dynamic,timeout; timeout 1h; }"},
		{"map no longer dynamic", "flush chain ip T learn-clients; delete map ip T client-affinity; add map ip T " +
			"client-affinity { typeof ip saddr : ip daddr; size 3; flags timeout; }"},
		{"reply instead of original", "flush chain ip T learn-clients; add rule ip T learn-clients ct status dnat ct reply " +
			"ip daddr @addresses jump empty"},
		{"table removed", "delete table ip6 T"},
		{"table emptied", "delete table ip T; add table ip T"},
	} {
		if testing.Short() && i%3 != 0 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			ns, c := open(t)
			p := everything()
			must(t, c.Apply(load(p)))
			before := blocks(t, cmd, ns)
			must(t, c.Close()) // so that others can change the table
			err := cmd.Load(ns, strings.ReplaceAll(test.script, " T", " "+tableName))
			if err != nil && test.name == "map with catch-all" {
				t.Skipf("kernels before 5.13 have no such elements: %v", err)
			}
			must(t, err)

			c = openIn(t, ns)
			must(t, own(c, p))
			m, err := c.Read(p)
			must(t, err)
			state := nft.Adopt(m, p)
			repair, state := state.Plan(p, timeZero)
			if repair.Empty() && state.Due().IsZero() {
				t.Fatal("nothing was found")
			}
			must(t, c.Apply(repair))
			// A foreign chain is deleted after IdleLife, like our own idle chains.
			rest, _ := state.Plan(p, timeZero.Add(nft.IdleLife))
			must(t, c.Apply(rest))
			if diff := cmp.Diff(before, blocks(t, cmd, ns)); diff != "" {
				t.Errorf("listing before tampering and after repair (-before +after):\n%s\nrepair:\n%s%s", diff, repair, rest)
			}
		})
	}
}

// blocks lists the sets and chains of both tables, sorted, since a repaired one may be
// at another place.
func blocks(t *testing.T, cmd netfilter.NFT, ns *testnet.Namespace) []string {
	t.Helper()
	var all []string
	for _, f := range nft.Families() {
		listing, err := cmd.Run(ns, "", "list", "table", f.String(), tableName)
		must(t, err)
		_, listing, _ = strings.Cut(ownerMarks.ReplaceAllString(listing, ""), "\n")
		for block := range strings.SplitSeq(strings.TrimSuffix(listing, "}\n"), "\n\n") {
			block = strings.TrimRight(block, "\n")         // the last block ends with one more
			if strings.Contains(block, "flags interval") { // the listing has elements in the order in which they came
				lines := strings.Split(strings.Replace(block, "elements = {", "", 1), "\n")
				for i, line := range lines {
					lines[i] = strings.Trim(line, " \t,}")
				}
				slices.Sort(lines)
				block = strings.Join(lines, "\n")
			}
			all = append(all, f.String()+block)
		}
	}
	slices.Sort(all)
	return all
}

// Read returns the whole table while other processes make transactions.
func TestReadBesideABusyRuleset(t *testing.T) {
	ns, c := open(t)
	n := 2000
	if testing.Short() {
		n = 500
	}
	p := services(n, 5)
	must(t, c.Apply(load(p)))
	want := nft.NewModel()
	must(t, strict.Apply(want, load(p)))
	busy := openIn(t, ns)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		id := nft.TableID{Family: nft.IPv4, Name: "busy"}
		var err error
		for err == nil {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
				err = busy.Apply(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: id}, nft.DeleteTable{Table: id}}})
			}
		}
		stopped <- err
	}()
	for range 5 {
		got, err := c.Read(p)
		must(t, err)
		if got.String() != want.String() {
			t.Error("read something else than was applied")
		}
	}
	close(stop)
	must(t, <-stopped)
}

// A random history of programs: the kernel has what the model has, and an adopted state
// needs no batch.
func TestRandomSequence(t *testing.T) {
	_, c := open(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	model := nft.NewModel()
	var state nft.State
	now := timeZero
	for step := range 60 {
		p := randomProgram(r)
		now = now.Add(time.Duration(r.IntN(8)) * time.Second)
		batch, next := state.Plan(p, now)
		must(t, strict.Apply(model, batch))
		if err := c.Apply(batch); err != nil {
			t.Fatalf("step %d: %v in batch\n%s", step, err, batch)
		}
		state = next
		got, err := c.Read(p)
		must(t, err)
		if diff := cmp.Diff(elementsOf(model), elementsOf(got)); diff != "" {
			t.Fatalf("step %d: model and kernel (-want +got):\n%s\nafter batch\n%s", step, diff, batch)
		}
		again, _ := nft.Adopt(got, p).Plan(p, now)
		if !again.Empty() {
			t.Fatalf("step %d: what was read is changed by\n%s", step, again)
		}
		if r.IntN(10) == 0 {
			state = nft.Adopt(got, p)
		}
	}
}

// elementsOf is a model's elements by table and set. It has no chains: Read does not
// recognise the idle ones.
func elementsOf(m *nft.Model) map[string]map[nft.Value]nft.Element {
	all := map[string]map[nft.Value]nft.Element{}
	for _, f := range nft.Families() {
		for name, s := range m.Table(table(f)).Sets {
			all[f.String()+" "+name] = s.Elements
		}
		for name := range m.Table(table(f)).Chains {
			all[f.String()+" chain "+name] = nil
		}
	}
	return all
}

// randomProgram has random services in both families, with their chains.
func randomProgram(r *rand.Rand) *nft.Program {
	p := &nft.Program{}
	for _, f := range nft.Families() {
		used := map[string]*nft.Chain{}
		parts := map[string]*nft.Part{}
		for i := range r.IntN(8) {
			n := 1 + r.IntN(6)
			name := fmt.Sprintf("endpoints-%d", n)
			if used[name] == nil {
				used[name] = &nft.Chain{Name: name, Rules: []nft.Rule{
					{nft.DNAT{Key: serviceKey, Mod: uint32(n), Map: "endpoints"}},
					{nft.DNAT{Key: serviceKey, Mod: 1, Map: "endpoints"}},
					{nft.Verdict{Code: nft.Drop}},
				}}
			}
			prefix := servicePrefix(f, i, 6, 80)
			var targets []nft.Value
			for _, j := range r.Perm(8)[:n] {
				targets = append(targets, endpoint(f, 100+j, 80))
			}
			pool := nft.Pool{Map: "endpoints", Prefix: prefix, Targets: nft.NewTargets(targets...)}
			parts[fmt.Sprintf("svc-%d", i)] = nft.NewPart(append(randomRanges(r, f, prefix),
				nft.Element{Set: "services", Key: prefix, Verdict: goTo(name), Comment: strings.Repeat("c", r.IntN(3))},
				nft.Element{Set: "addresses", Key: addrValue(f, i)},
			), []nft.Pool{pool})
		}
		cs := []*nft.Chain{{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100},
			Rules: []nft.Rule{{nft.VMap{Key: serviceKey, Map: "services"}}}}}
		if r.IntN(2) == 0 {
			cs[0].Rules = append(cs[0].Rules, nft.Rule{nft.InSet{Key: nft.Fields{nft.Daddr}, Set: "addresses"},
				nft.Verdict{Code: nft.Drop}})
		}
		for _, chain := range used {
			cs = append(cs, chain)
		}
		t := newTable(f, sets(), cs, parts)
		if f == nft.IPv6 {
			p.IPv6 = t
		} else {
			p.IPv4 = t
		}
	}
	return p
}

// randomRanges are some sources of a service. They do not overlap.
func randomRanges(r *rand.Rand, f nft.Family, service nft.Value) []nft.Element {
	var all []nft.Element
	ends := r.Perm(256)[:2*r.IntN(4)]
	slices.Sort(ends)
	for pair := range slices.Chunk(ends, 2) {
		all = append(all, nft.Element{
			Set: "source-ranges", Key: service + addrValue(f, pair[0]), KeyEnd: service + addrValue(f, pair[1]),
			Comment: strings.Repeat("r", r.IntN(2)),
		})
	}
	return all
}

package verify_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/verify"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// TestMain has a flag that writes the golden file again.
func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden file again")
	flag.Parse()
	os.Exit(m.Run())
}

const everything = 1 << 20

// TestNothingDiffers: the tables of a program, in whatever way the kernel got them, do not
// differ from it. Those of another program differ just where the proxy would write.
func TestNothingDiffers(t *testing.T) {
	rounds, differing := 60, 0
	if testing.Short() {
		rounds = 8
	}
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 14))
		cfg, _ := gen.Config(rng)
		kernel, state := nft.NewModel(), nft.State{}
		for step := range 5 {
			node := gen.Node(rng)
			builder := snapshots.NewBuilder(node)
			builder.SetServiceCIDRs(gen.ServiceCIDRs(rng))
			for _, s := range gen.Services(rng, &node) {
				builder.Set(s)
			}
			cfg.Counters = rng.IntN(3) == 0
			want := ruleset.Compile(cfg, builder.Snapshot())
			repair, _ := nft.Adopt(kernel, want).Plan(want, time.Unix(0, 0))
			before := verify.Compare(want, kernel)
			if (before.Len() == 0) != repair.Empty() {
				t.Fatalf("seed %d, step %d: %d differences, but the proxy would write:\n%s", seed, step, before.Len(), repair)
			}
			differing += before.Len()

			var batch nft.Batch
			batch, state = state.Plan(want, time.Unix(int64(step), 0))
			if err := strict.Apply(kernel, batch); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if r := verify.Compare(want, kernel).Report(everything); !r.Same {
				t.Fatalf("seed %d, step %d: after the sync:\n%s", seed, step, text(t, r))
			}
		}
	}
	if differing == 0 {
		t.Error("nothing ever differed")
	}
}

func text(t *testing.T, r verify.Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const world = `node node-1
  address 192.168.0.2
  host-address 192.168.0.2
service-cidr 10.96.0.0/16
service kube-system/kube-dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  port dns udp 53
    endpoint 10.244.1.5:53 node-1 ready serving
    endpoint 10.244.1.6:53 node-2 ready serving
    endpoint [fd00:244:1::5]:53 node-2 ready serving
service shop/cart created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.20
  port - tcp 80 node-port 30080
    endpoint 10.244.2.9:8080 node-2 ready serving
`

func program(t *testing.T, text string) *nft.Program {
	t.Helper()
	s, err := gen.ReadSnapshot(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable, Settings: service.Settings{
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	}}, s)
}

// TestRows: where the endpoint of a slot matters, because clients are hashed to it, another order of the slots is a
// difference, and where only their number matters, another number is.
func TestRows(t *testing.T) {
	const endpoints = "    endpoint 10.244.2.9:8080 node-2 ready serving%s\n    endpoint 10.244.2.10:8080 node-2 ready " +
		"serving\n"
	of := func(option, weight string) *nft.Program {
		return program(t, strings.NewReplacer("  cluster-ip 10.96.0.20\n", "  cluster-ip 10.96.0.20\n"+option,
			"    endpoint 10.244.2.9:8080 node-2 ready serving\n", fmt.Sprintf(endpoints, weight)).Replace(world))
	}
	hashed, weighted := of("  option balance client\n", ""), of("", " weight=300")
	for name, c := range map[string]struct {
		program *nft.Program
		// move changes the values of the Service's slots, by their index.
		move  func(slots []*nft.Element)
		wants int
	}{
		"hashed, two slots change places":   {hashed, func(s []*nft.Element) { swap(s) }, 2},
		"hashed, as it is":                  {hashed, func([]*nft.Element) {}, 0},
		"weighted, two slots change places": {weighted, func(s []*nft.Element) { swap(s) }, 0},
		"weighted, a slot is another's": {weighted, func(s []*nft.Element) {
			s[slices.IndexFunc(s, differs(s))].Data = s[0].Data
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			have := c.program.Model()
			set := have.Table(nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable}).Sets["endpoints"]
			var slots []*nft.Element
			for _, key := range slices.Sorted(maps.Keys(set.Elements)) {
				if e := set.Elements[key]; strings.HasPrefix(string(key), "\x0a\x60\x00\x14") {
					slots = append(slots, &e)
				}
			}
			c.move(slots)
			for _, e := range slots {
				set.Elements[e.Key] = *e
			}
			if n := verify.Compare(c.program, have).Len(); n != c.wants {
				t.Errorf("%d differences, want %d", n, c.wants)
			}
		})
	}
}

// TestSharedClusterIP: what two Services have at one cluster IP is of the Service whose port it is.
func TestSharedClusterIP(t *testing.T) {
	both := world + `service shop/other created 2026-01-02T00:00:00Z
  cluster-ip 10.96.0.20
  port - tcp 81
    endpoint 10.244.2.9:8081 node-2 ready serving
`
	got := text(t, verify.Compare(program(t, world), program(t, both).Model()).Report(everything))
	if !strings.HasPrefix(got, "Service shop/other\n") {
		t.Errorf("got:\n%s", got)
	}
}

// differs finds slots of another endpoint than the first.
func differs(s []*nft.Element) func(*nft.Element) bool {
	return func(e *nft.Element) bool { return e.Data != s[0].Data }
}

func swap(s []*nft.Element) {
	other := slices.IndexFunc(s, differs(s))
	s[0].Data, s[other].Data = s[other].Data, s[0].Data
}

// TestText: what people read of differences, as it stands in testdata/differences.txt.
func TestText(t *testing.T) {
	want := program(t, world)
	ip := nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable}
	chain := func(m *nft.Model, name string) *nft.Chain { return m.Table(ip).Chains[name] }
	var got strings.Builder
	for _, c := range []struct {
		what string
		edit func(*nft.Model)
	}{
		{"nothing differs", func(*nft.Model) {}},
		{"a table is missing", func(m *nft.Model) {
			*m = *nft.NewModel()
			m.Put(want.Model().Table(nft.TableID{Family: nft.IPv6, Name: ruleset.DefaultTable}))
		}},
		{"a Service is missing, and another one is there", func(m *nft.Model) {
			*m = *program(t, strings.ReplaceAll(world, "shop/cart", "shop/other")).Model()
		}},
		{"endpoints are others", func(m *nft.Model) {
			*m = *program(t, strings.ReplaceAll(strings.ReplaceAll(world, "10.244.1.6:53", "10.244.1.7:53"), "10.244.2.9:8080",
				"10.244.2.9:8081")).Model()
		}},
		{"another endpoint", func(m *nft.Model) {
			*m = *program(t, world+"    endpoint 10.244.2.10:8080 node-2 ready serving\n").Model()
		}},
		{"rules are others", func(m *nft.Model) {
			c := *chain(m, "dispatch")
			c.Rules = slices.Concat([]nft.Rule{{nft.Verdict{Code: nft.Accept}}, {nft.MatchProto{Protocol: 6}, nft.Unknown{}}},
				c.Rules[1:])
			m.Table(ip).Chains["dispatch"] = &c
			delete(m.Table(ip).Chains, "input")
		}},
		{"chains and sets that nothing leads to, and a base chain", func(m *nft.Model) {
			m.Table(ip).Chains["endpoints-9"] = &nft.Chain{Name: "endpoints-9"}
			m.Table(ip).Sets["other"] = &nft.SetContents{Set: &nft.Set{Name: "other"}}
			m.Table(ip).Chains["mine"] = &nft.Chain{Name: "mine", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -1}}
		}},
		{"counters", func(m *nft.Model) {
			counting := *m.Table(ip).Sets["endpoints"].Set
			counting.Counter = true
			m.Table(ip).Sets["endpoints"].Set = &counting
		}},
		{"a set that is declared otherwise", func(m *nft.Model) {
			m.Table(ip).Sets["services"] = &nft.SetContents{Set: &nft.Set{Name: "services"}}
		}},
	} {
		m := want.Model()
		c.edit(m)
		fmt.Fprintf(&got, "-- %s --\n%s", c.what, text(t, verify.Compare(want, m).Report(everything)))
	}
	const file = "testdata/differences.txt"
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wanted, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(string(wanted), got.String()); diff != "" {
		t.Errorf("-want +got:\n%s\nall of it:\n%s", diff, got.String())
	}
}

// TestTimeouts: an object of time-outs that is missing, or has other values, is a difference. One that nobody asks for
// any more is none.
func TestTimeouts(t *testing.T) {
	want := program(t, strings.Replace(world, "  cluster-ip 10.96.0.20\n", "  cluster-ip 10.96.0.20\n  option "+
		"tcp-established-timeout 2h\n", 1))
	in := want.IPv4.ID()
	if r := verify.Compare(program(t, world), want.Model()).Report(everything); strings.Contains(text(t, r),
		"ct timeout") {
		t.Errorf("an object that is left counts:\n%s", text(t, r))
	}
	m := want.Model()
	delete(m.Table(in).Timeouts, "tcp-2h")
	r := verify.Compare(want, m).Report(everything)
	const object = "ct timeout tcp-2h { protocol tcp; l3proto ip; policy = { established : 7200 }; }"
	if len(r.Differences) != 1 || r.Differences[0] != (verify.Difference{Family: "ip", Kind: verify.Timeout,
		Name: "tcp-2h", Is: verify.Missing, Want: object}) {
		t.Errorf("differences of a missing object: %+v", r.Differences)
	}
	m.Table(in).Timeouts["tcp-2h"] = nft.Timeout{Name: "tcp-2h", Protocol: 6, Established: time.Hour}
	r = verify.Compare(want, m).Report(everything)
	if !slices.Contains(r.Differences, verify.Difference{Family: "ip", Kind: verify.Timeout, Name: "tcp-2h",
		Is: verify.Changed, Want: object, Have: strings.Replace(object, "7200", "3600", 1)}) {
		t.Errorf("differences of another object: %+v", r.Differences)
	}
}

// TestOutgrown: a set that would be made again for its size does not count as such. Only the
// elements that it lacks do.
func TestOutgrown(t *testing.T) {
	full := program(t, world).Model()
	for _, s := range full.Table(nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable}).Sets {
		if s.Set.Size > 0 {
			smaller := *s.Set
			smaller.Size, s.Set = uint32(len(s.Elements)), &smaller
		}
	}
	want := program(t, world+"service many/more created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.30\n  port - tcp 80\n")
	repair, _ := nft.Adopt(full, want).Plan(want, time.Unix(0, 0))
	if !slices.ContainsFunc(repair.Ops, func(op nft.Op) bool { _, deletes := op.(nft.DeleteSet); return deletes }) {
		t.Fatal("no set would be made anew")
	}
	r := verify.Compare(want, full).Report(1)
	if r.Extra != 0 || r.Changed != 0 || r.Missing != 3 || r.Omitted != 2 || len(r.Differences) != 1 ||
		r.Differences[0].Service != "many/more" {
		t.Errorf("%d missing, %d extra, %d changed, %d omitted:\n%s", r.Missing, r.Extra, r.Changed, r.Omitted, text(t, r))
	}
}

// TestLasting: what differs at both looks lasts. What the kernel changed in between, or the
// objects, was in flight.
func TestLasting(t *testing.T) {
	want := program(t, world)
	lacks := func(cut ...string) *nft.Model {
		text := world
		for _, c := range cut {
			text = strings.ReplaceAll(text, c, "")
		}
		return program(t, text).Model()
	}
	const six, nine = "    endpoint 10.244.1.6:53 node-2 ready serving\n",
		"    endpoint 10.244.2.9:8080 node-2 ready serving\n"
	first := verify.Compare(want, lacks(six, nine))
	both := verify.Compare(want, lacks(six)).Lasting(first).Report(everything)
	for _, d := range both.Differences {
		if d.Service == "shop/cart" {
			t.Errorf("%+v was in flight", d)
		}
	}
	if both.Same {
		t.Error("an endpoint that is missing at both looks does not count")
	}
	if n := verify.Compare(want, want.Model()).Lasting(first).Len(); n != 0 {
		t.Errorf("%d differences last although the kernel has all", n)
	}
	// The kernel follows a Service whose endpoint changes all the time, one step behind.
	moving := func(port string) string { return strings.ReplaceAll(world, "10.244.2.9:8080", "10.244.2.9:"+port) }
	behind := verify.Compare(program(t, moving("1")), program(t, moving("0")).Model())
	if behind.Len() == 0 {
		t.Fatal("nothing differed")
	}
	if n := verify.Compare(program(t, moving("2")), program(t, moving("1")).Model()).Lasting(behind).Len(); n != 0 {
		t.Errorf("%d differences last although the kernel follows", n)
	}
}

// TestIdleRules: a rule by which an earlier program masquerades stays for a while, and is no difference. In
// another place, or beside no rule of the program, it is one.
func TestIdleRules(t *testing.T) {
	program := func(mark uint32) *nft.Program {
		return ruleset.Compile(ruleset.Config{Table: "t", Settings: service.Settings{MasqueradeMark: mark}},
			snapshots.NewBuilder(service.Node{}).Snapshot())
	}
	earlier, want := program(0x4000), program(0)
	kernel, now := nft.NewModel(), time.Unix(0, 0)
	batch, state := nft.State{}.Plan(earlier, now)
	apply := func() {
		t.Helper()
		if err := strict.Apply(kernel, batch); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	if verify.Compare(want, kernel).Len() == 0 {
		t.Error("the program of another mark does not differ")
	}
	batch, state = state.Plan(want, now)
	apply()
	found := verify.Compare(want, kernel)
	if diff := cmp.Diff([]string{"ip rule postrouting", "ip6 rule postrouting"}, found.Idle); diff != "" ||
		found.Len() > 0 {
		t.Errorf("idle (-want +got):\n%s\nand %d differences", diff, found.Len())
	}
	if restart, _ := nft.Adopt(kernel, want).Plan(want, now); !restart.Empty() {
		t.Errorf("a restart writes:\n%s", restart)
	}
	chain := kernel.Table(want.IPv4.ID()).Chains["postrouting"]
	rules := chain.Rules
	last := len(rules) - 1
	chain.Rules = append([]nft.Rule{rules[last]}, rules[:last]...)
	if n := verify.Compare(want, kernel).Len(); n == 0 {
		t.Error("a rule of another program does not differ")
	}
	chain.Rules = rules
	batch, _ = state.Plan(want, now.Add(nft.IdleLife))
	apply()
	if found := verify.Compare(want, kernel); found.Len() > 0 || len(found.Idle) > 0 {
		t.Errorf("at the end %d differences, idle %v", found.Len(), found.Idle)
	}
}

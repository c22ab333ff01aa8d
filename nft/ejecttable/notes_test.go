package ejecttable_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft/ejecttable"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// What is left out comes back as it was: long names, both families, all protocols, more than one message has room for.
// nft takes back what it lists. What another program has removed, or written there, does no harm.
func TestLeft(t *testing.T) {
	ns, cmd := testnet.NamespaceForTest(t, "left"), netfilter.NFTForTest(t)
	table := open(t, ns, true)
	read := func() (left service.Adjustments) {
		t.Helper()
		if err := ns.Do(func() (err error) {
			left, err = ejecttable.Read("nftproxy")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return left
	}
	want := func(what string, left service.Adjustments) {
		t.Helper()
		got := read()
		if got.Len() != left.Len() {
			t.Errorf("%s: %d Services, want %d", what, got.Len(), left.Len())
		}
		for name, e := range left.All() {
			if have := got.At(name); have == nil || !slices.Equal(*have, *e) {
				t.Errorf("%s: %s has %v, want %v", what, name, have, *e)
			}
		}
	}
	write := func(left service.Adjustments) {
		t.Helper()
		if err := table.Set(left); err != nil {
			t.Fatal(err)
		}
	}
	want("without a table", service.Adjustments{})
	write(service.Adjustments{})
	want("still without a table", service.Adjustments{})

	since := time.Unix(1_795_694_587, 0)
	var left, small service.Adjustments
	for i := range 40 {
		name := service.Name(strings.Repeat("n", 63) + "/" + strings.Repeat("s", 60) + fmt.Sprint(i))
		var list []service.Adjustment
		for j, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
			for k := range 5 {
				list = append(list,
					service.Adjustment{PortEndpoint: service.PortEndpoint{Protocol: p, Port: uint16(80 + j),
						Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j), byte(k)}), 8080)}, Share: service.NoShare,
						Since: since,
						Why:   "5 connections without answer, 2 tries of this node failed"},
					service.Adjustment{PortEndpoint: service.PortEndpoint{Protocol: p, Port: uint16(80 + j),
						Addr: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 1: byte(i), 14: byte(j), 15: byte(k)}), 65535)},
						Share: service.NoShare, Since: since, Why: strings.Repeat("w", 300)})
			}
		}
		if left = left.Set(name, service.NewAdjusted(list)); i == 0 {
			small = left
		}
	}
	write(left)
	want("all", left)
	write(small)
	want("one Service", small)
	listing, err := cmd.Run(ns, "", "list", "ruleset")
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Load(ns, "flush ruleset\n"+listing); err != nil {
		t.Fatal(err)
	}
	want("taken back by nft", small)
	if err := cmd.Load(ns, "flush ruleset"); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Repeats(); err != nil {
		t.Fatal(err)
	}
	want("made anew", small)
	write(service.Adjustments{})
	if err := cmd.Load(ns, `add element inet nftproxy-eject endpoints { ::1 comment "shop/web tcp", 1::1 comment "a/b `+
		`tcp 80 nowhere 1 x", 2::1 }`); err != nil {
		t.Fatal(err)
	}
	want("with texts of others", service.Adjustments{})
	// Nothing that nft could not take back gets into a comment.
	odd := service.NewAdjusted([]service.Adjustment{{PortEndpoint: service.PortEndpoint{Protocol: service.TCP, Port: 80,
		Addr: netip.MustParseAddrPort("10.0.0.1:80")}, Share: service.NoShare, Since: since, Why: "node \"a\x00\nü"}})
	write(service.Adjustments{}.Set("a/b", odd))
	clean := service.NewAdjusted([]service.Adjustment{{PortEndpoint: service.PortEndpoint{Protocol: service.TCP, Port: 80,
		Addr: netip.MustParseAddrPort("10.0.0.1:80")}, Share: service.NoShare, Since: since, Why: "node ?a????"[:10]}})
	want("odd words", service.Adjustments{}.Set("a/b", clean))
}

// What grows comes back as it was, beside what is left out: neither replaces the other. What another program has
// removed is made anew, and what it has written is left out.
func TestGrowth(t *testing.T) {
	ns, cmd := testnet.NamespaceForTest(t, "growth"), netfilter.NFTForTest(t)
	table := open(t, ns, false)
	since := time.Unix(1_795_694_587, 0)
	of := func(endpoints int, share service.Share, more ...service.Adjustment) service.Adjustments {
		list := more
		for i := range endpoints {
			list = append(list, service.Adjustment{PortEndpoint: service.PortEndpoint{Protocol: service.UDP, Port: 53,
				Addr: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), 5353)}, Share: share,
				Since: since})
		}
		if len(list) == 0 {
			return service.Adjustments{}
		}
		return service.Adjustments{}.Set("shop/web", service.NewAdjusted(list))
	}
	left := service.Adjustment{PortEndpoint: service.PortEndpoint{Protocol: service.TCP, Port: 80,
		Addr: netip.MustParseAddrPort("10.0.0.1:80")}, Share: service.NoShare, Since: since, Why: "silent"}
	want := func(what string, adjustments service.Adjustments) {
		t.Helper()
		if err := ns.Do(func() error {
			got, err := ejecttable.Read("nftproxy")
			have, wanted := got.At("shop/web"), adjustments.At("shop/web")
			if got.Len() != adjustments.Len() || wanted != nil && !slices.Equal(*have, *wanted) {
				t.Errorf("%s: %v, want %v", what, have, wanted)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	set := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	set(table.Set(service.Adjustments{}))
	want("without a table", service.Adjustments{})
	set(table.Set(of(2000, service.Quarter)))
	want("many", of(2000, service.Quarter))
	set(table.Set(of(3, service.Half, left)))
	want("both", of(3, service.Half, left))
	set(table.Set(of(0, service.Half, left)))
	set(cmd.Load(ns, `add element inet nftproxy-eject endpoints { ::1 comment "a/b TCP 80 10.0.0.1:80 1 1/10 ", `+
		`1::1 comment "a/b TCP 80 10.0.0.1:80 1 4/4 ", 2::1 comment "a/b TCP 80 10.0.0.1:80 1 0/4", 3::1 }`))
	want("with texts of others", of(0, service.Half, left))
	set(cmd.Load(ns, "flush ruleset"))
	set(table.Set(of(1, service.Quarter, left)))
	want("made anew", of(1, service.Quarter, left))
	set(cmd.Load(ns, "flush ruleset"))
	set(table.Set(of(1, service.Quarter, left)))
	want("made anew without a change", of(1, service.Quarter, left))
}

// TestNotesChange: whatever comes and goes of what grows, each time all of it is there, also if another program has
// removed it.
func TestNotesChange(t *testing.T) {
	ns, cmd := testnet.NamespaceForTest(t, "notes"), netfilter.NFTForTest(t)
	table := open(t, ns, false)
	rng := rand.New(rand.NewPCG(1, 2))
	var growth service.Adjustments
	for step := range 60 {
		for range 1 + rng.IntN(3) {
			name := service.Name("ns/" + strings.Repeat("s", rng.IntN(2)*100) + fmt.Sprint(rng.IntN(6)))
			var list []service.Adjustment
			for i := range rng.IntN(300) {
				if rng.IntN(3) > 0 {
					at := service.PortEndpoint{Protocol: service.TCP, Port: 80,
						Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)}
					list = append(list, service.Adjustment{PortEndpoint: at, Share: service.ShareOf(uint32(1 + rng.IntN(2))),
						Since: time.Unix(1, 0)})
				}
			}
			if growth = growth.Set(name, service.NewAdjusted(list)); len(list) == 0 {
				growth = growth.Delete(name)
			}
		}
		if step%10 == 9 {
			if err := cmd.Load(ns, "flush set inet nftproxy-eject endpoints"); err != nil {
				t.Fatal(err)
			}
		}
		if err := table.Set(growth); err != nil {
			t.Fatal(err)
		}
		if err := ns.Do(func() error {
			got, err := ejecttable.Read("nftproxy")
			for name, growers := range growth.All() {
				if have := got.At(name); have == nil || !slices.Equal(*have, *growers) {
					t.Errorf("step %d: %s differs", step, name)
				}
			}
			if got.Len() != growth.Len() {
				t.Errorf("step %d: %d Services, want %d", step, got.Len(), growth.Len())
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkOneGrows changes one endpoint of as many as a node follows.
func BenchmarkOneGrows(b *testing.B) {
	table := open(b, testnet.NamespaceForTest(b, "grows"), false)
	var growth service.Adjustments
	grow := func(i int, share service.Share) {
		at := service.PortEndpoint{Protocol: service.TCP, Port: 80,
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)}
		growers := service.Adjusted{{PortEndpoint: at, Share: share}}
		growth = growth.Set(service.Name(fmt.Sprint("default/web-", i)), &growers)
	}
	for i := range 4096 {
		grow(i, service.Quarter)
	}
	for i := 0; b.Loop(); i++ {
		if grow(i%4096, service.ShareOf(uint32(1+i%2))); table.Set(growth) != nil {
			b.Fatal("not written")
		}
	}
}

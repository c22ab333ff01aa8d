package nft_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// sizes are the declared sizes of a model's sets, as "family name".
func sizes(m *nft.Model, p *nft.Program) map[string]int {
	all := map[string]int{}
	for _, f := range nft.Families() {
		for name, s := range m.Table(p.Table(f).ID()).Sets {
			all[fmt.Sprint(f, " ", name)] = int(s.Set.Size)
		}
	}
	return all
}

func TestSizeOfANewSet(t *testing.T) {
	for _, c := range []struct {
		room     uint32
		elements int
		want     uint32
	}{
		{1, 0, 3}, {1, 2, 3}, {1, 3, 6}, {1, 4, 6}, {1, 5, 12}, {1, 100, 192},
		{48, 0, 48}, {48, 32, 48}, {48, 33, 96}, {49, 0, 96}, {3072, 0, 3072}, {3072, 2049, 6144},
	} {
		p := &nft.Program{IPv4: &nft.Table{Family: nft.IPv4, Name: "t"}, IPv6: &nft.Table{Family: nft.IPv6, Name: "t"}}
		p.IPv4.Sets = nft.SetsByName(&nft.Set{Name: "s", Key: nft.Fields{nft.Dport}, MinSize: c.room})
		var elements []nft.Element
		for i := range c.elements {
			elements = append(elements, nft.Element{Set: "s", Key: nft.Value(nft.AppendPort(nil, uint16(i)))})
		}
		p.IPv4.Parts = p.IPv4.Parts.Set("part", nft.NewPart(elements, nil))
		m := nft.NewModel()
		apply(t, m, nft.State{}, p, epoch)
		if got := m.Table(p.IPv4.ID()).Sets["s"].Set.Size; got != c.want {
			t.Errorf("room for %d, %d elements: size %d, want %d", c.room, c.elements, got, c.want)
		}
	}
}

// TestOutgrown: the batch that replaces a set also empties and fills the chains that
// look into it, even a new one.
func TestOutgrown(t *testing.T) {
	m, s := nft.NewModel(), nft.State{}
	h := newHistory(nil)
	h.tables[0].rules["shared-0"] = 1
	h.tables[0].pools[6] = ownedPool{"a", []int{1, 2, 3}} // size 6
	h.tables[0].verdicts[80] = ownedVerdict{part: "a", chain: "shared-0", comment: "a"}
	_, s = apply(t, m, s, h.program(), epoch)
	h.tables[0].rules["shared-1"] = 1
	h.tables[0].verdicts[81] = ownedVerdict{part: "b", chain: "shared-1", comment: "b"}
	h.tables[0].pools[17] = ownedPool{"b", []int{1, 2, 3, 4}}
	want := h.program()
	b, _ := s.Plan(want, epoch)
	var text string
	for i, transaction := range b.Transactions() {
		text += fmt.Sprintf("\n# transaction %d\n%s", i+1, transaction)
		if err := strict.Apply(m, transaction); err != nil {
			t.Fatal(err)
		}
	}
	wantModel(t, want, m)
	if diff := cmp.Diff(`
# transaction 1
add chain ip random shared-1
add rule ip random shared-1 dnat to meta l4proto . numgen random mod 1 map @pools

# transaction 2
flush chain ip random shared-0
flush chain ip random shared-1
delete set ip random pools
add map ip random pools { typeof meta l4proto . numgen random mod 2 : ip daddr . th dport; size 12; }
add rule ip random shared-0 dnat to meta l4proto . numgen random mod 1 map @pools
add rule ip random shared-1 dnat to meta l4proto . numgen random mod 1 map @pools
add element ip random pools {
	tcp . 0 : 10.0.0.1 . 8080,
	tcp . 1 : 10.0.0.2 . 8080,
	tcp . 2 : 10.0.0.3 . 8080,
	udp . 0 : 10.0.0.1 . 8080,
	udp . 1 : 10.0.0.2 . 8080,
	udp . 2 : 10.0.0.3 . 8080,
	udp . 3 : 10.0.0.4 . 8080,
}
add element ip random verdicts {
	81 comment "b" : goto shared-1,
}
`, text); diff != "" {
		t.Errorf("transactions (-want +got):\n%s", diff)
	}
}

// TestRoom: a set keeps its size as long as its elements fit. A set that has outgrown
// its size gets room for half as many elements again.
func TestRoom(t *testing.T) {
	remade := 0
	withSeeds(t, 40, func(t *testing.T, rng *rand.Rand) {
		h, m, s := newHistory(rng), nft.NewModel(), nft.State{}
		_, s = apply(t, m, s, h.next(), epoch)
		for range 50 {
			before := sizes(m, h.last)
			want := h.next()
			_, s = apply(t, m, s, want, epoch)
			for _, f := range nft.Families() {
				for name, set := range m.Table(want.Table(f).ID()).Sets {
					if wanted := want.Table(f).Set(name); wanted == nil || wanted.MinSize == 0 {
						continue
					}
					old, elements := before[fmt.Sprint(f, " ", name)], len(set.Elements)
					switch size := int(set.Set.Size); {
					case elements <= old && size != old:
						t.Fatalf("%s %s: made anew with size %d for %d elements, though it had %d", f, name, size, elements, old)
					case elements > old && 2*size < 3*elements:
						t.Fatalf("%s %s: made anew with size %d for %d elements", f, name, size, elements)
					case elements > old:
						remade++
					}
				}
			}
		}
	})
	if remade < 100 && !testing.Short() {
		t.Errorf("only %d sets were made anew: the histories vary too little", remade)
	}
}

// TestAdoptWithoutSizes: an older version declared sets without sizes. Those that have
// elements get sizes, and dynamic maps keep what they have learned.
func TestAdoptWithoutSizes(t *testing.T) {
	withSeeds(t, 40, func(t *testing.T, rng *rand.Rand) {
		h := newHistory(rng)
		for range 20 {
			h.next()
		}
		m := shuffled(rng, h.last)
		for range 5 {
			sendPackets(rng, m)
		}
		_, memory := splitMemory(m, h.last)
		elements := 0
		for _, f := range nft.Families() {
			for name, set := range m.Table(h.last.Table(f).ID()).Sets {
				if h.last.Table(f).Set(name).MinSize > 0 {
					unlimited := *set.Set
					unlimited.Size = 0
					set.Set = &unlimited
					elements += len(set.Elements)
				}
			}
		}
		b, s := apply(t, m, nft.Adopt(m, h.last), h.last, epoch)
		if b.Empty() != (elements == 0) {
			t.Fatalf("%d elements, and a batch\n%s", elements, b)
		}
		wantModel(t, h.last, m)
		for name, size := range sizes(m, h.last) {
			f, set := nft.IPv4, ""
			if _, err := fmt.Sscanf(name, "ip %s", &set); err != nil {
				f = nft.IPv6
				if _, err := fmt.Sscanf(name, "ip6 %s", &set); err != nil {
					t.Fatal(err)
				}
			}
			if s := m.Table(h.last.Table(f).ID()).Sets[set]; size < len(s.Elements) && !s.Set.Interval {
				t.Errorf("%s: size %d for %d elements", name, size, len(s.Elements))
			}
		}
		if _, after := splitMemory(m, h.last); after != memory {
			t.Errorf("learned before\n%s and after\n%s", memory, after)
		}
		if b, _ := s.Plan(h.last, epoch); !b.Empty() {
			t.Errorf("not empty afterwards:\n%s", b)
		}
	})
}

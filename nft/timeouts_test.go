package nft_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/model/treap"
	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// timed is a program whose chain gives the objects of these names, which say their values.
func timed(objects ...nft.Timeout) *nft.Program {
	p := &nft.Program{}
	for _, f := range nft.Families() {
		chain := &nft.Chain{Name: "give"}
		for _, o := range objects {
			chain.Rules = append(chain.Rules, nft.Rule{nft.SetTimeout{Name: o.Name}})
		}
		t := &nft.Table{Family: f, Name: "t", Chains: treap.Map[string, *nft.Chain]{}.Set("give", chain),
			Timeouts: nft.TimeoutsByName(objects...)}
		if f == nft.IPv4 {
			p.IPv4 = t
		} else {
			p.IPv6 = t
		}
	}
	return p
}

// TestTimeoutsStay: objects are added when they are wanted, and never deleted. One that is there is not added again, in
// this process or another one. A table with a wanted object of other values is made again.
func TestTimeoutsStay(t *testing.T) {
	long := nft.Timeout{Name: "tcp-2h", Protocol: 6, Established: 2 * time.Hour}
	short := nft.Timeout{Name: "udp-10s-30s", Protocol: 17, Unreplied: 10 * time.Second, Replied: 30 * time.Second}
	m, s, now := nft.NewModel(), nft.State{}, epoch
	step := func(want *nft.Program, added int, objects string) {
		t.Helper()
		var b nft.Batch
		b, s = apply(t, m, s, want, now)
		wantModel(t, want, m)
		if got := strings.Count(b.String(), "add ct timeout ip "); got != added {
			t.Errorf("%d objects are added, want %d:\n%s", got, added, b)
		}
		if strings.Contains(b.String(), "delete ct timeout") {
			t.Errorf("an object is deleted:\n%s", b)
		}
		var have []string
		for _, name := range []string{"tcp-2h", "udp-10s-30s"} {
			if _, there := m.Table(want.IPv4.ID()).Timeouts[name]; there {
				have = append(have, name)
			}
		}
		if got := strings.Join(have, " "); got != objects {
			t.Errorf("objects %q, want %q", got, objects)
		}
		now = now.Add(time.Hour)
	}
	step(timed(), 0, "")
	step(timed(long), 1, "tcp-2h")
	step(timed(long, short), 1, "tcp-2h udp-10s-30s")
	step(timed(), 0, "tcp-2h udp-10s-30s")
	if !s.Due().IsZero() {
		t.Error("something is due though only objects are left")
	}
	step(timed(short), 0, "tcp-2h udp-10s-30s")
	s = nft.Adopt(m, timed())
	step(timed(), 0, "tcp-2h udp-10s-30s")
	s = nft.Adopt(m, timed(long))
	step(timed(long), 0, "tcp-2h udp-10s-30s")

	// Another program: it has deleted an object, and then made one of the same name.
	delete(m.Table(timed().IPv4.ID()).Timeouts, "tcp-2h")
	s = nft.Adopt(m, timed(long))
	step(timed(long), 1, "tcp-2h udp-10s-30s")
	other := long
	other.Established = time.Hour
	m.Table(timed().IPv4.ID()).Timeouts["tcp-2h"] = other
	s = nft.Adopt(m, timed(short))
	step(timed(short), 0, "tcp-2h udp-10s-30s") // nobody wants it yet
	b, _ := s.Plan(timed(long), now)
	if !strings.Contains(b.String(), "delete table ip t\n") || strings.Contains(b.String(), "delete table ip6 t\n") {
		t.Errorf("the table of the other values does not go alone:\n%s", b)
	}
	step(timed(long), 1, "tcp-2h")
}

// TestTimeoutsOfModel: the model refuses what the kernel refuses, and a packet gets the time-outs of its protocol only.
func TestTimeoutsOfModel(t *testing.T) {
	m := nft.NewModel()
	id := nft.TableID{Family: nft.IPv4, Name: "t"}
	object := nft.AddTimeout{Table: id, Timeout: nft.Timeout{Name: "tcp-2h", Protocol: 6, Established: 2 * time.Hour}}
	hook := &nft.Chain{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting},
		Rules: []nft.Rule{{nft.SetTimeout{Name: "tcp-2h"}}}}
	rule := []nft.Op{nft.AddChain{Table: id, Chain: hook}, nft.AddRules{Table: id, Chain: hook}}
	if err := strict.Apply(m, nft.Batch{Ops: append([]nft.Op{nft.AddTable{Table: id}}, rule...)}); !errors.Is(err,
		strict.ErrNotFound) {
		t.Errorf("a rule without its object: %v", err)
	}
	if err := strict.Apply(m, nft.Batch{Ops: append([]nft.Op{nft.AddTable{Table: id}, object}, rule...)}); err != nil {
		t.Error(err)
	}
	if err := strict.Apply(m, nft.Batch{Ops: []nft.Op{object}}); !errors.Is(err, strict.ErrExists) {
		t.Errorf("an object twice: %v", err)
	}
	for protocol, want := range map[uint8]string{6: "tcp-2h", 17: ""} {
		if got := m.Trace(nft.Packet{Src: netip.MustParseAddrPort("10.0.0.1:1"), Dst: netip.MustParseAddrPort("10.0.0.2:2"),
			Protocol: protocol}, nft.Host{Local: func(netip.Addr) bool { return false }}).Timeout; got != want {
			t.Errorf("protocol %d has the time-outs of %q, want %q", protocol, got, want)
		}
	}
}

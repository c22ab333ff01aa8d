package ruleset_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
)

// countedSnapshot has two Services at openAddress and restrictedAddress, the first with the
// given endpoints.
func countedSnapshot(endpoints ...string) service.Snapshot {
	b := snapshots.NewBuilder(service.Node{Name: "node", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}})
	first := withRanges("ns/first", netip.MustParseAddr("10.96.0.1"), openAddress, 1, 0)
	var list []service.Endpoint
	for _, e := range endpoints {
		list = append(list, service.Endpoint{Addr: netip.MustParseAddrPort(e), Node: "node-2", Ready: true, Serving: true})
	}
	first.Ports[0].Endpoints = service.MergeEndpoints(list)
	b.Set(first)
	b.Set(withRanges("ns/second", netip.MustParseAddr("10.96.0.2"), restrictedAddress, 1, 0))
	return b.Snapshot()
}

func countedProgram(counters bool, s service.Snapshot) *nft.Program {
	return ruleset.Compile(ruleset.Config{
		Table: ruleset.DefaultTable, Counters: counters,
	}, s)
}

// connections reads the counters of all frontends, and those of the endpoints of a Service.
func connections(t *testing.T, c *kernel.Conn, p *nft.Program, s service.Snapshot,
	of service.Name) (services, endpoints map[string]uint64) {
	t.Helper()
	services, endpoints = map[string]uint64{}, map[string]uint64{}
	for name, svc := range s.Services.All() {
		for _, place := range ruleset.CounterPlaces(svc, &svc.Ports[0]) {
			must(t, c.AllCounts(p.IPv4.ID(), p.IPv4.Set(place.Set), func(n kernel.Count) {
				if n.Key == place.Key {
					services[string(name)] += n.Packets
				}
			}))
			if name != of {
				continue
			}
			for set, keys := range place.Endpoints(svc, &svc.Ports[0]) {
				must(t, c.Counts(p.IPv4.ID(), p.IPv4.Set(set), keys, func(n kernel.Count) {
					endpoints[place.Endpoint(n.Key, n.Data).String()] += n.Packets
				}))
			}
		}
	}
	return services, endpoints
}

// Each new connection counts once for its Service and once for its endpoint. A change of one
// endpoint leaves the counters of others alone. Switching counters on or off makes the counted sets
// again, and nothing else: at most one packet for each processor does not reach an
// endpoint, and its client tries again.
func TestCounters(t *testing.T) {
	s := newSender(t)
	two := countedSnapshot("198.18.0.1:80", "198.18.0.2:80")
	off, on := countedProgram(false, two), countedProgram(true, two)
	must(t, s.c.Apply(load(off)))
	lost := 0
	end := s.sendMeanwhile(t, func() error {
		if _, err := s.send(20, inRanges(5), netip.AddrPortFrom(openAddress, firstPort), translated); err != nil {
			t.Log(err)
			lost++
		}
		return nil
	})
	s.become(t, on)
	s.become(t, off)
	state := s.become(t, on)
	end()
	if lost > 3 { // one thread sends
		t.Errorf("%d packets were lost in three changes", lost)
	}
	first, _ := connections(t, s.c, on, two, "ns/first")

	const n = 40
	s.time(t, n, inRanges(5), netip.AddrPortFrom(openAddress, firstPort), translated)
	s.time(t, n/2, inRanges(5), netip.AddrPortFrom(restrictedAddress, firstPort), translated)
	services, endpoints := connections(t, s.c, on, two, "ns/first")
	want := map[string]uint64{"ns/first": first["ns/first"] + n, "ns/second": n / 2}
	if diff := cmp.Diff(want, services); diff != "" {
		t.Errorf("connections of Services (-want +got):\n%s", diff)
	}
	if sum := endpoints["198.18.0.1:80"] + endpoints["198.18.0.2:80"]; sum != services["ns/first"] || len(endpoints) != 2 {
		t.Errorf("connections of endpoints: %v, want %d together", endpoints, services["ns/first"])
	}

	other := countedSnapshot("198.18.0.1:80", "198.18.0.3:80")
	replaced := countedProgram(true, other)
	b, _ := state.Plan(replaced, time.Time{})
	if size := b.Size(); size != 2*2 {
		t.Errorf("one replaced endpoint of two addresses touches %d objects:\n%s", size, b)
	}
	must(t, s.c.Apply(b))
	servicesAfter, endpointsAfter := connections(t, s.c, replaced, other, "ns/first")
	if diff := cmp.Diff(services, servicesAfter); diff != "" {
		t.Errorf("connections of Services after another endpoint came (-want +got):\n%s", diff)
	}
	wantEndpoints := map[string]uint64{"198.18.0.1:80": endpoints["198.18.0.1:80"], "198.18.0.3:80": 0}
	if diff := cmp.Diff(wantEndpoints, endpointsAfter); diff != "" {
		t.Errorf("connections of endpoints after another one came (-want +got):\n%s", diff)
	}
	have, err := s.c.Read(replaced)
	must(t, err)
	if !ruleset.ReadBackConfig(have, ruleset.DefaultTable).Counters {
		t.Error("the tables do not tell that connections are counted")
	}
}

// become puts another program in force, from what the kernel has. It fails if the table is replaced, or
// a set that does not count.
func (s *sender) become(t *testing.T, p *nft.Program) nft.State {
	t.Helper()
	have, err := s.c.Read(p)
	must(t, err)
	b, state := nft.Adopt(have, p).Plan(p, time.Time{})
	if b.Empty() {
		t.Error("nothing changes")
	}
	for _, op := range b.Ops {
		switch op := op.(type) {
		case nft.DeleteTable:
			t.Errorf("%s", op.Text())
		case nft.AddSet:
			if have.Table(op.Table).Sets[op.Set.Name].Set.Counter == op.Set.Counter {
				t.Errorf("%s", op.Text())
			}
		}
	}
	must(t, s.c.Apply(b))
	got, err := s.c.Read(p)
	must(t, err)
	if diff := check.Diff(p, got); diff != "" {
		t.Fatalf("wanted and read (-want +got):\n%s", diff)
	}
	return state
}

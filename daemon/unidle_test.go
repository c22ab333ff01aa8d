package daemon

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// idling is a cluster whose Services are idled, and a node's looks at its counters.
type idling struct {
	at  map[service.Name]time.Time
	now time.Time
	*unidler
}

func newIdling() *idling {
	i := &idling{at: map[service.Name]time.Time{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	i.unidler = newUnidler(func(name service.Name) time.Time { return i.at[name] })
	return i
}

// look returns what the next look asks for, ten seconds later, if these Services had a packet since the last one.
func (i *idling) look(cause ruleset.Cause, names ...service.Name) []service.Name {
	i.now = i.now.Add(10 * time.Second)
	l := traffic.Refusals{At: i.now}
	for _, name := range names {
		l.Services = append(l.Services, traffic.Refused{Subject: traffic.Subject{Name: name, Cause: cause}, Packets: 1})
	}
	l.Services = append(l.Services, traffic.Refused{Subject: traffic.Subject{Name: "ns/quiet", Cause: cause}})
	return i.wanted(l)
}

// TestUnidler: the first packet to an idled Service asks for its pods, and a later one asks again after half a minute.
// Nobody asks for pods of other Services, or before the time at which the Service was idled.
func TestUnidler(t *testing.T) {
	i := newIdling()
	want := func(what string, got []service.Name, want ...service.Name) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: asks for %q, want %q", what, got, want)
		}
	}
	i.at["ns/quiet"], i.at["ns/web"] = i.now, i.now
	want("dropped under policy Local", i.look(ruleset.NoLocalEndpoints, "ns/web"))
	want("one is idled", i.look(ruleset.NoEndpoints, "ns/other", "ns/web"), "ns/web")
	want("again", i.look(ruleset.NoEndpoints, "ns/web"))
	want("too early", i.look(ruleset.NoEndpoints))
	want("nobody heard", i.look(ruleset.NoEndpoints), "ns/web")
	want("nobody connects", i.look(ruleset.NoEndpoints))
	want("one more packet", i.look(ruleset.NoEndpoints, "ns/web"))
	delete(i.at, "ns/web")
	want("it has pods", i.look(ruleset.NoEndpoints, "ns/web"))
	want("it has pods for long", i.look(ruleset.NoEndpoints, "ns/web"))
	i.at["ns/web"] = i.now.Add(25 * time.Second) // by a clock that is ahead
	want("idled once more", i.look(ruleset.NoEndpoints))
	want("not idled yet", i.look(ruleset.NoEndpoints, "ns/web"))
	want("idled by now", i.look(ruleset.NoEndpoints), "ns/web")
}

// TestUnidlerHeld: a Service that holds connections asks for pods as one that is idled does, for as long as it holds
// any.
func TestUnidlerHeld(t *testing.T) {
	i := newIdling()
	look := func(packets uint64, held ...traffic.Held) []service.Name {
		i.now = i.now.Add(10 * time.Second)
		return i.wanted(traffic.Refusals{At: i.now, Held: held, Services: []traffic.Refused{
			{Subject: traffic.Subject{Name: "ns/web", Cause: ruleset.Held}, Packets: packets},
			{Subject: traffic.Subject{Name: "ns/plain", Cause: ruleset.NoEndpoints}, Packets: packets}}})
	}
	held := traffic.Held{Name: "ns/web", Connections: 1}
	for n, c := range []struct {
		got  []service.Name
		asks bool
	}{{look(1, held), true}, {look(1, held), false}, {look(0, held), false}, {look(0, held), true}, {look(0, held), false},
		{look(1), false}} {
		if c.asks != slices.Equal(c.got, []service.Name{"ns/web"}) || !c.asks && len(c.got) > 0 {
			t.Errorf("look %d: asks for %q", n, c.got)
		}
	}
	if len(i.waiting) > 0 {
		t.Errorf("with endpoints it waits for %v", i.waiting)
	}
}

// TestUnidlerTenants: a namespace whose Services are all asked for delays no other one. It asks at a bounded rate, for
// each of its Services in turn, and no packet is forgotten meanwhile.
func TestUnidlerTenants(t *testing.T) {
	i := newIdling()
	var flood []service.Name
	for n := range 60 {
		name := service.NewName("a-tenant", fmt.Sprint(n))
		i.at[name] = i.now
		flood = append(flood, name)
	}
	i.at["shop/web"], i.at["a-tenant/zzz"] = i.now, i.now
	asked, times, sum := i.look(ruleset.NoEndpoints, flood...), map[service.Name]int{}, 0
	for look := range 360 { // an hour
		for _, name := range asked {
			times[name]++
			sum++
		}
		for _, name := range flood { // idled again and again
			i.at[name] = i.now
		}
		switch look {
		case 3:
			asked = i.look(ruleset.NoEndpoints, append(slices.Clone(flood), "shop/web")...)
			if !slices.Contains(asked, "shop/web") {
				t.Errorf("the other tenant waits: %q", asked)
			}
		case 5:
			asked = i.look(ruleset.NoEndpoints, append(slices.Clone(flood), "a-tenant/zzz")...)
		default:
			asked = i.look(ruleset.NoEndpoints, flood...)
		}
	}
	if want := 20 + 120 + 1; sum < want-1 || sum > want {
		t.Errorf("asks %d times in an hour, want %d", sum, want)
	}
	for _, name := range append(flood, "a-tenant/zzz", "shop/web") {
		if n := times[name]; n < 1 || n > 3 {
			t.Errorf("asks %d times for %s", n, name)
		}
	}
	i.now = i.now.Add(time.Hour)
	asked = i.look(ruleset.NoEndpoints, append(slices.Clone(flood), "shop/web")...)
	if len(asked) != 20+1 || asked[1] != "shop/web" {
		t.Errorf("asks for %q, want the other tenant's in turn", asked)
	}
	i.now = i.now.Add(time.Hour)
	i.at = map[service.Name]time.Time{}
	i.look(ruleset.NoEndpoints, flood...)
	if len(i.waiting)+len(i.asked)+len(i.limits) > 0 {
		t.Errorf("it remembers %d, %d and %d", len(i.waiting), len(i.asked), len(i.limits))
	}
}

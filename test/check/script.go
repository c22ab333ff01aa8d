package check

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// Script is changes of a cluster, step by step.
type Script struct {
	Config ruleset.Config
	Steps  [][]Event
}

// Event sets or deletes a Service, or changes the node or the ServiceCIDRs. Events with
// different keys do not depend on each other.
type Event struct {
	key string
	// world and builder make the change.
	world   func(*world)
	builder func(*snapshots.Builder)
}

// world is all objects, as they are after some events.
type world struct {
	node     service.Node
	cidrs    []netip.Prefix
	services map[service.Name]*service.Service
}

// NewScript makes a random script of so many steps. Most steps change one Service, and some
// change many.
func NewScript(rng *rand.Rand, steps int) Script {
	config, _ := gen.Config(rng)
	config.Counters = rng.IntN(3) == 0
	s := Script{Config: config}
	node := gen.Node(rng)
	services := map[service.Name]*service.Service{}
	first := []Event{nodeEvent(node), cidrEvent(gen.ServiceCIDRs(rng))}
	for _, svc := range gen.Services(rng, &node) {
		services[svc.Name] = svc
		first = append(first, serviceEvent(svc.Name, svc))
	}
	s.Steps = append(s.Steps, first)
	for len(s.Steps) < steps {
		n := 1 + rng.IntN(3)
		if rng.IntN(6) == 0 {
			n = 20
		}
		var step []Event
		for range n {
			switch rng.IntN(20) {
			case 0:
				node = gen.Node(rng)
				step = append(step, nodeEvent(node))
			case 1:
				step = append(step, cidrEvent(gen.ServiceCIDRs(rng)))
			default:
				name := gen.Name(rng.IntN(14))
				switch old := services[name]; {
				case old == nil:
					services[name] = gen.NamedService(rng, name, gen.Everything())
				case rng.IntN(4) == 0:
					services[name] = nil
				default:
					services[name] = gen.Mutated(rng, old)
				}
				step = append(step, serviceEvent(name, services[name]))
			}
		}
		s.Steps = append(s.Steps, step)
	}
	return s
}

func nodeEvent(n service.Node) Event {
	return Event{"node", func(w *world) { w.node = n }, func(b *snapshots.Builder) { b.SetNode(n) }}
}

func cidrEvent(list []netip.Prefix) Event {
	return Event{"cidrs", func(w *world) { w.cidrs = list }, func(b *snapshots.Builder) { b.SetServiceCIDRs(list) }}
}

func serviceEvent(name service.Name, s *service.Service) Event {
	if s == nil {
		return Event{string(name), func(w *world) { delete(w.services, name) }, func(b *snapshots.Builder) { b.Delete(name) }}
	}
	return Event{string(name), func(w *world) { w.services[name] = s }, func(b *snapshots.Builder) { b.Set(s) }}
}

// shuffled is the events in another order. Those with the same key keep theirs.
func shuffled(rng *rand.Rand, events []Event) []Event {
	left := map[string][]Event{}
	for _, e := range events {
		left[e.key] = append(left[e.key], e)
	}
	var list []Event
	for len(left) > 0 {
		keys := slices.Sorted(maps.Keys(left))
		key := keys[rng.IntN(len(keys))]
		list = append(list, left[key][0])
		if left[key] = left[key][1:]; len(left[key]) == 0 {
			delete(left, key)
		}
	}
	return list
}

// Final is the cluster after the last step, built from scratch, and the settings.
func (s *Script) Final() (*service.Snapshot, *ruleset.Config) {
	w := world{services: map[service.Name]*service.Service{}}
	for _, step := range s.Steps {
		for _, e := range step {
			e.world(&w)
		}
	}
	snapshot := w.builder(nil).Snapshot()
	return &snapshot, &s.Config
}

// builder has the whole world, built in a random order; a nil rng takes that of the names.
func (w *world) builder(rng *rand.Rand) *snapshots.Builder {
	b := snapshots.NewBuilder(w.node)
	b.SetServiceCIDRs(w.cidrs)
	names := slices.Sorted(maps.Keys(w.services))
	if rng != nil {
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	}
	for _, name := range names {
		b.Set(w.services[name])
	}
	return b
}

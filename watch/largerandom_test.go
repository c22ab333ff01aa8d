package watch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
)

// largeObjects are the slices of a few Services with overlapping endpoints. A pipeline
// sees each change, and one object holds the present state.
type largeObjects struct {
	*pipeline
	rng      *rand.Rand
	slices   map[string]*discoveryv1.EndpointSlice
	services map[service.Name]*corev1.Service
	kind     int
}

// step changes an object or a few.
func (o *largeObjects) step() {
	if o.rng.IntN(12) == 0 {
		o.kind = o.rng.IntN(4)
	}
	for range 1 + o.rng.IntN(3) {
		if i := o.rng.IntN(2); o.rng.IntN(8) == 0 {
			s := uniformService(i)
			s.Spec.ExternalIPs = []string{fmt.Sprint("198.51.100.", i)}
			if o.rng.IntN(2) == 0 {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
			o.services[service.NewName(s.Namespace, s.Name)] = s
			o.index.setService(convertService(s))
			if o.rng.IntN(8) == 0 {
				delete(o.services, service.NewName(s.Namespace, s.Name))
				o.index.deleteService(service.NewName(s.Namespace, s.Name))
			}
			continue
		}
		o.stepSlice(o.rng.IntN(2), fmt.Sprint("slice-", o.rng.IntN(6)))
	}
}

// stepSlice changes some of a slice's endpoints: mostly a few, at times all.
func (o *largeObjects) stepSlice(owner int, name string) {
	s := uniformSlice(owner, 0)
	s.Namespace, s.Name = "ns-"+fmt.Sprint(owner), fmt.Sprint(name, "-of-", owner)
	last := o.slices[s.Name]
	switch {
	case last == nil || o.rng.IntN(20) == 0:
		for range o.rng.IntN(400) {
			s.Endpoints = append(s.Endpoints, o.endpoint())
		}
	case o.rng.IntN(20) == 0:
		delete(o.slices, s.Name)
		o.index.deleteSlice(service.NewName(s.Namespace, s.Name))
		return
	default:
		s.Endpoints = slices.Clone(last.Endpoints)
		for range 1 + o.rng.IntN(4) {
			n := len(s.Endpoints)
			switch o.rng.IntN(3) {
			case 0:
				s.Endpoints = append(s.Endpoints, o.endpoint())
			case 1:
				s.Endpoints = s.Endpoints[:max(0, n-1)]
			case 2:
				if n > 0 {
					s.Endpoints[o.rng.IntN(n)] = o.endpoint()
				}
			}
		}
	}
	o.slices[s.Name] = s
	o.index.setSlice(convertSlice(s))
}

// endpoint returns one of some hundred endpoints, mostly in the condition that is usual
// at present.
func (o *largeObjects) endpoint() discoveryv1.Endpoint {
	kind := o.kind
	if o.rng.IntN(300) == 0 {
		kind = o.rng.IntN(4)
	}
	node := fmt.Sprint("node-", o.rng.IntN(5))
	ready, terminating := kind != 1, kind == 1
	yes := true
	e := discoveryv1.Endpoint{
		Addresses:  []string{fmt.Sprintf("10.1.%d.%d", o.rng.IntN(6), o.rng.IntN(256))},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &yes, Terminating: &terminating},
		NodeName:   &node,
	}
	if kind == 2 {
		e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: fmt.Sprint("node-", o.rng.IntN(3))}}}
	}
	return e
}

// fresh returns the index that a start makes from the objects.
func (o *largeObjects) fresh() *index {
	ix := newIndex("node-0")
	for _, s := range o.services {
		ix.setService(convertService(s))
	}
	for _, s := range o.slices {
		ix.setSlice(convertSlice(s))
	}
	return ix
}

// TestLargeServices: the Services have hundreds of endpoints in overlapping slices. Step
// by step, the stages make the same snapshot, program and tables as a start with the same
// objects. Each target that stays keeps its index, and a restart writes nothing.
func TestLargeServices(t *testing.T) {
	n, steps := uint64(4), 60
	if testing.Short() {
		n, steps = 1, 12
	}
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			o := &largeObjects{newPipeline(), rand.New(rand.NewPCG(seed, 11)), map[string]*discoveryv1.EndpointSlice{},
				map[service.Name]*corev1.Service{}, 0}
			for i := range 2 {
				s := uniformService(i)
				o.services[service.NewName(s.Namespace, s.Name)] = s
				o.index.setService(convertService(s))
			}
			config := ruleset.Config{Table: ruleset.DefaultTable}
			m, long := nft.NewModel(), 0
			for step := range steps {
				o.step()
				batch := o.change()
				want, got := o.fresh().flush(), o.index.flush()
				if want, got := want.String(), got.String(); want != got {
					t.Fatalf("step %d, snapshot (-fresh +index):\n%s", step, cmp.Diff(want, got))
				}
				program := o.compiler.Compile(got)
				fresh := ruleset.Compile(config, want)
				if want, got := fresh.String(), program.String(); step%4 == 0 && want != got {
					t.Fatalf("step %d, program (-fresh +compiler):\n%s", step, cmp.Diff(want, got))
				}
				before := targetsByPool(m)
				if err := strict.Apply(m, batch); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if diff := check.Diff(fresh, m); diff != "" {
					t.Fatalf("step %d, tables (-want +got):\n%s", step, diff)
				}
				stayed(t, step, before, targetsByPool(m))
				if again, _ := nft.Adopt(m, fresh).Plan(fresh, time.Time{}); !again.Empty() {
					t.Fatalf("step %d: a restart writes\n%s", step, again)
				}
				if o.rng.IntN(15) == 0 {
					o.state = nft.Adopt(m, program)
				}
				for _, s := range got.Services.All() {
					if s.Ports[0].Endpoints.Long() {
						long++
					}
				}
			}
			if long < steps*5/6 {
				t.Errorf("only %d long lists", long)
			}
		})
	}
}

// targetsByPool returns the targets of the services' pools, by the pool and the index.
func targetsByPool(m *nft.Model) map[nft.Value][]nft.Value {
	all := map[nft.Value][]nft.Value{}
	c := m.Table(nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable})
	if c == nil {
		return all
	}
	for key, e := range c.Sets["endpoints"].Elements {
		pool, i := key.SplitIndex()
		if short := i + 1 - len(all[pool]); short > 0 {
			all[pool] = append(all[pool], make([]nft.Value, short)...)
		}
		all[pool][i] = e.Data
	}
	return all
}

// stayed fails unless each target that stays in a pool keeps its index, if the pool still
// has that index.
func stayed(t *testing.T, step int, before, after map[nft.Value][]nft.Value) {
	t.Helper()
	for pool, targets := range before {
		now := map[nft.Value]bool{}
		for _, target := range after[pool] {
			now[target] = true
		}
		for i, target := range targets {
			if i < len(after[pool]) && now[target] && after[pool][i] != target {
				t.Fatalf("step %d: a target left its index %d", step, i)
			}
		}
	}
}

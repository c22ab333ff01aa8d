package watch

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"nftproxy/conntrack"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// pipeline has all stages of a change in the process, from the API's object to the batch
// for the kernel.
type pipeline struct {
	index     *index
	compiler  *ruleset.Compiler
	state     nft.State
	conntrack *conntrack.Index
	spent     map[string][]time.Duration
	last      time.Time
}

func newPipeline() *pipeline {
	return &pipeline{
		index:     newIndex("node-0"),
		compiler:  ruleset.NewCompiler(ruleset.Config{Table: ruleset.DefaultTable}),
		conntrack: conntrack.NewIndex(conntrack.Options{}),
		spent:     map[string][]time.Duration{},
	}
}

func (p *pipeline) stage(name string) {
	now := time.Now()
	if name != "" {
		p.spent[name] = append(p.spent[name], now.Sub(p.last))
	}
	p.last = now
}

// change takes new versions of slices through all stages and returns the batch.
func (p *pipeline) change(endpointSlices ...*discoveryv1.EndpointSlice) nft.Batch {
	p.stage("")
	var list []*sliceObject
	for _, s := range endpointSlices {
		list = append(list, convertSlice(s))
	}
	p.stage("convert")
	for _, s := range list {
		p.index.setSlice(s)
	}
	snapshot := p.index.flush()
	p.stage("index")
	program := p.compiler.Compile(snapshot)
	p.stage("compile")
	batch, state := p.state.Plan(program, time.Time{})
	p.state = state
	p.stage("plan")
	p.conntrack.Update(snapshot)
	p.conntrack.Forget(p.conntrack.Epoch())
	p.stage("conntrack")
	return batch
}

// largeService makes one Service with the given number of endpoints, in slices of at most
// the given size and on the given number of nodes. It returns the pipeline too.
func largeService(endpoints, perSlice, nodes int, affinity time.Duration) (*pipeline, []*discoveryv1.EndpointSlice) {
	p := newPipeline()
	object := convertService(uniformService(0))
	object.bare.AffinityTimeout = affinity
	p.index.setService(object)
	var list []*discoveryv1.EndpointSlice
	for at := 0; at < endpoints; at += perSlice {
		s := uniformSlice(0, 0)
		s.Name = fmt.Sprint("slice-", len(list))
		for i := at; i < min(at+perSlice, endpoints); i++ {
			e := uniformSlice(0, 1).Endpoints[0]
			// The slices of a Service overlap. In real clusters they do so after some
			// time.
			n := (i*7919)%endpoints + 1
			e.Addresses = []string{fmt.Sprintf("10.%d.%d.%d", 1+n>>16, n>>8&255, n&255)}
			node := fmt.Sprint("node-", n%nodes)
			e.NodeName = &node
			s.Endpoints = append(s.Endpoints, e)
		}
		list = append(list, s)
	}
	p.change(list...)
	return p, list
}

// replaced returns the slice with another address for one of its endpoints.
func replaced(s *discoveryv1.EndpointSlice, i int, addr string) *discoveryv1.EndpointSlice {
	next := *s
	next.Endpoints = slices.Clone(s.Endpoints)
	next.Endpoints[i].Addresses = []string{addr}
	return &next
}

// TestChangeOfLargeService counts the bytes that all stages together allocate for one
// replaced endpoint. A Service of 10,000 endpoints takes little more than one of 1,000.
// It takes little more if all of them are on the node.
func TestChangeOfLargeService(t *testing.T) {
	cost := func(endpoints, nodes int) float64 {
		p, list := largeService(endpoints, 100, nodes, 0)
		at := list[len(list)/2]
		versions := [2]*discoveryv1.EndpointSlice{replaced(at, 50, "10.0.200.200"), at}
		const runs = 50
		var before, after runtime.MemStats
		for i := range 2 + runs {
			if i == 2 { // from here on every stage remembers the earlier state
				runtime.ReadMemStats(&before)
			}
			if size := p.change(versions[i%2]).Size(); size < 2 || size > 4 {
				t.Fatalf("%d objects written", size)
			}
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / runs
	}
	for _, nodes := range []int{1000, 1} {
		small, large := cost(1_000, nodes), cost(10_000, nodes)
		t.Logf("on %d nodes: %.0f bytes of 1,000 endpoints, %.0f of 10,000", nodes, small, large)
		if large > 2.5*small {
			t.Errorf("on %d nodes a change takes %.0f bytes where there are 1,000 endpoints, %.0f where there are 10,000", nodes,
				small, large)
		}
	}
}

// BenchmarkLargeService replaces one endpoint of a Service. It reports the median time of
// each stage, in microseconds.
func BenchmarkLargeService(b *testing.B) {
	for _, c := range []struct {
		endpoints, perSlice, nodes int
		affinity                   time.Duration
	}{
		{10, 10, 1000, 0}, {1_000, 100, 1000, 0}, {10_000, 100, 1000, 0}, {10_000, 1_000, 1000, 0}, {50_000, 1_000, 1000, 0},
		{10_000, 1_000, 1, 0}, {10_000, 1_000, 1000, time.Hour},
	} {
		name := fmt.Sprintf("%d/by%d/nodes=%d", c.endpoints, c.perSlice, c.nodes)
		if c.affinity > 0 {
			name += "/affinity"
		}
		b.Run(name, func(b *testing.B) {
			p, list := largeService(c.endpoints, c.perSlice, c.nodes, c.affinity)
			at := list[len(list)/2]
			i := len(at.Endpoints) / 2
			versions := [2]*discoveryv1.EndpointSlice{replaced(at, i, "10.0.200.200"), at}
			for _, v := range versions {
				p.change(v)
			}
			clear(p.spent)
			b.ReportAllocs()
			n := 0
			for ; b.Loop(); n++ {
				if size := p.change(versions[n%2]).Size(); size < 2 || size > 4 {
					b.Fatalf("%d objects written", size)
				}
			}
			var all time.Duration
			for stage, spent := range p.spent {
				slices.Sort(spent)
				median := spent[len(spent)/2]
				b.ReportMetric(float64(median.Nanoseconds())/1e3, stage+"-us")
				all += median
			}
			b.ReportMetric(float64(all.Nanoseconds())/1e3, "all-us")
		})
	}
}

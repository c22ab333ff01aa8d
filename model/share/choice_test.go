package share_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/sorted"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})

// seeds runs the test with n sources of randomness, always the same. With -short
// it takes every tenth of them.
func seeds(t *testing.T, n int, test func(t *testing.T, rng *rand.Rand)) {
	if testing.Short() {
		n = (n + 9) / 10
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// someEndpoint is one of a few hundred, or thousand, mostly of one kind: so that
// it happens that all are ready, or none, or all have hints.
func someEndpoint(rng *rand.Rand, kind, n int) service.Endpoint {
	e := service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), uint16(80+n%2)),
		Node: []string{"", "node-1", "node-2", "node-3", "node-0"}[rng.IntN(5)]}
	if n%5 == 0 {
		e.Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00::%x", n)), 80)
	}
	if rng.IntN(400) == 0 {
		kind = rng.IntN(5)
	}
	switch kind {
	case 0:
		e.Ready, e.Serving = true, true
	case 1:
		e.Serving, e.Terminating = true, true
	case 2:
		e.Ready, e.Nodes, e.Zones = true, service.NewHints([]string{fmt.Sprint("node-", rng.IntN(3))}), "zone-1"
	case 3:
		e.Ready, e.Zones = true, service.NewHints([]string{fmt.Sprint("zone-", rng.IntN(3))})
	}
	return e
}

// TestChooseAfter: what is chosen step by step equals what is chosen from
// nothing, for long lists and short ones, whatever the endpoints, the policies,
// and the node become.
func TestChooseAfter(t *testing.T) {
	seeds(t, 24, func(t *testing.T, rng *rand.Rand) {
		var last [2]share.Choice
		var list service.Endpoints
		s := service.Service{}
		node := service.Node{Name: "node-0", Zone: "zone-1"}
		kind := rng.IntN(5)
		keys := 200 << rng.IntN(4)
		for step := range 40 {
			m := map[int]service.Endpoint{}
			size := 1 << rng.IntN(8)
			if step == 0 {
				size = keys
			}
			if rng.IntN(15) == 0 {
				kind, size = rng.IntN(5), 2*keys
			}
			for range size {
				n := rng.IntN(keys)
				m[n] = someEndpoint(rng, kind, n)
			}
			var came, gone []service.Endpoint
			for _, e := range m {
				if rng.IntN(4) == 0 {
					gone = append(gone, e)
				} else {
					came = append(came, e)
				}
			}
			list = edit(list, came, gone)
			switch rng.IntN(10) {
			case 0:
				s.InternalPolicy = !s.InternalPolicy
			case 1:
				s.ExternalPolicy = !s.ExternalPolicy
			case 2:
				node.Zone = fmt.Sprint("zone-", rng.IntN(4))
			case 3:
				node.Name = fmt.Sprint("node-", rng.IntN(4))
			case 4:
				node.PodCIDRs = [][]netip.Prefix{nil, {netip.MustParsePrefix("10.0.0.0/25")}, {netip.MustParsePrefix("10.0.1.0/24"),
					netip.MustParsePrefix("fd00::/121")}}[rng.IntN(3)]
			}
			node := node // a choice keeps its node
			p := service.Port{Endpoints: list, NodePort: 30000}
			for i, family := range ip.Families() {
				want := share.Choose(&s, &p, &node, family)
				if n := share.Count(&s, &p, &node, family); n.Cluster != want.Cluster.Len() || n.Local != want.Local.Len() ||
					(n.Ready+n.Draining > 0) != want.Anywhere {
					t.Fatalf("step %d: Count says %+v, Choose has %d and %d, anywhere %t", step, n, want.Cluster.Len(),
						want.Local.Len(), want.Anywhere)
				}
				last[i] = share.ChooseAfter(&s, &last[i], &p, &node, family)
				if diff := gocmp.Diff(choiceOf(want), choiceOf(last[i]), byChoice, byValue); diff != "" {
					t.Fatalf("step %d (-Choose +ChooseAfter):\n%s", step, diff)
				}
				if diff := gocmp.Diff(onNode(want), onNode(last[i]), byValue); diff != "" {
					t.Fatalf("step %d, on the node (-Choose +ChooseAfter):\n%s", step, diff)
				}
				if diff := gocmp.Diff(addresses(want.MaybeOnNode), addresses(last[i].MaybeOnNode), byValue); diff != "" {
					t.Fatalf("step %d, perhaps on the node (-Choose +ChooseAfter):\n%s", step, diff)
				}
			}
		}
	})
}

func edit(list service.Endpoints, set, gone []service.Endpoint) service.Endpoints {
	for e := range service.MergeEndpoints(set).All() {
		list = list.Edit([]sorted.Edit[service.Endpoint]{{Item: e}})
	}
	var edits []sorted.Edit[service.Endpoint]
	for e := range service.MergeEndpoints(gone).All() {
		edits = append(edits, sorted.Edit[service.Endpoint]{Item: e, Gone: true})
	}
	return list.Edit(edits)
}

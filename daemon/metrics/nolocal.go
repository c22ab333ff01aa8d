package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// noLocal counts the Service ports with traffic policy Local that have endpoints, but none on this node: the node drops
// their connections. The cost of a sync grows with what has changed since the last one.
type noLocal struct {
	internal, external byFamily[prometheus.Gauge]

	mu       sync.Mutex
	families ip.PerFamily[noLocalFamily]
}

// noLocalFamily is the snapshot in force in one family, with the numbers of ports, by the policy that is Local.
type noLocalFamily struct {
	snapshot           service.Snapshot
	internal, external int
}

// observe takes note of a sync, in the families where its program is in force.
func (n *noLocal) observe(s *proxy.Sync) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, f := range nft.Families() {
		if !s.InForce(f) {
			continue
		}
		family := n.families.Of(f)
		family.update(s.Snapshot, f)
		n.internal[i]().Set(float64(family.internal))
		n.external[i]().Set(float64(family.external))
	}
}

func (f *noLocalFamily) update(s service.Snapshot, family ip.Family) {
	if n := f.snapshot.Node; n == nil || s.Node == nil || n.Name != s.Node.Name {
		*f = noLocalFamily{} // The counts are those of another node.
	}
	for c := range treap.Diff(f.snapshot.Services, s.Services) {
		if c.HadOld {
			f.add(c.Old, f.snapshot.Node, family, -1)
		}
		if c.HasNew {
			f.add(c.New, s.Node, family, 1)
		}
	}
	f.snapshot = s
}

// add counts the ports of a Service; a sign of -1 takes them off.
func (f *noLocalFamily) add(s *service.Service, node *service.Node, family ip.Family, sign int) {
	if !s.InFamily(family) || s.InternalPolicy != service.Local && s.ExternalPolicy != service.Local {
		return
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		internal, external := obstacle.NoneHere(s, p, node, family)
		if internal {
			f.internal += sign
		}
		if external {
			f.external += sign
		}
	}
}

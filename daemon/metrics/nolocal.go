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

// noLocal counts the Service ports with traffic policy Local that have endpoints, but
// none on this node: the node drops their connections. The cost of a sync grows with
// what has changed since the last one.
type noLocal struct {
	internal, external byFamily[prometheus.Gauge]

	mu       sync.Mutex
	families ip.PerFamily[noLocalFamily]
}

// noLocalFamily is the snapshot in force in one family, with its count.
type noLocalFamily struct {
	snapshot service.Snapshot
	ports    noLocalPorts
}

// noLocalPorts are the numbers of ports, by the policy that is Local.
type noLocalPorts struct{ internal, external int }

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
		n.internal[i]().Set(float64(family.ports.internal))
		n.external[i]().Set(float64(family.ports.external))
	}
}

// update follows a snapshot.
func (f *noLocalFamily) update(s service.Snapshot, family ip.Family) {
	before := f.snapshot
	if before.Node == nil || s.Node == nil || before.Node.Name != s.Node.Name {
		before = service.Snapshot{} // The counts are those of another node.
		f.ports = noLocalPorts{}
	}
	for c := range treap.Diff(before.Services, s.Services) {
		if c.HadOld {
			f.ports.add(c.Old, before.Node, family, -1)
		}
		if c.HasNew {
			f.ports.add(c.New, s.Node, family, 1)
		}
	}
	f.snapshot = s
}

// add counts the ports of a Service; a sign of -1 takes them off.
func (n *noLocalPorts) add(s *service.Service, node *service.Node, family ip.Family, sign int) {
	if !s.InFamily(family) || s.InternalPolicy != service.Local && s.ExternalPolicy != service.Local {
		return
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		internal, external := obstacle.NoneHere(s, p, node, family)
		if internal {
			n.internal += sign
		}
		if external {
			n.external += sign
		}
	}
}

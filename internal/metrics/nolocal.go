package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/internal/proxy"
	"nftproxy/internal/service"
	"nftproxy/internal/treap"
	"nftproxy/nft"
)

// noLocal counts service ports that policy Local leaves without an endpoint on
// this node while there are some elsewhere, so that their connections are
// dropped here. A turn costs what has changed since the last.
type noLocal struct {
	gauge *prometheus.GaugeVec

	mu       sync.Mutex
	families [2]noLocalFamily
}

// noLocalFamily is what is in force in one family.
type noLocalFamily struct {
	snapshot service.Snapshot
	ports    noLocalPorts
}

// noLocalPorts are numbers of ports by whose policy it is.
type noLocalPorts struct{ internal, external int }

// observe takes note of what is in force.
func (n *noLocal) observe(s *proxy.Sync) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, f := range nft.Families() {
		if !s.InForce(f) {
			continue
		}
		family := &n.families[i]
		family.update(s.Snapshot, f == nft.IPv6)
		n.gauge.WithLabelValues("internal", proxy.IPFamily(f)).Set(float64(family.ports.internal))
		n.gauge.WithLabelValues("external", proxy.IPFamily(f)).Set(float64(family.ports.external))
	}
}

func (f *noLocalFamily) update(s service.Snapshot, v6 bool) {
	before := f.snapshot
	if before.Node == nil || s.Node == nil || before.Node.Name != s.Node.Name {
		before = service.Snapshot{} // every endpoint may be on another node now
		f.ports = noLocalPorts{}
	}
	for c := range treap.Diff(before.Services, s.Services) {
		if c.HadOld {
			f.ports.add(c.Old, before.Node, v6, -1)
		}
		if c.HasNew {
			f.ports.add(c.New, s.Node, v6, 1)
		}
	}
	f.snapshot = s
}

func (n *noLocalPorts) add(s *service.Service, node *service.Node, v6 bool, sign int) {
	if !s.InFamily(v6) || s.InternalPolicy != service.Local && s.ExternalPolicy != service.Local {
		return
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if c := s.Choose(p, node, v6); len(c.Local) > 0 || !c.Anywhere {
			continue
		}
		if s.InternalPolicy == service.Local {
			n.internal += sign
		}
		if s.ExternalPolicy == service.Local && s.External(p, v6) {
			n.external += sign
		}
	}
}

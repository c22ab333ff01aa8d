package ejection

import (
	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// View is what the machine has to know of the Services: the ports with an endpoint that matters.
type View struct {
	// Node is the name of this node.
	Node  string
	Ports []Port
	// Others has TCP endpoints on other nodes, of each node at most one, and of each namespace a few.
	Others []service.Endpoint
}

// Port is a Service port in one family.
type Port struct {
	Service *service.Service
	Port    *service.Port
	Mode    Mode
	// Ready has the endpoints that the API has as ready.
	Ready []service.Endpoint
}

// mostOthers bounds View.Others.
const mostOthers = 32

// Look visits all endpoints of the snapshot, and returns the ports of which one is a wanted target or on one of the nodes.
// It leaves out ports whose mode is Off.
func Look(s service.Snapshot, mode func(*service.Service) Mode, wanted func(Target) bool, nodes map[string]bool) View {
	v := View{Node: s.Node.Name}
	seen := map[string]bool{}
	from := map[string]int{}
	for _, svc := range s.Services.All() {
		m := mode(svc)
		namespace, _ := svc.Name.Split()
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if p.IsRange() {
				continue // Its endpoints have no port to look at; they are those of the other ports.
			}
			var matters ip.PerFamily[bool]
			for chunk := range p.Endpoints.Chunks() {
				for j := range chunk {
					e := &chunk[j]
					if !there(e) {
						continue
					}
					if p.Protocol == service.TCP && len(v.Others) < mostOthers && from[namespace] < mostOthers/8 && e.Node != v.Node && !seen[nodeOf(e)] {
						seen[nodeOf(e)] = true
						from[namespace]++
						v.Others = append(v.Others, *e)
					}
					if m != Off && (wanted(Target{p.Protocol, e.Addr}) || nodes[e.Node]) {
						*matters.Of(ip.Of(e.Addr.Addr())) = true
					}
				}
			}
			for _, family := range ip.Families() {
				if *matters.Of(family) {
					v.Ports = append(v.Ports, Port{svc, p, m, ready(p, family)})
				}
			}
		}
	}
	return v
}

// there says that the API has the endpoint as ready.
func there(e *service.Endpoint) bool { return e.Ready || e.Silent }

// ready returns the endpoints of a family that the API has as ready.
func ready(p *service.Port, family ip.Family) (list []service.Endpoint) {
	for e := range p.Endpoints.All() {
		if there(&e) && family.Has(e.Addr.Addr()) {
			list = append(list, e)
		}
	}
	return list
}

// nodeOf names the node of an endpoint. One without a nodeName counts as a node of its own.
func nodeOf(e *service.Endpoint) string {
	if e.Node == "" {
		return e.Addr.Addr().String()
	}
	return e.Node
}

// local says that some connection to the port may only go to endpoints on the node.
func (p *Port) local() bool {
	return p.Service.InternalPolicy == service.Local || p.Service.ExternalPolicy == service.Local
}

func (p *Port) target(e *service.Endpoint) Target { return Target{p.Port.Protocol, e.Addr} }

// namespace is that of the Service.
func (p *Port) namespace() string {
	namespace, _ := p.Service.Name.Split()
	return namespace
}

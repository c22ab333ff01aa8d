package ruleset

import (
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// Feeds says whether a chain with that name serves Services by least connections.
func Feeds(chain string) bool {
	s, ok := parseShared(chain)
	return ok && s.balance == service.ByLeastConnections
}

// ReadSlots returns the slots of Services by least connections, as tables that were read from a kernel have them; those
// of a port whose number no table tells by its node port. The node must have a name.
func ReadSlots(m *nft.Model, table string, node *service.Node) map[service.Name]service.Slotted {
	all := map[service.Name]service.Slotted{}
	if !feeds(m, table) {
		return all
	}
	_, r := readTables(m, table, node)
	for name, s := range r.services {
		if s.Service.Options.Balance == service.ByLeastConnections {
			all[name] = s.slotted()
		}
	}
	return all
}

// slotted returns the slots that the Service's rows have.
func (s *Served) slotted() service.Slotted {
	all := service.Slotted{}
	for _, p := range s.Ports {
		at := p.At
		if !p.IsRange() && !slices.ContainsFunc(p.Frontends, func(f *Frontend) bool { return f.servicePort != 0 }) {
			at = p.AtNodePort
		}
		for e := range p.Endpoints.All() {
			if e.Slots != (service.Slots{}) {
				all[at(e.Addr)] = e.Slots
			}
		}
	}
	return all
}

func feeds(m *nft.Model, table string) bool {
	for _, f := range nft.Families() {
		if c := m.Table(nft.TableID{Family: f, Name: table}); c != nil && Readable(c) {
			for name := range c.Chains {
				if Feeds(name) {
					return true
				}
			}
		}
	}
	return false
}

// WithSlots returns a snapshot whose Services by least connections have the slots that tables have, as far as they may:
// the rules of it differ from the tables only where these are wrong.
func WithSlots(s service.Snapshot, m *nft.Model, table string) service.Snapshot {
	edits := map[service.Name]*service.Service{}
	for name, slots := range ReadSlots(m, table, s.Node) {
		if svc := s.Services.At(name); svc != nil {
			edits[name] = share.WithSlots(svc, slots)
		}
	}
	s.Services = s.Services.Apply(treap.Edits(edits))
	return s
}

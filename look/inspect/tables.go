// Package inspect makes rows: what nftproxy's tables and connection tracking hold of
// Services, endpoints, chains and remembered clients, in the form that commands and pages
// print. The JSON names of the rows' fields are promised to users: later versions may
// add fields, but do not change these.
//
// The rows are made by pure functions. What reads the kernel and the objects for them is in read.go, source.go and
// flows.go. The package prints nothing but notes, and does not judge whether the tables are right.
package inspect

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// Tables are nftproxy's tables of one node, as they were read, and what they say of
// Services.
type Tables struct {
	// Snapshot is what ruleset.ReadBack makes of the tables. conntrack.Index judges
	// flows by it.
	Snapshot service.Snapshot
	// Adjustments are the endpoints that have less than their weight in the tables, which do not have those without any.
	Adjustments service.Adjustments

	contents []*nft.Contents
	// services are sorted by namespace and name.
	services []*ruleset.Served
	// held has the connections of Services that are held; nil if nobody has read them.
	held map[service.Name]Held
	// nodePorts are the addresses that serve node ports, by the tables.
	nodePorts service.NodePortAddresses
}

// NewTables reads the Services in tables of that name. The node must have a name, and its
// HostAddresses. The cost grows with the tables.
func NewTables(m *nft.Model, name string, node *service.Node) *Tables {
	t := &Tables{nodePorts: ruleset.ReadBackConfig(m, name).NodePortAddresses}
	t.Snapshot, t.services = ruleset.ReadServed(m, name, node)
	slices.SortFunc(t.services, func(a, b *ruleset.Served) int { return compareNames(a.Service.Name, b.Service.Name) })
	for _, f := range nft.Families() {
		if c := m.Table(nft.TableID{Family: f, Name: name}); c != nil {
			t.contents = append(t.contents, c)
		}
	}
	return t
}

// compareNames orders names by namespace, then by name within it.
func compareNames(a, b service.Name) int {
	spaceA, nameA := a.Split()
	spaceB, nameB := b.Split()
	return cmp.Or(strings.Compare(spaceA, spaceB), strings.Compare(nameA, nameB))
}

// Names returns the names of the Services, sorted by namespace and name.
func (t *Tables) Names() []service.Name {
	names := make([]service.Name, len(t.services))
	for i, s := range t.services {
		names[i] = s.Service.Name
	}
	return names
}

// Selection selects rows. A zero field selects all.
type Selection struct {
	Namespace string
	// Services are Services by their names. One without namespace is selected in every
	// namespace.
	Services []service.Name
	// Chains are chains by their names; only ChainRows looks at them.
	Chains []string
	// Address selects Services that have the address, endpoints at it, clients with it,
	// and chains of such Services. An address of the node selects node ports too.
	Address netip.Addr
	// Port selects frontends with the port, and endpoints at it. With Address, one
	// frontend or endpoint must have both.
	Port uint16
}

// hasEndpoint says whether the selection has endpoints at the address and port.
func (s *Selection) hasEndpoint(a netip.AddrPort) bool {
	return (!s.Address.IsValid() || s.Address == a.Addr()) && (s.Port == 0 || s.Port == a.Port())
}

// Unknown returns an *UnknownError about the names in the selection that the tables do not have, or nil.
func (t *Tables) Unknown(s Selection) error {
	chains := map[string]bool{}
	for _, c := range t.contents {
		for name := range c.Chains {
			chains[name] = true
		}
	}
	missing := s.missing(slices.Values(t.Names()))
	for _, name := range s.Chains {
		if !chains[name] {
			missing = append(missing, fmt.Sprintf("chain %q", name))
		}
	}
	return unknown(missing, "the tables")
}

// selects says whether the selection has a frontend. Its Service must be in the selection.
func (t *Tables) selects(s *Selection, f *ruleset.Frontend) bool {
	if s.Port != 0 && s.Port != f.Port && !f.Ranges.Has(s.Port) {
		return false
	}
	switch {
	case !s.Address.IsValid():
		return true
	case f.IsNodePort():
		return f.Family.Has(s.Address) && t.servesNodePorts(s.Address)
	}
	return s.Address == f.Addr
}

// selectsService says whether the selection has the Service.
func (t *Tables) selectsService(s *Selection, svc *ruleset.Served) bool {
	if !s.Has(svc.Service.Name) {
		return false
	}
	if s.Port == 0 && (!s.Address.IsValid() || slices.Contains(svc.ClusterIPs(), s.Address)) {
		return true
	}
	return slices.ContainsFunc(svc.Ports, func(p *ruleset.ServedPort) bool { return t.selectsPort(s, p) })
}

// ports yields the ports of the selected Services, also those of which the selection has no frontend.
func (t *Tables) ports(s *Selection) iter.Seq2[*service.Service, *ruleset.ServedPort] {
	return func(yield func(*service.Service, *ruleset.ServedPort) bool) {
		for _, svc := range t.services {
			if !s.Has(svc.Service.Name) {
				continue
			}
			for _, p := range svc.Ports {
				if !yield(svc.Service, p) {
					return
				}
			}
		}
	}
}

// selectsPort says whether the selection has a frontend of the port.
func (t *Tables) selectsPort(s *Selection, p *ruleset.ServedPort) bool {
	return slices.ContainsFunc(p.Frontends, func(f *ruleset.Frontend) bool { return t.selects(s, f) })
}

// servesNodePorts says whether node ports can be reached at the address of the node.
func (t *Tables) servesNodePorts(a netip.Addr) bool {
	if loopback, serves := t.nodePorts.Loopback(t.Snapshot.Node, ip.Of(a)); serves && a == loopback {
		return true
	}
	list, all := t.nodePorts.On(t.Snapshot.Node, ip.Of(a))
	if all {
		return !a.IsLoopback() && slices.Contains(t.Snapshot.Node.HostAddresses, a)
	}
	return slices.Contains(list, a)
}

// onNode says whether an endpoint is on the node.
func (t *Tables) onNode(p *service.Port, endpoint netip.AddrPort) bool {
	e := p.Endpoints.Find(service.Endpoint{Addr: endpoint})
	return e != nil && e.Node == t.Snapshot.Node.Name
}

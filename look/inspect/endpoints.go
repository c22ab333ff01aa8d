package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// EndpointRow is an endpoint of a Service port.
type EndpointRow struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// PortName, Protocol and Port are those of the Service port; see PortRow.
	PortName string         `json:"portName"`
	Protocol string         `json:"protocol"`
	Port     uint16         `json:"port"`
	Endpoint netip.AddrPort `json:"endpoint"`
	// Local says whether the endpoint is on this node; null if that is unknown, as it
	// is of a draining endpoint.
	Local *bool `json:"local"`
	// State is active; growing: it gets fewer new connections than its weight says, since it is new; left-out: the node
	// does without the endpoint, since it does not answer; or draining: the endpoint gets no new connections, but
	// conntrack still has some to it.
	State string `json:"state"`
	// Why says of an endpoint that is left out since when and why, and of one that is growing since when, and to what part
	// of its weight; empty for others.
	Why string `json:"why"`
	// Lists are the lists that the endpoint is in: internal (connections to the cluster
	// IP), external (to external addresses and node ports; with traffic policy Local
	// those from pods and the node), and external-local (with traffic policy Local
	// those of all other clients). A draining endpoint is in none.
	Lists []string `json:"lists"`
	// Shares are the endpoint's shares of the new connections of each list, from 0 to 1, in the order of Lists: what
	// weights and hashes make of them. Session affinity and the choice of clients do not count.
	Shares []float64 `json:"shares"`
	// Connections is the number of connections and UDP flows that conntrack has to the
	// endpoint through the Service port. Closing is the number of TCP connections that
	// both sides have closed and that conntrack still remembers. Both are null if
	// nobody counted.
	Connections *int `json:"connections"`
	Closing     *int `json:"closing"`
}

// The states of endpoints.
const (
	Active   = "active"
	Growing  = "growing"
	LeftOut  = "left-out"
	Draining = "draining"
)

// The lists of endpoints.
const (
	InternalList      = "internal"
	ExternalList      = "external"
	ExternalLocalList = "external-local"
)

// inLists are the lists that an endpoint is in, and its share of each.
type inLists struct {
	names  []string
	shares []float64
}

// listsOf returns the endpoints of a port, and the lists that each is in.
func listsOf(p *ruleset.ServedPort) map[netip.AddrPort]inLists {
	lists := map[netip.AddrPort]inLists{}
	add := func(name string, addrs []netip.AddrPort, slots map[netip.AddrPort]int) {
		all := len(addrs)
		if slots != nil {
			all = 0
			for _, n := range slots {
				all += n
			}
		}
		for _, a := range addrs {
			in := lists[a]
			if slices.Contains(in.names, name) {
				continue
			}
			own := 1
			if slots != nil {
				own = slots[a]
			}
			lists[a] = inLists{append(in.names, name), append(in.shares, float64(own)/float64(all))}
		}
	}
	for _, f := range p.Frontends {
		list := ExternalList
		if f.ClusterIP {
			list = InternalList
		}
		add(list, f.Cluster, f.ClusterSlots)
		if f.Split {
			add(ExternalLocalList, f.Local, f.LocalSlots)
		}
	}
	return lists
}

// EndpointRows returns the selected endpoints, sorted by Service, port and address. With
// connections, it counts them and adds the endpoints that are draining; connections may
// be nil.
func (t *Tables) EndpointRows(s Selection, connections *Connections) []EndpointRow {
	rows := []EndpointRow{}
	for svc, p := range t.ports(&s) {
		rows = append(rows, t.endpointsOf(&s, svc, p, connections)...)
	}
	return rows
}

func (t *Tables) endpointsOf(s *Selection, svc *service.Service, p *ruleset.ServedPort,
	connections *Connections) []EndpointRow {
	lists := listsOf(p)
	var counts map[netip.AddrPort]Count
	if connections != nil {
		counts = connections.of[keyOf(svc, p.Port)]
	}
	endpoints := slices.Collect(maps.Keys(lists))
	for a, count := range counts {
		if lists[a].names == nil && count.Connections > 0 {
			endpoints = append(endpoints, a)
		}
	}
	adjusted := t.Adjustments.At(svc.Name)
	for _, adjustment := range adjusted.Of(p.Port) {
		a := adjustment.Addr
		if adjustment.Share == service.NoShare && lists[a].names == nil && !slices.Contains(endpoints, a) {
			endpoints = append(endpoints, a)
		}
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	all := t.selectsPort(s, p)
	var rows []EndpointRow
	for _, a := range endpoints {
		if !all && !s.hasEndpoint(a) {
			continue
		}
		row := EndpointRow{
			PortName: p.Name, Protocol: p.Protocol.String(), Port: p.Port.Port,
			Endpoint: a, State: Draining, Lists: append([]string{}, lists[a].names...),
			Shares: append([]float64{}, lists[a].shares...),
		}
		if p.IsRange() {
			row.PortName = service.RangesText
		}
		row.Namespace, row.Service = svc.Name.Split()
		served := lists[a].names != nil
		if served {
			local := t.onNode(p.Port, a)
			row.State, row.Local = Active, &local
		}
		switch adjustment := adjusted.Find(p.Port, a); {
		case adjustment == nil:
		case served && adjustment.Share != service.NoShare:
			row.State, row.Why = Growing, adjustment.Text()
		case !served && adjustment.Share == service.NoShare:
			row.State, row.Why = LeftOut, adjustment.Text()
		}
		if connections != nil {
			count := counts[a]
			row.Connections, row.Closing = &count.Connections, &count.Closing
		}
		rows = append(rows, row)
	}
	return rows
}

// Connections counts the connections to each endpoint of Service ports.
type Connections struct {
	index *conntrack.Index
	of    map[servicePort]map[netip.AddrPort]Count
	// Orphans is the number of connections to addresses of ServiceCIDRs that no Service
	// has any more. Nothing tells which Service they went to.
	Orphans int
}

// Count is the number of connections to one endpoint.
type Count struct {
	// Connections counts connections and UDP flows; Closing those of TCP that both
	// sides have closed.
	Connections, Closing int
}

// servicePort identifies a port of a Service.
type servicePort struct {
	service  service.Name
	protocol service.Protocol
	port     uint16
	name     string
}

func keyOf(s *service.Service, p *service.Port) servicePort {
	if p.IsRange() {
		return servicePort{s.Name, p.Protocol, 0, service.RangesText}
	}
	return servicePort{s.Name, p.Protocol, p.Port, p.Name}
}

// NewConnections counts flows by the Services of the index, which must not change
// meanwhile.
func NewConnections(index *conntrack.Index) *Connections {
	return &Connections{index: index, of: map[servicePort]map[netip.AddrPort]Count{}}
}

// Add counts one flow of the kernel's table, if rules of a Service translated it.
func (c *Connections) Add(f conntrack.Flow) {
	translated := f.Translated()
	if f.Zone != 0 && !translated {
		return // It passes our rules in another zone.
	}
	s, p, owned := c.index.Owner(f)
	switch {
	case !owned && translated && c.index.Unallocated(f.Original.Dst.Addr()):
		if !closing(f.TCPState) {
			c.Orphans++
		}
		return
	case !owned:
		return
	case !translated && p.Endpoint(f.Original.Dst.Port(), f.Reply.Src) == nil:
		return // It misses the Service: no rule chose an endpoint.
	}
	key, endpoint := keyOf(s, p), f.Reply.Src
	if p.IsRange() {
		endpoint = netip.AddrPortFrom(endpoint.Addr(), 0)
	}
	if c.of[key] == nil {
		c.of[key] = map[netip.AddrPort]Count{}
	}
	count := c.of[key][endpoint]
	if closing(f.TCPState) {
		count.Closing++
	} else {
		count.Connections++
	}
	c.of[key][endpoint] = count
}

// closing says that both sides of a TCP connection have closed it.
func closing(s conntrack.TCPState) bool {
	return s == conntrack.TCPLastAck || s == conntrack.TCPTimeWait || s == conntrack.TCPClosed
}

// DrainingEndpoint is an endpoint that gets no new connections of a Service port, and
// still has some.
type DrainingEndpoint struct {
	Service  service.Name
	Port     service.Port
	Endpoint netip.AddrPort
	Count
}

// Draining returns the endpoints that have connections and that active does not name,
// sorted. active says whether an endpoint gets new connections of the Service port.
func (c *Connections) Draining(active func(s service.Name, p service.Port,
	endpoint netip.AddrPort) bool) []DrainingEndpoint {
	var all []DrainingEndpoint
	for key, counts := range c.of {
		p := service.Port{Name: key.name, Protocol: key.protocol, Port: key.port}
		for a, count := range counts {
			if count.Connections > 0 && !active(key.service, p, a) {
				all = append(all, DrainingEndpoint{key.service, p, a, count})
			}
		}
	}
	slices.SortFunc(all, func(a, b DrainingEndpoint) int {
		return cmp.Or(compareNames(a.Service, b.Service), cmp.Compare(a.Port.Protocol, b.Port.Protocol),
			cmp.Compare(a.Port.Port, b.Port.Port),
			cmp.Compare(a.Port.Name, b.Port.Name), a.Endpoint.Compare(b.Endpoint))
	})
	return all
}

// PortText is a Service port for people: its number and protocol, or its name where the
// tables do not tell the number.
func PortText(name, protocol string, port uint16) string {
	if port == 0 {
		return fmt.Sprintf("%s/%s", name, protocol)
	}
	return fmt.Sprintf("%d/%s", port, protocol)
}

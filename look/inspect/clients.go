package inspect

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// ClientRow is a client that the rules remember for session affinity.
type ClientRow struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// PortName, Protocol and Port are those of the Service port; see PortRow.
	PortName string         `json:"portName"`
	Protocol string         `json:"protocol"`
	Port     uint16         `json:"port"`
	Client   netip.Addr     `json:"client"`
	Endpoint netip.AddrPort `json:"endpoint"`
	// List is cluster, or local: by a traffic policy Local the client gets endpoints on
	// this node only.
	List string `json:"list"`
	// ExpiresSeconds is the time until the kernel forgets the client if it does not
	// connect again, in whole seconds. TimeoutSeconds is that time right after a
	// connection.
	ExpiresSeconds int64 `json:"expiresSeconds"`
	TimeoutSeconds int64 `json:"timeoutSeconds"`
	// Stale says that the endpoint gets no new connections any more. A running nftproxy
	// removes such a client soon.
	Stale bool `json:"stale"`
}

// ClientMap is a map that remembers clients of a Service port.
type ClientMap struct {
	ruleset.ClientMap
	service *service.Service
	port    *ruleset.ServedPort
	// frontend says that the selection selects the port, and so all of its clients.
	frontend bool
}

// ClientMaps returns the maps that may have selected clients, in the order of the rows:
// by Service and port, IPv4 first.
func (t *Tables) ClientMaps(s Selection) []ClientMap {
	var list []ClientMap
	for svc, p := range t.ports(&s) {
		frontend := t.selectsPort(&s, p)
		for _, m := range p.Clients {
			// A port selects frontends and endpoints only. An address may be a client's.
			if frontend || s.Address.IsValid() && m.Table.Family.Has(s.Address) || s.hasEndpointOf(p) {
				list = append(list, ClientMap{m, svc, p, frontend})
			}
		}
	}
	return list
}

func (s *Selection) hasEndpointOf(p *ruleset.ServedPort) bool {
	for a := range listsOf(p) {
		if s.hasEndpoint(a) {
			return true
		}
	}
	return false
}

// Rows returns the selected clients of the map, sorted by address. s is the selection
// that selected the map.
func (m *ClientMap) Rows(s Selection, clients []kernel.Entry) []ClientRow {
	rows := []ClientRow{}
	list, served := "cluster", map[netip.AddrPort]bool{}
	if m.Local {
		list = "local"
	}
	for a, lists := range listsOf(m.port) {
		local := slices.Contains(lists.names, ExternalLocalList) || bool(m.service.InternalPolicy) &&
			slices.Contains(lists.names, InternalList)
		served[a] = !m.Local || local
	}
	for _, c := range clients {
		row, ok := m.row(c)
		if !ok || !m.frontend && !selectsClient(&s, &row) {
			continue
		}
		row.List, row.Stale = list, !served[row.Endpoint]
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b ClientRow) int { return a.Client.Compare(b.Client) })
	return rows
}

// selectsClient says whether the selection has the client or its endpoint.
func selectsClient(s *Selection, row *ClientRow) bool {
	if s.Port != 0 && s.Port != row.Endpoint.Port() {
		return false
	}
	return !s.Address.IsValid() || s.Address == row.Endpoint.Addr() || s.Port == 0 && s.Address == row.Client
}

// row reads an element. It returns false for one that no version of our rules makes.
func (m *ClientMap) row(c kernel.Entry) (ClientRow, bool) {
	n := m.Table.Family.AddrLen()
	if len(c.Key) < n || len(c.Data) < n+2 {
		return ClientRow{}, false
	}
	client, _ := netip.AddrFromSlice([]byte(c.Key[:n]))
	endpoint, _ := netip.AddrFromSlice([]byte(c.Data[:n]))
	row := ClientRow{
		PortName: m.port.Name, Protocol: m.port.Protocol.String(), Port: m.port.Port.Port,
		Client: client, Endpoint: netip.AddrPortFrom(endpoint, binary.BigEndian.Uint16([]byte(c.Data[n:]))),
		ExpiresSeconds: int64(c.Expires / time.Second), TimeoutSeconds: int64(c.Timeout / time.Second),
	}
	row.Namespace, row.Service = m.service.Name.Split()
	return row, true
}

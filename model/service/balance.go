package service

import "net/netip"

// Balance says how a new connection gets its endpoint.
type Balance uint8

// The ways: at random, by a hash of the client's address, by a hash of the client's address and port, or at random with
// shares that follow the connections of the node. By a hash all nodes send the same client to the same endpoint, as far
// as they choose among the same endpoints.
const (
	ByRandom Balance = iota
	ByClient
	ByFlow
	ByLeastConnections
)

func balanceWords() []string { return []string{"random", "client", "flow", "least-connections"} }

func (b Balance) String() string { return balanceWords()[b] }

// Hashes says whether clients keep their endpoint.
func (b Balance) Hashes() bool { return b == ByClient || b == ByFlow }

// Slots are how many slots an endpoint has by ByLeastConnections in the rows of its port: in that for policy Cluster
// and in that for policy Local (share.Choice). 0 is unknown.
type Slots struct{ Cluster, Local uint16 }

// Slotted are the slots of a service's endpoints. Those that a table tells may be at a node port (Port.AtNodePort).
type Slotted map[PortEndpoint]Slots

// Slotted returns the slots of the endpoints that have some; nil if there are none.
func (s *Service) Slotted() Slotted {
	var all Slotted
	for i := range s.Ports {
		p := &s.Ports[i]
		for e := range p.Endpoints.All() {
			if e.Slots == (Slots{}) {
				continue
			}
			if all == nil {
				all = Slotted{}
			}
			all[p.At(e.Addr)] = e.Slots
		}
	}
	return all
}

// Of returns the slots of an endpoint of a port.
func (s Slotted) Of(p *Port, addr netip.AddrPort) Slots {
	slots, ok := s[p.At(addr)]
	if !ok && p.NodePort != 0 {
		return s[p.AtNodePort(addr)]
	}
	return slots
}

// Weighted says whether some endpoint has another weight than the default one, or a part of it.
func (p *Port) Weighted() bool {
	for chunk := range p.Endpoints.Chunks() {
		for i := range chunk {
			if chunk[i].Weighted() {
				return true
			}
		}
	}
	return false
}

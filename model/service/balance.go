package service

// Balance says how a new connection gets its endpoint.
type Balance uint8

// The ways: at random, by a hash of the client's address, or by a hash of the client's address and port. By a hash all
// nodes send the same client to the same endpoint, as far as they choose among the same endpoints.
const (
	ByRandom Balance = iota
	ByClient
	ByFlow
)

func balanceWords() []string { return []string{"random", "client", "flow"} }

func (b Balance) String() string { return balanceWords()[b] }

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

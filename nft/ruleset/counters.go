package ruleset

import (
	"encoding/binary"
	"net/netip"

	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/nft"
)

// CounterPlace is the element that counts the new connections to one address, protocol and
// port of a Service, or to a node port (Config.Counters). It counts each first packet, also
// those that are refused, and a client's further tries. The elements of the endpoints count
// those that were sent to the endpoint.
type CounterPlace struct {
	Family nft.Family
	Claim  service.Claim
	Set    string
	Key    nft.Value

	access *access
}

// CounterPlaces returns the places of a Service port. Another Service may have the claim of
// one, and there may be no element.
func CounterPlaces(svc *service.Service, p *service.Port) []CounterPlace {
	var places []CounterPlace
	for _, f := range nft.Families() {
		for claim := range svc.ClaimsOf(p, f) {
			access := byAddress()
			switch {
			case claim.Addr.IsUnspecified():
				access = byNodePort()
			case claim.IsRange():
				access = byRange()
			}
			places = append(places, CounterPlace{f, claim, access.verdicts, claimValue(claim), access})
		}
	}
	return places
}

// FrontendSets returns the sets of all CounterPlaces.
func FrontendSets() []string { return []string{services, nodePorts, rangeServices} }

// Endpoints returns the keys of the elements that count the connections to each endpoint, by
// their set. Some may have no element. With session affinity the rules that remember
// clients count, since they see remembered clients too.
func (c CounterPlace) Endpoints(svc *service.Service, p *service.Port) map[string][]nft.Value {
	keys := map[string][]nft.Value{}
	if svc.AffinityTimeout == 0 {
		for slot := range share.MostSlots(svc, p, c.Family) {
			for _, set := range []string{c.access.endpoints, c.access.localEndpoints} {
				keys[set] = append(keys[set], c.Key.WithIndex(slot))
			}
		}
		return keys
	}
	for e := range p.Endpoints.All() {
		if c.Family.Has(e.Addr.Addr()) {
			key := c.Key + nft.Value(nft.AppendPort(nft.AppendAddr(nil, e.Addr.Addr()), e.Addr.Port()))
			for _, set := range []string{c.access.clusterRememberable, c.access.localRememberable} {
				keys[set] = append(keys[set], key)
			}
		}
	}
	return keys
}

// Endpoint returns the endpoint of an element that Endpoints named, by its key and data.
func (c CounterPlace) Endpoint(key, data nft.Value) netip.AddrPort {
	if data == "" {
		data = key[len(c.Key):]
	}
	n := c.Family.AddrLen()
	if c.access.keepsPort {
		return netip.AddrPortFrom(addrOf(data[:n]), 0)
	}
	return netip.AddrPortFrom(addrOf(data[:n]), binary.BigEndian.Uint16([]byte(data[n:])))
}

// counted are the sets whose elements count connections with Config.Counters.
func counted() []string {
	sets := append(FrontendSets(), rangeEndpoints, rangeLocalEndpoints)
	for _, a := range allAccess() {
		sets = append(sets, a.endpoints, a.localEndpoints, a.clusterRememberable, a.localRememberable)
	}
	return sets
}

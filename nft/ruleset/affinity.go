package ruleset

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"nftproxy/internal/treap"
	"nftproxy/nft"
)

// affinitySize is the greatest number of clients that each of the dynamic maps
// remembers. A client that finds no room is served without affinity.
const affinitySize = 262_144

// learningRules send translated connections to the chain that remembers them.
// That chain returns: masquerade is still to come.
//
// A node port is known by its number alone: a connection to that port of
// another address of services may be remembered for the node port as well, if
// it went to one of the node port's own endpoints. That does no harm.
func learningRules(learning []*entrance) []nft.Rule {
	var rules []nft.Rule
	for _, e := range learning {
		rules = append(rules, nft.Rule{nft.MatchDNATed{}, nft.VMap{Key: e.original, Map: e.learners}})
	}
	return rules
}

// learnRules remember where a connection was sent, in each list that has the
// endpoint now. It may have been translated by the rules before a change: then
// the endpoint may be in neither.
func (e *entrance) learnRules(timeout time.Duration) []nft.Rule {
	var rules []nft.Rule
	for _, p := range e.pools() {
		rules = append(rules, nft.Rule{
			nft.InSet{Key: join(e.original, target()...), Set: p.affinityEndpoints},
			nft.Update{Map: p.affinity, Key: join(nft.Fields{nft.OrigSaddr}, e.original...), Data: target(), Timeout: timeout},
		})
	}
	return rules
}

// AffinityName tells the dynamic maps that remember clients apart.
type AffinityName struct {
	Family nft.Family
	// Map is the set's name.
	Map string
}

// AffinityMap is one of the dynamic maps that remember clients.
type AffinityMap struct {
	Name  AffinityName
	Table nft.TableID
	// Set is nil in a table without sets, which stands for none.
	Set *nft.Set
	// Keep says whether the program the map is of may send the client there.
	// Any other entry is stale: it would send the client to an endpoint that
	// its service address no longer uses, for as long as the client comes back.
	// The first call looks at every service: some 20 ms for 10,000 of them with
	// ten endpoints each.
	Keep func(key, data nft.Value) bool
}

// affinityPools are the lists of endpoints of which a table remembers clients,
// each in a map of its own.
func affinityPools() []pool {
	var all []pool
	for _, e := range entrances() {
		pools := e.pools()
		all = append(all, pools[:]...)
	}
	return all
}

// AffinityMaps are the program's maps that remember clients, in both tables.
func AffinityMaps(p *nft.Program) []AffinityMap {
	var maps []AffinityMap
	for _, f := range nft.Families() {
		t := p.Table(f)
		for _, pool := range affinityPools() {
			allowed := sync.OnceValue(func() map[nft.Value]bool { return keysOf(t, pool.affinityEndpoints) })
			maps = append(maps, AffinityMap{AffinityName{f, pool.affinity}, t.ID(), t.Set(pool.affinity), func(key, data nft.Value) bool {
				// The client's address, then the service's.
				return allowed()[key[f.AddrLen():]+data]
			}})
		}
	}
	return maps
}

// keysOf are the keys of a set's elements, of all parts.
func keysOf(t *nft.Table, set string) map[nft.Value]bool {
	keys := map[nft.Value]bool{}
	for _, part := range t.Parts.All() {
		for _, element := range elementsOf(part, set) {
			keys[element.Key] = true
		}
	}
	return keys
}

// AffinityShrunk returns the maps of clients that the old program let have an
// endpoint which the new one does not, at the same address or port: they may
// hold stale entries, and no others do. They are in no order. The cost follows
// what has changed.
func AffinityShrunk(old, new *nft.Program) []AffinityName {
	var shrunk []AffinityName
	for _, f := range nft.Families() {
		rest := affinityPools()
		for c := range treap.Diff(old.Table(f).Parts, new.Table(f).Parts) {
			rest = slices.DeleteFunc(rest, func(p pool) bool {
				gone := lost(elementsOf(c.Old, p.affinityEndpoints), elementsOf(c.New, p.affinityEndpoints))
				if gone {
					shrunk = append(shrunk, AffinityName{f, p.affinity})
				}
				return gone
			})
		}
	}
	return shrunk
}

// lost says whether a key of old is not in new; both are sorted.
func lost(old, new []nft.Element) bool {
	for _, e := range old {
		_, found := slices.BinarySearchFunc(new, e.Key, func(n nft.Element, key nft.Value) int { return cmp.Compare(n.Key, key) })
		if !found {
			return true
		}
	}
	return false
}

// elementsOf are the part's elements of one set; no part has none.
func elementsOf(p *nft.Part, set string) []nft.Element {
	if p == nil {
		return nil
	}
	first, found := slices.BinarySearchFunc(p.Elements, set, func(e nft.Element, set string) int { return cmp.Compare(e.Set, set) })
	if !found {
		return nil
	}
	end := first
	for end < len(p.Elements) && p.Elements[end].Set == set {
		end++
	}
	return p.Elements[first:end]
}

package ruleset

import (
	"encoding/binary"
	"slices"
	"strings"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// Ranges of ports are a third access, by address and protocol, for packets that have no frontend in services. The
// element in portRanges says which list of ranges the address and protocol have: it jumps to the list's chain. If the
// port is in the list's set, that chain leads on as other accesses do, and else the packet comes back. The endpoints
// are addresses: the translation keeps the port.
//
// All of this is in a table only while some Service has ranges.
const (
	portRanges = "port-ranges"
	// rangePrefix begins the names of the chains and maps.
	rangePrefix = "range-"

	rangeServices        = "range-services"
	rangeServicesCluster = "range-services-cluster"
	rangeServicesLocal   = "range-services-local"
	rangeEndpoints       = "range-endpoints"
	rangeLocalEndpoints  = "range-local-endpoints"
	rangeExternalLocal   = "range-external-local"
	recentRanges         = "recent-ranges"
	// rangeListPrefix begins the names of the chain and the set of each list of ranges.
	rangeListPrefix = "port-ranges-"
)

// byRange has no maps of session affinity, since ranges have none.
func byRange() *access {
	return &access{
		key: rangeKey(), original: nft.Fields{nft.OrigDaddr, nft.L4Proto},
		verdicts: rangeServices, endpoints: rangeEndpoints,
		externalChain: rangeExternalLocal, clusterVerdicts: rangeServicesCluster, localVerdicts: rangeServicesLocal,
		localEndpoints: rangeLocalEndpoints,
		recent:         recentRanges, chainPrefix: rangePrefix, keepsPort: true,
	}
}

func rangeKey() nft.Fields { return nft.Fields{nft.Daddr, nft.L4Proto} }

// rangeList is a list of ranges.
type rangeList struct {
	name   string
	ranges service.PortRanges
}

// make makes the list's chain and its set. The set's key is one field, so the kernel keeps it in a tree. A list never
// changes: other ranges are another list. The ranges belong to no single Service.
func (l rangeList) make(*Config, pods) made {
	key := nft.Fields{nft.Dport}
	rule := FindInRanges.rule(nft.InSet{Key: key, Set: l.name}, nft.VMap{Key: rangeKey(), Map: rangeServices})
	var elements []nft.Element
	for r := range l.ranges.All() {
		elements = append(elements, nft.Element{Set: l.name, Key: nft.Value(nft.AppendPort(nil, r.First)),
			KeyEnd: nft.Value(nft.AppendPort(nil, r.Last))})
	}
	return made{chains: []*nft.Chain{{Name: l.name, Rules: []nft.Rule{rule}}},
		sets: []*nft.Set{{Name: l.name, Key: key, Interval: true}}, name: l.name, part: nft.NewPart(elements, nil),
		needs: []wanted{{need{kind: needRanges}, allRanges{}}}}
}

// readRangeList returns the ranges in the set of a list.
func readRangeList(c *nft.Contents, name string) service.PortRanges {
	var list []service.PortRange
	for _, e := range sortedElements(c, name) {
		if len(e.Key) >= 2 && len(e.KeyEnd) >= 2 {
			list = append(list, service.PortRange{First: binary.BigEndian.Uint16([]byte(e.Key)),
				Last: binary.BigEndian.Uint16([]byte(e.KeyEnd))})
		}
	}
	return service.NewPortRanges(list)
}

// allRanges makes what all ranges share.
type allRanges struct{}

func (allRanges) make(cfg *Config, p pods) made {
	a := byRange()
	chains := append(a.refusalChains(), a.externalLocalChain(cfg, p))
	cfg.adapt(chains...)
	return made{chains: chains, sets: rangeSets(cfg)}
}

// rangeSets declares the sets and maps that all ranges share.
func rangeSets(cfg *Config) []*nft.Set {
	a := byRange()
	list := []*nft.Set{{Name: portRanges, Key: a.key, Verdicts: true, MinSize: minSizeBehind}, a.recentSet()}
	for _, name := range []string{a.verdicts, a.clusterVerdicts, a.localVerdicts} {
		list = append(list, &nft.Set{Name: name, Key: a.key, Verdicts: true, MinSize: minSizeBehind})
	}
	for _, name := range []string{a.endpoints, a.localEndpoints} {
		list = append(list, &nft.Set{Name: name, Key: join(a.key, nft.Index), Data: daddr(), MinSize: minSizeBehind})
	}
	for _, c := range []Cause{NoEndpoints, NoLocalEndpoints} {
		list = append(list, a.refusalSetOf(c))
	}
	cfg.count(list)
	return list
}

// RangeSet declares the set or map of that name that all ranges share; nil if there is none. A table has it while some
// Service has ranges.
func RangeSet(name string) *nft.Set {
	list := rangeSets(&Config{})
	if i := slices.IndexFunc(list, func(s *nft.Set) bool { return s.Name == name }); i >= 0 {
		return list[i]
	}
	return nil
}

// findRanges is the rule that looks for ranges of ports.
func findRanges() nft.Rule { return FindRanges.rule(nft.VMap{Key: rangeKey(), Map: portRanges}) }

// serveRanges leads an address and protocol to the list of the port's ranges. The list's name says the ranges, so that
// equal lists are one. It has at most 204 bytes (service.MaxPortRanges).
func (c *serviceCompiler) serveRanges(f frontend, p *service.Port) {
	list := rangeList{rangeListPrefix + strings.ReplaceAll(string(p.Ranges), ",", "_"), p.Ranges} // as rangesOf reads it
	define(c, list.name, list)
	c.addVerdict(f, portRanges, jump(list.name))
}

// rangesOf returns the ranges of the list whose chain has that name; none for another chain.
func rangesOf(chain string) service.PortRanges {
	text, is := strings.CutPrefix(chain, rangeListPrefix)
	if !is {
		return ""
	}
	return service.PortRanges(strings.ReplaceAll(text, "_", ","))
}

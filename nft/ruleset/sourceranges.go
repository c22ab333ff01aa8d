package ruleset

import (
	"encoding/base32"
	"net/netip"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

const (
	// sourceRanges begins the names of the chains that keep sources from addresses, and behind the
	// prefix of their access of those that keep sources from node ports. Each list of ranges has one such
	// chain, and a set of the name without prefix, however many addresses, ports and services have that list.
	sourceRanges = "source-ranges-"
	// noRanges ends the name of the chain for a list without ranges.
	noRanges = "none"
	// servicesRestricted takes the place of services for an address and port that only
	// some sources may reach. The chain of the same name asks it. So a kernel that
	// remembers which chains it has validated walks through the map once, not for each
	// list. The comments name the service whose ranges they are.
	servicesRestricted = "services-restricted"
	// nodePortsRestricted does the same for node ports. It is there where a node port has source ranges.
	nodePortsRestricted = "node-ports-restricted"
	// loadBalancerSources has the load balancers' addresses that may reach themselves,
	// beside the sources in the ranges.
	loadBalancerSources = "load-balancer-sources"
)

// sourceList is a list of ranges, disjoint and sorted, in front of one access.
type sourceList struct {
	access *access
	// name is that of the set.
	name   string
	ranges []netip.Prefix
}

// sourceListOf returns the list of a firewall's ranges. The name is a hash of the ranges,
// so equal lists are one. A tenant cannot make another list with the name of another
// tenant's list (service.Digest).
func sourceListOf(a *access, f service.Firewall, family ip.Family) sourceList {
	l := sourceList{access: a, name: sourceRanges + noRanges}
	if l.ranges, _ = f.Sources.Of(family); len(l.ranges) > 0 {
		digest := f.Sources.Digest(family)
		l.name = sourceRanges + strings.ToLower(base32.StdEncoding.EncodeToString(digest[:]))
	}
	return l
}

// chainName names the list's chain.
func (l sourceList) chainName() string { return l.access.chainPrefix + l.name }

// sourceSet makes the set of a list's ranges. Its key is one field, so the kernel keeps it in
// a tree. With address and port in the key each packet would cost linear time, and
// each commit quadratic time (nft.Set.Interval). The ranges belong to no single service. The part's name has no slash,
// like that of the node's part.
type sourceSet sourceList

func (l sourceSet) make(*Config, pods) made {
	return made{sets: []*nft.Set{{Name: l.name, Key: nft.Fields{nft.Saddr}, Interval: true}},
		name: l.name, part: rangesPart(l.name, l.ranges)}
}

// make makes the list's chain.
func (l sourceList) make(*Config, pods) made {
	m := made{chains: []*nft.Chain{l.chain()}, needs: []wanted{{need{needSet, l.name}, sourceSet(l)}}}
	if l.access.restricted == nodePortsRestricted {
		m.needs = append(m.needs, wanted{need{kind: needNodePortSources}, nodePortSources{}})
	}
	return m
}

// chain lets in the sources that may reach an address. It stands before translation
// and refusal, so that others cannot tell whether anything is behind it.
func (l sourceList) chain() *nft.Chain {
	restricted := gotoChain(l.access.restricted)
	rules := []nft.Rule{AdmitSource.rule(nft.InSet{Key: nft.Fields{nft.Saddr}, Set: l.name}, restricted)}
	if l.access.restricted == servicesRestricted {
		rules = append(rules, AdmitLoadBalancer.rule(nft.InSet{Key: sourceKey(), Set: loadBalancerSources}, restricted))
	}
	return &nft.Chain{Name: l.chainName(), Rules: append(rules,
		DropSource.rule(gotoChain(l.access.refusalChain(OutsideSourceRanges))))}
}

// rangesPart has the elements of an interval set of addresses.
func rangesPart(set string, ranges []netip.Prefix) *nft.Part {
	elements := make([]nft.Element, len(ranges))
	for i, r := range ranges {
		elements[i] = nft.Element{
			Set: set, Key: nft.Value(r.Addr().AsSlice()), KeyEnd: nft.Value(nft.LastAddr(r).AsSlice()),
		}
	}
	return nft.NewPart(elements, nil)
}

// restrictedChain serves the sources that were let in.
func (a *access) restrictedChain() *nft.Chain {
	return &nft.Chain{Name: a.restricted, Rules: []nft.Rule{
		FindRestricted.rule(nft.VMap{Key: a.key, Map: a.restricted}),
		DropRestricted.rule(nft.Verdict{Code: nft.Drop}),
	}}
}

// restrictedSet declares the map with the verdicts of restricted keys.
func (a *access) restrictedSet() *nft.Set {
	return &nft.Set{Name: a.restricted, Key: a.key, Verdicts: true, MinSize: minSizeBehind}
}

// restrict puts a firewall before a frontend; by names the firewall's service. It
// returns the frontend behind the firewall. A load balancer's address may also be a
// cluster IP or external IP, of this service or of another one. It is restricted all
// the same: so it is in kube-proxy, whose firewall comes first.
func (c *serviceCompiler) restrict(f frontend, wall service.Firewall, by string) frontend {
	list := sourceListOf(f.access, wall, c.family)
	define(c, list.chainName(), list)
	c.addVerdict(f, f.verdicts, gotoChain(list.chainName()))
	c.addRefusal(f, OutsideSourceRanges)
	for _, a := range wall.Itself(c.node, c.family) {
		c.elements = append(c.elements, nft.Element{Set: loadBalancerSources, Key: f.at + nft.Value(a.AsSlice())})
	}
	f.verdicts, f.by = f.restricted, by
	return f
}

// behindFirewall puts the firewall of the claim, if it has one, before the frontend.
func (c *serviceCompiler) behindFirewall(f frontend, claim service.Claim) frontend {
	wall, by, restricted := c.svc.FirewallAt(claim, c.restrictions)
	switch {
	case !restricted:
		return f
	case by == c.svc.Name:
		return c.restrict(f, wall, f.comment)
	}
	return c.restrict(f, wall, comment(string(by)))
}

// nodePortSources makes what all lists in front of node ports share.
type nodePortSources struct{}

func (nodePortSources) make(cfg *Config, _ pods) made {
	a := byNodePort()
	m := made{sets: []*nft.Set{a.restrictedSet(), a.refusalSetOf(OutsideSourceRanges)},
		chains: []*nft.Chain{a.restrictedChain(), a.outsideChain()}}
	cfg.count(m.sets)
	cfg.adapt(m.chains...)
	return m
}

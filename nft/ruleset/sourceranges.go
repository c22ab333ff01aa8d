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
	// sourceRanges begins the names of the chains that keep sources from load
	// balancers' addresses. Each list of ranges has one chain, and a set of the same
	// name, however many addresses, ports and services have that list.
	sourceRanges = "source-ranges-"
	// noRanges ends the name of the chain for a list without ranges.
	noRanges = "none"
	// servicesRestricted takes the place of services for an address and port that only
	// some sources may reach. The chain of the same name asks it. So a kernel that
	// remembers which chains it has validated walks through the map once, not for each
	// list. The comments name the service whose ranges they are.
	servicesRestricted = "services-restricted"
	// loadBalancerSources has the load balancers' addresses that may reach themselves,
	// beside the sources in the ranges.
	loadBalancerSources = "load-balancer-sources"
)

// sourceList is a list of ranges, disjoint and sorted.
type sourceList struct {
	name   string
	ranges []netip.Prefix
}

// sourceListOf returns the list of a firewall's ranges. The name is a hash of the ranges,
// so equal lists are one. A tenant cannot make another list with the name of another
// tenant's list (service.Digest).
func sourceListOf(f service.Firewall, family ip.Family) sourceList {
	l := sourceList{name: sourceRanges + noRanges}
	if l.ranges, _ = f.Sources.Of(family); len(l.ranges) > 0 {
		digest := f.Sources.Digest(family)
		l.name = sourceRanges + strings.ToLower(base32.StdEncoding.EncodeToString(digest[:]))
	}
	return l
}

func (l sourceList) id() string { return l.name }

// set declares the set of the ranges. Its key is one field, so the kernel keeps it in
// a tree. With address and port in the key each packet would cost linear time, and
// each commit quadratic time (nft.Set.Interval).
func (l sourceList) set() *nft.Set {
	return &nft.Set{Name: l.name, Key: nft.Fields{nft.Saddr}, Interval: true}
}

// chain lets in the sources that may reach an address. It stands before translation
// and refusal, so that others cannot tell whether anything is behind it.
func (l sourceList) chain() *nft.Chain {
	restricted := nft.Verdict{Code: nft.Goto, Chain: servicesRestricted}
	return &nft.Chain{Name: l.name, Rules: []nft.Rule{
		AdmitSource.rule(nft.InSet{Key: nft.Fields{nft.Saddr}, Set: l.name}, restricted),
		AdmitLoadBalancer.rule(nft.InSet{Key: sourceKey(), Set: loadBalancerSources}, restricted),
		DropSource.rule(gotoChain(string(OutsideSourceRanges))),
	}}
}

// part holds the ranges, which belong to no single service. Its name has no slash, like
// that of the node's part.
func (l sourceList) part() *nft.Part { return rangesPart(l.name, l.ranges) }

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
func restrictedChain() *nft.Chain {
	return &nft.Chain{Name: servicesRestricted, Rules: []nft.Rule{
		FindRestricted.rule(nft.VMap{Key: addressKey(), Map: servicesRestricted}),
		DropRestricted.rule(nft.Verdict{Code: nft.Drop}),
	}}
}

// restrict puts a firewall before a frontend; by names the firewall's service. It
// returns the frontend behind the firewall. A load balancer's address may also be a
// cluster IP or external IP, of this service or of another one. It is restricted all
// the same: so it is in kube-proxy, whose firewall comes first.
func (c *serviceCompiler) restrict(f frontend, wall service.Firewall, by string) frontend {
	list := sourceListOf(wall, c.family)
	if last := len(c.sourceLists) - 1; last < 0 || c.sourceLists[last].name != list.name {
		c.sourceLists = append(c.sourceLists, list)
	}
	c.addVerdict(f, f.verdicts, nft.Verdict{Code: nft.Goto, Chain: list.name})
	c.addRefusal(f, OutsideSourceRanges)
	for _, a := range wall.Itself(c.node, c.family) {
		c.elements = append(c.elements, nft.Element{Set: loadBalancerSources, Key: f.at + nft.Value(a.AsSlice())})
	}
	f.verdicts, f.by = servicesRestricted, by
	return f
}

// list is a list of source ranges or port ranges: a set with a chain that elements of Services lead to. Equal lists are one.
type list interface {
	id() string // of the set, the chain and the part
	set() *nft.Set
	chain() *nft.Chain
	part() *nft.Part
}

// listUses has the number of elements that lead to each list's chain.
type listUses map[string]int

// addLists adds set, chain and part of each list that the program does not have yet.
func addLists[L list](t *tableCompiler, uses listUses, lists []L) {
	for _, l := range lists {
		name := l.id()
		if _, there := uses[name]; !there {
			uses[name] = 0
			t.sets = t.sets.Set(name, l.set())
			t.chains = t.chains.Set(name, l.chain())
			t.edits[name] = l.part()
		}
	}
}

// countList counts elements that lead to a chain, and says whether it is that of a list. A list leaves the program with
// its last element.
func (t *tableCompiler) countList(uses listUses, chain string, by int) bool {
	n, there := uses[chain]
	if !there {
		return false
	}
	if uses[chain] = n + by; n+by == 0 {
		delete(uses, chain)
		t.sets = t.sets.Delete(chain)
		t.chains = t.chains.Delete(chain)
		t.edits[chain] = nil
	}
	return true
}

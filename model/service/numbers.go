package service

import "nftproxy/model/ip"

// A node port and a health check node port are numbers of the node: they are served on the
// node's addresses. There an external address leads another service's packets past them.

// number returns the claim on the number of the node that an external claim takes on one
// of the node's addresses, and whether there is one.
func (b *Builder) number(c Claim) (Claim, bool) {
	if c.Protocol == 0 || c.Addr.IsUnspecified() || !b.reserved.servesNodePorts(c.Addr) {
		return Claim{}, false
	}
	return NodePortClaim(ip.Of(c.Addr), &Port{Protocol: c.Protocol, NodePort: c.Port}), true
}

// overNumber returns the service that has the claim's number of the node by a better right
// than the claimant has to the claim; empty for none.
func (b *Builder) overNumber(c Claim, claimant right) Name {
	n, ok := b.number(c)
	if !ok || claimant.rank() == asClusterIP {
		return ""
	}
	owner := b.winner(n)
	if owner == "" || owner.name() == claimant.name() || owner > claimant ||
		b.protection(owner.name(), n, owner.rank()) != "" {
		return ""
	}
	return owner.name()
}

// losesNumber says whether a service that has a number of the node, and does not ask for
// the claim, loses the number on the claim's address to a service that gets the claim.
func (b *Builder) losesNumber(name Name, c Claim) bool {
	n, ok := b.number(c)
	if !ok {
		return false
	}
	owner, other := b.winner(n), b.winner(c)
	if owner == "" || owner.name() != name || b.protection(name, n, owner.rank()) != "" {
		return false
	}
	return other != "" && other.name() != name && other.rank() != asClusterIP && b.protection(other.name(), c,
		other.rank()) == "" &&
		b.over(c, other) == ""
}

// noteNumber notes which decisions depend on a claim that changes, beside those on the
// claim itself: an external claim on an address of the node and the number of the node
// depend on each other.
func (b *Builder) noteNumber(c Claim, before, after right) {
	if n, ok := b.number(c); ok {
		b.decideAgain(c, b.winner(n))
		return
	}
	if !c.Addr.IsUnspecified() || c.Protocol == 0 {
		return
	}
	for addr := range b.onNode {
		if addr.Is6() != c.Addr.Is6() {
			continue
		}
		at := Claim{addr, c.Protocol, c.Port}
		b.decideAgain(at, before, after, b.winner(at))
	}
}

// countOnNode counts the external claims on an address of the node.
func (b *Builder) countOnNode(c Claim, add bool) {
	if _, ok := b.number(c); !ok {
		return
	}
	if add {
		b.onNode[c.Addr]++
	} else if b.onNode[c.Addr]--; b.onNode[c.Addr] == 0 {
		delete(b.onNode, c.Addr)
	}
}

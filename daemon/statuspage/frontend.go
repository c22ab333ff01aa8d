package statuspage

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/net/html"

	"nftproxy/look/explain"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// frontend is one address and port that leads to a Service port.
type frontend struct {
	claim service.Claim
	kind  string
	// internal says that the internal traffic policy holds.
	internal bool
	// at is where a client would connect; not valid if that is not known.
	at netip.AddrPort
}

// frontends lists those of a port in a family: cluster IPs, load balancers' addresses,
// external IPs, the node port. It leaves out those beyond the bound, and counts them.
func (d *detail) frontends(p *service.Port, family ip.Family) (list []frontend, more int) {
	s := d.service
	for _, a := range s.Addresses() {
		switch {
		case !family.Has(a):
			continue
		case len(list) == maxFrontends:
			more++
			continue
		}
		f := frontend{claim: service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}, kind: "external IP",
			at: netip.AddrPortFrom(a, p.First())}
		switch {
		case slices.Contains(s.ClusterIPs, a):
			f.kind, f.internal = "cluster IP", true
		case slices.Contains(s.LoadBalancerIPs, a):
			f.kind = "load balancer's address"
		}
		list = append(list, f)
	}
	if p.NodePort != 0 {
		f := frontend{claim: service.NodePortClaim(family, p), kind: "node port"}
		if addr := d.page.nodePortAddress(d.view, family); addr.IsValid() {
			f.at = netip.AddrPortFrom(addr, p.NodePort)
		}
		list = append(list, f)
	}
	return list, more
}

// nodePortAddress is an address of the node that serves node ports in the family. It is
// not valid if none is known.
func (p *Page) nodePortAddress(v *view, family ip.Family) netip.Addr {
	addrs, all := p.config.NodePortAddresses.On(v.snapshot.Node, family)
	if all {
		addrs = slices.Concat(v.snapshot.Node.Addresses, v.snapshot.Node.HostAddresses)
	}
	for _, a := range addrs {
		if family.Has(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

// frontendRow is a row of the table of addresses.
func (d *detail) frontendRow(f frontend, p *service.Port, c *share.Choice) []cell {
	name := f.claim.String()
	if f.kind == "node port" {
		name = fmt.Sprintf("%d/%s (%s)", p.NodePort, p.Protocol, ip.Of(f.claim.Addr).Name())
	}
	var explanation cell
	if f.at.IsValid() {
		explanation = cell{d.page.explanation(f.at, p.Protocol)}
	}
	return []cell{textCell(name), textCell(f.kind), d.meets(f, c), explanation}
}

// meets says what a new connection to the frontend meets.
func (d *detail) meets(f frontend, c *share.Choice) cell {
	v, s := d.view, d.service
	if _, held := v.quarantined[string(s.Name)]; held {
		return textCell("no rule: the Service is in quarantine")
	}
	if conflicts := v.snapshot.Conflicts.At(s.Name); conflicts.Has(f.claim) {
		if why := d.protected[f.claim]; why != "" {
			return textCell("not this Service: the address and port are protected: " + string(why))
		}
		owner := v.snapshot.Owners.Over(s.Name, f.claim)
		return cell{literal("another Service: "), link(serviceURL(owner), string(owner))}
	}
	content := textCell(outcome(s, f.claim, f.internal, c))
	firewall, owner, _ := s.FirewallAt(f.claim, v.snapshot.Restrictions.At(s.Name))
	if sources, all := firewall.Admitted(v.snapshot.Node, ip.Of(f.claim.Addr)); !all {
		by := ""
		if owner != s.Name {
			by = " (the source ranges of " + string(owner) + ")"
		}
		ranges := joined(sources, maxRanges)
		if ranges == "" {
			ranges = "no source"
		}
		content = append(content, literal("; admitted: "+ranges+by+", others are dropped"))
	}
	return content
}

// outcome says where the rules lead a new connection to an address of the Service.
func outcome(s *service.Service, claim service.Claim, internal bool, c *share.Choice) string {
	one := func(n int, where string) string {
		if n == 1 {
			return "the one endpoint" + where
		}
		return fmt.Sprintf("one of %s%s", count(n, "endpoint", "endpoints"), where)
	}
	failover := s.FailoverAt(claim)
	const passed = "left to routing: external-failover is pass, and "
	switch {
	case !c.Anywhere && failover == service.FailoverPass:
		return passed + "there is no endpoint"
	case !c.Anywhere:
		return "refused: there is no endpoint"
	case internal && s.InternalPolicy == service.Local && c.Local.Len() == 0:
		return "dropped: internalTrafficPolicy is Local, and no endpoint is on this node"
	case internal && s.InternalPolicy == service.Local:
		return one(c.Local.Len(), " on this node")
	case internal || s.ExternalPolicy == service.Cluster:
		return one(c.Cluster.Len(), "")
	case c.Local.Len() == 0 && failover == service.FailoverPass:
		return "from outside " + passed + "no endpoint is on this node; from this node and its pods " + one(c.Cluster.Len(),
			"")
	case c.Local.Len() == 0 && failover == service.FailoverCluster:
		return one(c.Cluster.Len(), "") + ": external-failover is cluster, and no endpoint is on this node"
	case c.Local.Len() == 0:
		return "from outside dropped: externalTrafficPolicy is Local, and no endpoint is on this node; from this node and " +
			"its pods " + one(c.Cluster.Len(), "")
	}
	return "from outside " + one(c.Local.Len(), " on this node") + "; from this node and its pods " + one(c.Cluster.Len(),
		"")
}

// explanationOf leads to the explanation of a Service's first frontend.
func (p *Page) explanationOf(s *service.Service) *html.Node {
	if addrs := s.Addresses(); len(addrs) > 0 && len(s.Ports) > 0 {
		return p.explanation(netip.AddrPortFrom(addrs[0], s.Ports[0].Port), s.Ports[0].Protocol)
	}
	return nil
}

// explanation leads to the account, step by step, of what happens to a packet to the address.
func (p *Page) explanation(at netip.AddrPort, protocol service.Protocol) *html.Node {
	destination := explain.Destination{To: at, Protocol: uint8(protocol)}
	if p.config.Explain == nil {
		return plain("code", p.explainCommand(destination))
	}
	return element("a", attributes("class", "explain", "href", request{explain: destination, rank: -1}.url()),
		literal("Explain "+destination.String()))
}

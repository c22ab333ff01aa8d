package statuspage

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/html"

	"nftproxy/look/explain"
	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// frontend is one address and port that leads to a Service port.
type frontend struct {
	claim service.Claim
	kind  string
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
			f.kind = "cluster IP"
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

// nodePortAddress is an address of the node that serves node ports in the family. It is not valid if none is known.
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

func (d *detail) frontendRow(f frontend, p *service.Port, c *share.Choice) []cell {
	name := f.claim.String()
	if f.kind == "node port" {
		name = fmt.Sprintf("%d/%s (%s)", p.NodePort, p.Protocol, ip.Of(f.claim.Addr).Name())
	}
	var about cell
	if f.at.IsValid() {
		about = cell{explanation(f.at, p.Protocol)}
	}
	return []cell{textCell(name), textCell(f.kind), d.meets(f, c), about}
}

func (d *detail) meets(f frontend, c *share.Choice) cell {
	v, s := d.view, d.service
	if _, held := v.quarantined[string(s.Name)]; held {
		return textCell("no rule: the Service is in quarantine")
	}
	if protection, lost := v.snapshot.Conflicts.At(s.Name).Get(f.claim); lost {
		owner := v.snapshot.Owners.Over(s.Name, f.claim)
		text := obstacle.Lost(owner, protection).String()
		if protection != "" || owner == "" {
			return textCell(text)
		}
		before, after, _ := strings.Cut(text, string(owner))
		return cell{literal(before), link(serviceURL(owner), string(owner)), literal(after)}
	}
	content := textCell(outcome(s, f.claim, c))
	firewall, by, _ := s.FirewallAt(f.claim, v.snapshot.Restrictions.At(s.Name))
	family := ip.Of(f.claim.Addr)
	if sources, all := firewall.Admitted(v.snapshot.Node, family); !all {
		content = append(content, literal("; "+obstacle.Fenced(s.Name, by, joined(sources, maxRanges), family).String()))
	}
	return content
}

// outcome says where the rules lead a new connection to an address of the Service.
func outcome(s *service.Service, claim service.Claim, c *share.Choice) string {
	one := func(list share.Addresses, where string) string {
		if list.Len() == 1 {
			return "the one endpoint" + where
		}
		return fmt.Sprintf("one of %s%s", count(list.Len(), "endpoint", "endpoints"), where)
	}
	const here, inside = " on this node", "; from this node and its pods "
	fate, internal := obstacle.FateAt(s, claim, c.Anywhere, c.Local.Len() > 0), slices.Contains(s.ClusterIPs, claim.Addr)
	o, stops := fate.Obstacle()
	switch {
	case fate == obstacle.DroppedOutside, fate == obstacle.PassedOutside:
		return o.String() + inside + one(c.Cluster, "")
	case stops:
		return o.String()
	case internal && s.InternalPolicy == service.Local:
		return one(c.Local, here)
	case internal || s.ExternalPolicy == service.Cluster:
		return one(c.Cluster, "")
	case c.Local.Len() == 0:
		return one(c.Cluster, "") + ": " + obstacle.FailedOver
	}
	return "from outside " + one(c.Local, here) + inside + one(c.Cluster, "")
}

// explanationOf leads to the explanation of a Service's first frontend.
func explanationOf(s *service.Service) *html.Node {
	if addrs := s.Addresses(); len(addrs) > 0 && len(s.Ports) > 0 {
		return explanation(netip.AddrPortFrom(addrs[0], s.Ports[0].Port), s.Ports[0].Protocol)
	}
	return nil
}

// explanation leads to the account, step by step, of what happens to a packet to the address.
func explanation(at netip.AddrPort, protocol service.Protocol) *html.Node {
	destination := explain.Destination{To: at, Protocol: uint8(protocol)}
	return element("a", attributes("class", "explain", "href", request{explain: destination}.url()),
		literal("Explain "+destination.String()))
}

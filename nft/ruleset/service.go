package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// serviceCompiler compiles one service for one family. It changes nothing in
// the table's compiler.
type serviceCompiler struct {
	*tableCompiler
	svc  *service.Service
	lost *service.Conflicts
	// restrictions are those of other services.
	restrictions *service.Restrictions

	elements []nft.Element
	pools    []nft.Pool
	wanted   map[string]sharedChain
}

// compile returns what the service is in the family: something where it has a
// cluster IP there.
func (c *serviceCompiler) compile() compiledService {
	if !c.svc.InFamily(c.v6()) {
		return compiledService{}
	}
	c.wanted = map[string]sharedChain{}
	// One cluster IP, and for each port an address: what most services have.
	c.elements = make([]nft.Element, 0, 1+len(c.svc.Ports))
	var local []netip.Addr
	for _, a := range c.svc.ClusterIPs {
		if c.ours(a) && !c.lost.Has(service.Claim{Addr: a}) {
			c.elements = append(c.elements, nft.Element{
				Set: clusterIPs, Key: nft.Value(nft.AppendAddr(nil, a)), Comment: comment(string(c.svc.Name)),
			})
		}
	}
	for i := range c.svc.Ports {
		p := &c.svc.Ports[i]
		choice := c.svc.Choose(p, c.node, c.v6())
		c.port(p, choice)
		local = append(local, choice.OnNode(p, c.node)...)
	}
	slices.SortFunc(local, netip.Addr.Compare)
	return compiledService{nft.NewPart(c.elements, c.pools), slices.Compact(local), c.wanted}
}

func (c *serviceCompiler) ours(a netip.Addr) bool { return a.Is6() == c.v6() }

func (c *serviceCompiler) v6() bool { return c.family == nft.IPv6 }

func (c *serviceCompiler) port(p *service.Port, choice service.Choice) {
	lists := lists{cluster: c.targets(choice.Cluster), local: c.targets(choice.Local), anywhere: choice.Anywhere}
	for _, a := range c.svc.Addresses() {
		claim := service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}
		if !c.ours(a) || c.lost.Has(claim) {
			continue
		}
		key := make([]byte, 0, c.family.AddrLen()+8)
		key = nft.AppendPort(nft.AppendProto(nft.AppendAddr(key, a), uint8(p.Protocol)), p.Port)
		e := entry{c.address, c.address.verdicts, nft.Value(key), comment(c.svc.ID(p))}
		if own := c.svc.Firewall(); own.Restricts(claim) {
			e = c.restricted(e, own, e.comment)
		} else if other, found := c.restrictions.On(claim); found {
			e = c.restricted(e, other.Firewall, comment(string(other.By)))
		}
		if slices.Contains(c.svc.ClusterIPs, a) {
			c.internal(e, lists)
		} else {
			c.external(e, lists)
		}
	}
	if p.NodePort != 0 && !c.lost.Has(service.NodePortClaim(c.v6(), p)) {
		key := nft.AppendPort(nft.AppendProto(nil, uint8(p.Protocol)), p.NodePort)
		c.external(entry{c.nodePort, c.nodePort.verdicts, nft.Value(key), comment(c.svc.ID(p))}, lists)
	}
}

// restricted lets only whom the firewall admits in to an entry, and returns what
// they get in to; by says whose firewall it is. A load balancer's address that
// is also another of the service's, or of another service's, is restricted all
// the same, as in kube-proxy, whose firewall comes first.
func (c *serviceCompiler) restricted(e entry, f service.Firewall, by string) entry {
	c.verdict(e, e.verdicts, nft.Verdict{Code: nft.Goto, Chain: sourceRanges})
	from := func(a netip.Addr) nft.Value { return e.at + nft.Value(nft.AppendAddr(nil, a)) }
	sources, _ := f.Admitted(c.node, c.v6())
	for _, r := range sources {
		c.elements = append(c.elements, nft.Element{
			Set: sourceRanges, Key: from(r.Addr()), KeyEnd: from(nft.LastAddr(r)), Comment: by,
		})
	}
	e.verdicts = servicesRestricted
	return e
}

// lists is a service.Choice in the form of the program.
type lists struct {
	cluster, local []nft.Value
	anywhere       bool
}

// entry is one address and port, or node port, of the service.
type entry struct {
	*entrance
	// verdicts is the map that says what the entry gets.
	verdicts string
	at       nft.Value
	comment  string
}

// internal serves a cluster IP.
func (c *serviceCompiler) internal(e entry, l lists) {
	targets := l.cluster
	if c.svc.InternalPolicy == service.Local {
		targets = l.local
	}
	if len(targets) == 0 && l.anywhere {
		c.verdict(e, e.verdicts, nft.Verdict{Code: nft.Drop})
		return
	}
	m := fromOutside
	if c.cfg.MasqueradeAll {
		m = always
	}
	c.send(e, e.verdicts, targets, m)
}

// external serves an external address or a node port.
func (c *serviceCompiler) external(e entry, l lists) {
	if c.svc.ExternalPolicy == service.Cluster || !l.anywhere {
		c.send(e, e.verdicts, l.cluster, always)
		return
	}
	c.verdict(e, e.verdicts, nft.Verdict{Code: nft.Goto, Chain: e.entrance.external})
	c.send(e, e.cluster, l.cluster, fromOutside)
	if len(l.local) > 0 {
		c.send(e, e.entrance.local, l.local, never)
	}
}

func (c *serviceCompiler) verdict(e entry, vmap string, v nft.Verdict) {
	c.elements = append(c.elements, nft.Element{Set: vmap, Key: e.at, Verdict: v, Comment: e.comment})
}

// send sends an entry to the shared chain for the targets; without any it is
// refused.
func (c *serviceCompiler) send(e entry, vmap string, targets []nft.Value, m masquerading) {
	shared := sharedChain{entrance: e.entrance, endpoints: len(targets), masquerade: m, affinity: c.svc.AffinityTimeout > 0}
	name := shared.name()
	c.verdict(e, vmap, nft.Verdict{Code: nft.Goto, Chain: name})
	if len(targets) == 0 {
		return
	}
	c.wanted[name] = shared
	c.pools = append(c.pools, nft.Pool{Map: shared.pool().endpoints, Prefix: e.at, Targets: targets})
	if !shared.affinity {
		return
	}
	for _, t := range targets {
		c.elements = append(c.elements, nft.Element{Set: shared.pool().affinityEndpoints, Key: e.at + t})
	}
	// Where outsiders have a list of their own, which is never masqueraded,
	// there is another as well, and one chain remembers for both.
	if m != never {
		learn := sharedChain{entrance: e.entrance, learn: c.svc.AffinityTimeout}
		c.wanted[learn.name()] = learn
		c.verdict(e, e.learners, nft.Verdict{Code: nft.Jump, Chain: learn.name()})
	}
}

// targets are addresses in the form of the program, cut from one string so that
// a service of many endpoints costs one allocation.
func (c *serviceCompiler) targets(addrs []netip.AddrPort) []nft.Value {
	if len(addrs) == 0 {
		return nil
	}
	size := c.family.AddrLen() + 4
	all := make([]byte, 0, size*len(addrs))
	for _, a := range addrs {
		all = nft.AppendPort(nft.AppendAddr(all, a.Addr()), a.Port())
	}
	text, targets := nft.Value(all), make([]nft.Value, len(addrs))
	for i := range targets {
		targets[i] = text[i*size : (i+1)*size]
	}
	return targets
}

// comment cuts what nft would refuse: names may have 63 bytes for each of
// namespace, service and port, and some service names 253.
func comment(s string) string {
	if len(s) <= nft.MaxComment {
		return s
	}
	return s[:nft.MaxComment-len(cut)] + cut
}

// cut stands at the end of a comment that was cut short.
const cut = "..."

// cutShort says whether a comment may have been.
func cutShort(comment string) bool {
	return len(comment) == nft.MaxComment && strings.HasSuffix(comment, cut)
}

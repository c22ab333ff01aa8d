package ruleset

import (
	"net/netip"
	"slices"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// serviceCompiler compiles one service for one family.
type serviceCompiler struct {
	svc    *service.Service
	lost   *service.Conflicts
	family nft.Family

	elements []nft.Element
	pools    []nft.Pool
	// chains are the shared chains that the elements point to, by name.
	chains map[string]sharedChain
}

// compile returns the service's part, or nil where it has none in the family:
// a service is in a family if it has a cluster IP there.
func (c *serviceCompiler) compile() *nft.Part {
	if !c.svc.InFamily(c.v6()) {
		return nil
	}
	for _, a := range c.svc.ClusterIPs {
		if c.ours(a) && !c.lost.Has(service.Claim{Addr: a}) {
			c.elements = append(c.elements, nft.Element{
				Set: clusterIPs, Key: nft.Value(nft.AppendAddr(nil, a)), Comment: comment(string(c.svc.Name)),
			})
		}
	}
	for i := range c.svc.Ports {
		c.port(&c.svc.Ports[i])
	}
	return nft.NewPart(c.elements, c.pools)
}

func (c *serviceCompiler) ours(a netip.Addr) bool { return a.Is6() == c.v6() }

func (c *serviceCompiler) v6() bool { return c.family == nft.IPv6 }

func (c *serviceCompiler) port(p *service.Port) {
	targets := c.targets(p)
	text := comment(c.svc.ID(p))
	for _, a := range c.svc.Addresses() {
		if !c.ours(a) || c.lost.Has(service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}) {
			continue
		}
		shared := sharedChain{endpoints: len(targets)}
		if !slices.Contains(c.svc.ClusterIPs, a) {
			shared.masquerade = always
		}
		key := make([]byte, 0, c.family.AddrLen()+8)
		key = nft.AppendPort(nft.AppendProto(nft.AppendAddr(key, a), uint8(p.Protocol)), p.Port)
		c.add(services, endpoints, nft.Value(key), shared, targets, text)
	}
	if p.NodePort != 0 && !c.lost.Has(service.NodePortClaim(c.v6(), p)) {
		key := nft.AppendPort(nft.AppendProto(nil, uint8(p.Protocol)), p.NodePort)
		shared := sharedChain{endpoints: len(targets), masquerade: always, nodePort: true}
		c.add(nodePorts, nodePortEndpoints, nft.Value(key), shared, targets, text)
	}
}

// add makes one entry of a verdict map and its endpoints.
func (c *serviceCompiler) add(vmap, pool string, key nft.Value, shared sharedChain, targets []nft.Value, text string) {
	name := shared.name()
	c.elements = append(c.elements, nft.Element{
		Set: vmap, Key: key, Verdict: nft.Verdict{Code: nft.Goto, Chain: name}, Comment: text,
	})
	if len(targets) > 0 {
		c.chains[name] = shared
		c.pools = append(c.pools, nft.Pool{Map: pool, Prefix: key, Targets: targets})
	}
}

// targets are the addresses that connections to the port go to, sorted, cut
// from one string so that a service of many endpoints costs one allocation.
func (c *serviceCompiler) targets(p *service.Port) []nft.Value {
	addrs := p.Choose(c.v6())
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

// local returns the addresses of the service's endpoints on the node, each once.
func (c *serviceCompiler) local(node string) []netip.Addr {
	if !c.svc.InFamily(c.v6()) {
		return nil
	}
	var addrs []netip.Addr
	for i := range c.svc.Ports {
		addrs = append(addrs, c.svc.Ports[i].Local(node, c.v6())...)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// comment cuts what nft would refuse: names may have 63 bytes for each of
// namespace, service and port, and some service names 253.
func comment(s string) string {
	const cut = "..."
	if len(s) <= nft.MaxComment {
		return s
	}
	return s[:nft.MaxComment-len(cut)] + cut
}

package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// serviceCompiler compiles one service for one family. It changes nothing in the
// table's compiler.
type serviceCompiler struct {
	*tableCompiler
	svc *service.Service
	// conflicts has the claims that the service does not get.
	conflicts *service.Conflicts
	// restrictions has the source ranges of other services.
	restrictions *service.Restrictions
	// last has what the ports compiled to before.
	last []portLists

	elements []nft.Element
	pools    []nft.Pool
	// wanted and pings are those of the compiledService.
	wanted []wanted
	pings  []netip.Addr
	// clients has the clients of the port that is being compiled, timeouts those of its connections, and ranged says that
	// it is ranges.
	clients  clients
	timeouts service.Timeouts
	ranged   bool
}

// compile returns the service's elements in the family, none if it has no cluster IP
// there.
func (c *serviceCompiler) compile() compiledService {
	if !c.svc.InFamily(c.family) {
		return compiledService{}
	}
	// Most services have one cluster IP, and an element for each port.
	c.elements = make([]nft.Element, 0, 1+len(c.svc.Ports))
	for _, a := range c.svc.ClusterIPs {
		if c.family.Has(a) && !c.conflicts.Has(service.Claim{Addr: a}) {
			c.elements = append(c.elements, nft.Element{
				Set: clusterIPs, Key: addrValue(a), Comment: comment(string(c.svc.Name)),
			})
		}
	}
	var compiled compiledService
	for i := range c.svc.Ports {
		p := &c.svc.Ports[i]
		var last *portLists
		if i < len(c.last) {
			last = &c.last[i]
		}
		c.ranged, c.timeouts = p.IsRange(), c.cfg.timeoutsOf(c.svc, p)
		now := c.listsAfter(last, p)
		c.compilePort(p, now.endpointLists)
		compiled.keepPort(i, c.svc, &now)
	}
	slices.SortFunc(c.pings, netip.Addr.Compare) // several ports may have noted an address
	compiled.wanted, compiled.pings = c.wanted, slices.Compact(c.pings)
	compiled.part = nft.NewPart(c.elements, c.pools)
	return compiled
}

// compilePort adds the elements of all frontends of a port.
func (c *serviceCompiler) compilePort(p *service.Port, l endpointLists) {
	if c.svc.AffinityTimeout > 0 {
		c.clients = clientsOf(c.svc.Name, p)
	}
	for claim := range c.svc.ClaimsOf(p, c.family) {
		if !c.conflicts.Has(claim) {
			c.serve(p, claim, l)
		}
	}
}

// serve adds the elements of a frontend of a port.
func (c *serviceCompiler) serve(p *service.Port, claim service.Claim, l endpointLists) {
	f := frontend{access: c.address, at: claimValue(claim), comment: comment(c.beforeID(claim.Addr) + c.svc.ID(p))}
	switch {
	case claim.Addr.IsUnspecified():
		f.access = c.nodePort
	case c.ranged:
		f.access = c.byRanges
	}
	if f.verdicts = f.access.verdicts; c.ranged {
		c.serveRanges(f, p)
	} else {
		f = c.behindFirewall(f, claim)
	}
	if f.access != c.nodePort {
		c.addPing(claim.Addr, f.verdicts == f.restricted, l)
	}
	fate := obstacle.FateAt(c.svc, claim, l.anywhere, l.local.Len() > 0)
	switch internal := slices.Contains(c.svc.ClusterIPs, claim.Addr); {
	case fate == obstacle.Refused:
		c.refuseAll(f, f.verdicts, NoEndpoints)
	case fate == obstacle.Held:
		c.holdAll(f)
	case fate == obstacle.Dropped:
		c.refuseAll(f, f.verdicts, NoLocalEndpoints)
	case fate == obstacle.Passed:
		c.addVerdict(f, f.verdicts, nft.Verdict{Code: nft.Accept})
	case internal:
		c.serveInternal(f, l)
	case c.svc.ExternalPolicy == service.Cluster:
		c.learnClients(f, c.addTargets(f, f.verdicts, l.cluster, masqueradeAll, clusterList))
	default:
		c.serveLocal(f, l, fate)
	}
}

// beforeID is what stands before the service's ID in comments at an address.
func (c *serviceCompiler) beforeID(a netip.Addr) string {
	if c.conflicts.Has(service.Claim{Addr: a}) && slices.Contains(c.svc.ClusterIPs, a) {
		return alsoClusterIPOf
	}
	return ""
}

// frontend is one address with protocol and port, or one node port, of the service.
type frontend struct {
	*access
	// verdicts is the map that has the frontend's verdict.
	verdicts string
	// at is the frontend's key in the maps.
	at      nft.Value
	comment string
	// by names the service whose firewall stands before it, if verdicts is restricted.
	by string
}

// serveInternal serves a cluster IP.
func (c *serviceCompiler) serveInternal(f frontend, l endpointLists) {
	targets, list := l.cluster, clusterList
	if c.svc.InternalPolicy == service.Local {
		targets, list = l.local, localList
	}
	m := masqueradeOutsiders
	if c.cfg.MasqueradeAll {
		m = masqueradeAll
	}
	c.learnClients(f, c.addTargets(f, f.verdicts, targets, m, list))
}

// serveLocal serves an external address or a node port with policy Local.
func (c *serviceCompiler) serveLocal(f frontend, l endpointLists, fate obstacle.Fate) {
	c.addVerdict(f, f.verdicts, nft.Verdict{Code: nft.Goto, Chain: f.externalChain})
	remembered := c.addTargets(f, f.clusterVerdicts, l.cluster, masqueradeOutsiders, clusterList)
	switch {
	case l.local.Len() > 0:
		remembered |= c.addTargets(f, f.localVerdicts, l.local, masqueradeNone, localList)
	case fate == obstacle.PassedOutside:
		c.addVerdict(f, f.localVerdicts, nft.Verdict{Code: nft.Accept})
	case fate == obstacle.DroppedOutside:
		c.addRefusal(f, NoLocalEndpoints) // externalChain drops
	default: // endpoints of other nodes serve
		c.leadTo(f, f.localVerdicts, l.cluster, masqueradeAll, remembered)
	}
	c.learnClients(f, remembered)
}

// addVerdict adds the frontend's element in a map of verdicts.
func (c *serviceCompiler) addVerdict(f frontend, vmap string, v nft.Verdict) {
	text := f.comment
	if vmap == f.restricted {
		text = f.by
	}
	c.elements = append(c.elements, nft.Element{Set: vmap, Key: f.at, Verdict: v, Comment: text})
}

// addTargets leads the frontend to the shared chain for the targets. It returns the list if its clients are to be
// remembered, else none.
func (c *serviceCompiler) addTargets(f frontend, vmap string, targets targetList, m masquerading,
	list clientList) clientList {
	if c.clients == (clients{}) {
		list = 0
	} else {
		for t := range targets.All() {
			c.elements = append(c.elements, nft.Element{Set: f.rememberable(list), Key: f.at + t})
		}
	}
	shared := c.leadTo(f, vmap, targets, m, list)
	c.pools = append(c.pools, nft.Pool{Map: shared.pool(), Prefix: f.at, Targets: targets.Targets, Row: targets.row})
	return list
}

// leadTo leads the frontend to the shared chain for the targets. list is the list
// whose clients are remembered, 0 for none.
func (c *serviceCompiler) leadTo(f frontend, vmap string, targets targetList, m masquerading,
	list clientList) sharedChain {
	shared := sharedChain{access: f.access, slots: targets.slots(), masquerade: m,
		timeouts: c.timeouts, flows: c.cfg.rate(c.svc), balance: targets.balance}
	if list != 0 {
		shared.clients, shared.lists = c.clients, list
	}
	c.addVerdict(f, vmap, c.verdictTo(nft.Goto, shared))
	return shared
}

// learnClients leads the frontend to the chain that remembers its clients for the
// lists, if there are any.
func (c *serviceCompiler) learnClients(f frontend, lists clientList) {
	if lists != 0 {
		c.addVerdict(f, f.learners, c.verdictTo(nft.Jump, sharedChain{
			access: f.access, clients: c.clients, lists: lists, learn: c.svc.AffinityTimeout,
		}))
	}
}

// verdictTo returns the verdict that leads to a shared chain, and notes that the
// program needs the chain.
func (c *serviceCompiler) verdictTo(code nft.VerdictCode, chain sharedChain) nft.Verdict {
	name := chain.name()
	define(c, name, chain)
	return nft.Verdict{Code: code, Chain: name}
}

// define says what makes a chain that elements lead to, unless the table knows it or the service has just said it.
func define[S shared](c *serviceCompiler, chain string, by S) {
	x, last := need{needChain, chain}, len(c.wanted)-1
	if c.needs.of[x] == nil && (last < 0 || c.wanted[last].need != x) {
		c.wanted = append(c.wanted, wanted{x, by})
	}
}

// comment cuts a text that is longer than nft accepts. Namespace, service and port may
// have names of 63 bytes each, and some services names of 253 bytes.
func comment(text string) string {
	if len(text) <= nft.MaxComment {
		return text
	}
	return text[:nft.MaxComment-len(ellipsis)] + ellipsis
}

// alsoClusterIPOf begins the comments of frontends on a Service's cluster IP if another
// Service has that cluster IP. cluster-ips names the other one only.
const alsoClusterIPOf = "cluster IP also of "

// ellipsis ends a comment that was cut.
const ellipsis = "..."

// isCut says whether comment may have cut a comment.
func isCut(comment string) bool {
	return len(comment) == nft.MaxComment && strings.HasSuffix(comment, ellipsis)
}

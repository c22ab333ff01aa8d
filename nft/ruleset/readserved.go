package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// Served is a Service as tables serve it, with the elements that do so.
type Served struct {
	// Service is the Service of ReadBack's snapshot.
	Service *service.Service
	// clusterIPs are those of each family that the tables name; Service may have
	// another one that stands for an unknown one.
	clusterIPs ip.PerFamily[[]netip.Addr]
	// Ports are the Service's, in the same order.
	Ports []*ServedPort
	// Lost are the claims that the Service does not get, in the order of the claims.
	Lost []LostClaim
}

// ServedPort is a port of a Service as tables serve it.
type ServedPort struct {
	// Port is the Service's.
	*service.Port
	// text is the port's text in comments: its name or number, cut or whole.
	text string
	// Frontends are sorted: IPv4 first, addresses before node ports.
	Frontends []*Frontend
	// Clients are the maps that remember the port's clients, in the order of the
	// families. There are none without session affinity.
	Clients []ClientMap
}

// LostClaim is a claim that a Service does not get. Owner is the Service that has it. Owner is
// empty if the claim is protected, or if the kernel refused it.
type LostClaim struct {
	Claim service.Claim
	Owner service.Name
}

// Frontend is an address, protocol and port, or a node port, as a table serves it.
type Frontend struct {
	Family nft.Family
	// Addr is not valid for a node port.
	Addr     netip.Addr
	Protocol service.Protocol
	// Port is 0 for ranges of ports, which Ranges has.
	Port   uint16
	Ranges service.PortRanges
	// ClusterIP says that Addr is a cluster IP of the Service.
	ClusterIP bool
	Fate      obstacle.Fate
	// Sources are the only clients that may reach the frontend; nil admits all.
	// SourcesOf is the Service whose ranges they are.
	Sources   *service.Sources
	SourcesOf service.Name
	// Cluster and Local are the lists of endpoints, sorted. With Split, clients from
	// outside of the cluster get Local; else all clients get Cluster.
	Split          bool
	Cluster, Local []netip.AddrPort
	// ClusterSlots and LocalSlots say how many slots of the list each endpoint has; nil where each has one.
	ClusterSlots, LocalSlots map[netip.AddrPort]int
	// Affinity is how long a client is remembered, 0 if it is not.
	Affinity time.Duration
	// Chains are the chains that the frontend's elements lead to, each once, in the order in which
	// a packet meets them.
	Chains []string

	// comment is the element's, without alsoClusterIPOf. commentCut says that the
	// element's comment was cut.
	comment    string
	commentCut bool
	// alsoClusterIP says that Addr is a cluster IP of the Service, which another
	// Service has.
	alsoClusterIP bool
	// list has the Sources without the load balancer's own addresses, and by is the comment that names the Service whose
	// firewall it is.
	list *service.Sources
	by   string
	// twoLists says that outsiders get the list Local, and all others the list Cluster. Else all get Cluster.
	twoLists bool
	// balance says how packets draw an endpoint.
	balance service.Balance
	// timeouts are those that connections get.
	timeouts service.Timeouts
	// flows is the share of its connections that the rules tell of, if it is not that of the other frontends.
	flows service.Flows
	// hold is for how long connections are held.
	hold time.Duration
	// localOnly says that clients are remembered in the list of endpoints on the node.
	localOnly bool
	// reader has the elements of the frontend, by key.
	reader *frontendReader
	key    nft.Value
	// servicePort is the Service's port. A node port has it from the names of clients'
	// maps and chains; 0 if there are none.
	servicePort uint16
}

// ClusterIPs returns the cluster IPs of the Service that the tables name.
func (s *Served) ClusterIPs() []netip.Addr { return slices.Concat(s.clusterIPs[:]...) }

// IsNodePort reports whether the frontend is a node port.
func (f *Frontend) IsNodePort() bool { return !f.Addr.IsValid() }

// Claim returns the claim that the frontend stands for.
func (f *Frontend) Claim() service.Claim {
	if f.IsNodePort() {
		return service.NodePortClaim(f.Family, &service.Port{Protocol: f.Protocol, NodePort: f.Port})
	}
	return service.Claim{Addr: f.Addr, Protocol: f.Protocol, Port: f.Port}
}

// Place is where the frontend is.
func (f *Frontend) Place() Place { return Place{f.reader.verdicts, f.key} }

// ClientMap is a dynamic map that remembers the clients of a Service port.
type ClientMap struct {
	Table nft.TableID
	Set   *nft.Set
	// Local says that the map is for clients that only get endpoints on this node.
	Local bool
}

// ReadServed reads the same as ReadBack, whose comment says which facts are exact. It also returns
// how each Service is served, sorted by name. All of this is exact except the names that ReadBack
// guesses. Its cost grows with the tables.
func ReadServed(m *nft.Model, table string, node *service.Node) (service.Snapshot, []*Served) {
	snapshot, r := readTables(m, table, node)
	all := make([]*Served, 0, len(r.services))
	for name := range snapshot.Services.All() {
		s := r.services[name]
		for _, p := range s.Ports {
			p.complete(s.Service)
		}
		for c := range snapshot.Conflicts.At(name).All() {
			s.Lost = append(s.Lost, LostClaim{c.Claim, r.owners[c.Claim]})
		}
		all = append(all, s)
	}
	return snapshot, all
}

// complete adds what only commands need, and sorts.
func (p *ServedPort) complete(svc *service.Service) {
	for _, f := range p.Frontends {
		f.complete(svc)
		for _, m := range f.clientMaps() {
			if !slices.ContainsFunc(p.Clients, func(o ClientMap) bool {
				return o.Table == m.Table && o.Set.Name == m.Set.Name
			}) {
				p.Clients = append(p.Clients, m)
			}
		}
	}
	slices.SortStableFunc(p.Frontends, func(a, b *Frontend) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.kind(), b.kind()), a.Addr.Compare(b.Addr))
	})
	slices.SortStableFunc(p.Clients, func(a, b ClientMap) int { return cmp.Compare(a.Table.Family, b.Table.Family) })
}

// kind orders the frontends of a family: cluster IPs first, node ports last.
func (f *Frontend) kind() int {
	switch {
	case f.ClusterIP:
		return 0
	case f.IsNodePort():
		return 2
	}
	return 1
}

// complete sets what the elements of the frontend do not say by themselves.
func (f *Frontend) complete(svc *service.Service) {
	f.ClusterIP, f.Chains = slices.Contains(svc.ClusterIPs, f.Addr), f.chains()
	f.Split = f.twoLists && f.failover() != service.FailoverCluster
	if f.restrictedByItself() {
		f.SourcesOf = svc.Name
	} else if f.Sources != nil {
		f.SourcesOf = service.Name(f.by)
	}
}

// clientMaps returns the maps that remember the frontend's clients.
func (f *Frontend) clientMaps() []ClientMap {
	var found []ClientMap
	r := f.reader
	for from, to := range rememberingRules(r.contents.Chains[r.element(r.learners, f.key).Verdict.Chain]) {
		if s := r.contents.Sets[to.Map]; s != nil && s.Set.Dynamic {
			found = append(found, ClientMap{r.contents.Table, s.Set, from.Set == r.localRememberable})
		}
	}
	return found
}

// chains returns the chains that the frontend's elements lead to, in the order in which a
// packet comes to them, each once.
func (f *Frontend) chains() []string {
	var chains []string
	for _, set := range []string{portRanges, f.reader.verdicts, f.reader.restricted, f.reader.localVerdicts,
		f.reader.clusterVerdicts, f.reader.learners} {
		if set == f.reader.restricted && f.Sources == nil || set == portRanges && f.Ranges == "" {
			continue
		}
		if to := f.reader.element(set, f.key).Verdict.Chain; to != "" && !slices.Contains(chains, to) {
			chains = append(chains, to)
		}
	}
	return chains
}

package ruleset

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// ReadBack turns tables that were read from a kernel into a snapshot of what
// they serve: with the configuration that the tables were made with, Compile
// makes the same elements of it. The node is the one that the snapshot is for;
// it must have a name.
//
// A table tells what becomes of new connections and no more. It does not tell
//   - endpoints that get none: those that are not ready, terminate beside ready
//     ones, or are left out by topology or a traffic policy. The others all
//     count as ready. They are on the node where the table treats them so, and
//     on one without name elsewhere; hints say what topology has left out.
//   - services without cluster IP, what other services had a better claim to,
//     and what the kernel had refused. What a service would have by its addresses
//     and ports, and has not, is among the snapshot's Conflicts; where nobody has
//     it, the owner is empty. A service that lost its cluster IP gets somebody's,
//     with all claims on it lost.
//   - which external addresses are load balancers', but for those that source
//     ranges restrict; and of these more than what the rules compare with.
//   - names that do not fit a comment (nft.MaxComment). A port's is then cut, and
//     so is a service's that no cluster IP gives away; services that cannot be
//     told apart by what is left are each entry by itself.
//   - the number of a port that only has a node port left and a name: it is 0.
//   - ages, zones, node ports of health checks, and the affinity of services
//     without endpoints.
//
// What no program of ours has is passed over, and so are sets and rules that
// the reader did not recognise.
func ReadBack(m *nft.Model, table string, node *service.Node) service.Snapshot {
	r := readback{node: node, services: map[service.Name]*served{}, owners: map[service.Claim]service.Name{}}
	snapshot := service.Snapshot{Node: node}
	var entries []*readEntry
	for i, f := range nft.Families() {
		c := m.Table(nft.TableID{Family: f, Name: table})
		if c == nil {
			continue
		}
		r.readClusterIPs(i, c)
		entries = append(entries, readEntries(f, c)...)
		for _, cidr := range serviceCIDRs(c) {
			snapshot.ServiceCIDRs = snapshot.ServiceCIDRs.Set(cidr.String(), cidr)
		}
	}
	r.names = slices.Sorted(maps.Keys(r.services))
	for _, nodePorts := range []bool{false, true} {
		for _, e := range entries {
			if e.nodePort() == nodePorts {
				r.take(e)
			}
		}
	}
	for name, s := range r.services {
		svc := s.service(&r)
		snapshot.Services = snapshot.Services.Set(name, svc)
		if lost := svc.ConflictsBy(func(c service.Claim) service.Name { return r.owners[c] }); lost != nil {
			snapshot.Conflicts = snapshot.Conflicts.Set(name, lost)
		}
		if by := s.restrictions(svc); by != nil {
			snapshot.Restrictions = snapshot.Restrictions.Set(name, by)
		}
	}
	return snapshot
}

// readback puts the services of both families together.
type readback struct {
	node *service.Node
	// families have what belongs to no service alone.
	families [2]struct {
		// clusterIPs by address, with whose they are.
		clusterIPs map[netip.Addr]service.Name
		// onNode are the addresses of endpoints on the node.
		onNode map[netip.Addr]bool
	}
	services map[service.Name]*served
	// names are those that cluster IPs tell, sorted.
	names  []service.Name
	owners map[service.Claim]service.Name
	// masqueradesAll says that what goes to cluster IPs is masqueraded, too.
	masqueradesAll bool
}

// family is the index of a family in lists of two.
func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

func (r *readback) service(name service.Name) *served {
	s := r.services[name]
	if s == nil {
		s = &served{name: name}
		r.services[name] = s
	}
	return s
}

func (r *readback) readClusterIPs(i int, c *nft.Contents) {
	family := &r.families[i]
	family.clusterIPs, family.onNode = map[netip.Addr]service.Name{}, map[netip.Addr]bool{}
	for _, e := range sortedElements(c, clusterIPs) {
		a := addrOf(e.Key)
		name := service.Name(e.Comment)
		if !isName(name) {
			continue
		}
		if s := r.services[name]; cutShort(e.Comment) && s != nil && len(s.clusterIPs[i]) > 0 {
			name = apart(e.Comment, a.String())
		}
		s := r.service(name)
		s.clusterIPs[i] = append(s.clusterIPs[i], a)
		family.clusterIPs[a] = name
		r.owners[service.Claim{Addr: a}] = name
	}
	for _, e := range sortedElements(c, hairpin) {
		family.onNode[addrOf(e.Key[:len(e.Key)/2])] = true
	}
}

// take gives the entry to its service.
func (r *readback) take(e *readEntry) {
	name, port := r.nameOf(e)
	if !isName(name) {
		return
	}
	r.owners[e.claim()] = name
	if r.families[family(e.v6)].clusterIPs[e.addr] == name {
		r.masqueradesAll = r.masqueradesAll || e.masquerade
	}
	s := r.service(name)
	s.add(e, port)
}

// nameOf reads the entry's comment: whose it is, and the rest of it, which says
// for which port.
func (r *readback) nameOf(e *readEntry) (name service.Name, port string) {
	if at := strings.LastIndexByte(e.comment, ':'); at >= 0 {
		return service.Name(e.comment[:at]), e.comment[at+1:]
	}
	if !cutShort(e.comment) {
		return "", ""
	}
	stem := service.Name(strings.TrimSuffix(e.comment, cut))
	if owner := r.families[family(e.v6)].clusterIPs[e.addr]; strings.HasPrefix(string(owner), string(stem)) {
		return owner, ""
	}
	at, _ := slices.BinarySearch(r.names, stem)
	matching := func(i int) bool { return i < len(r.names) && strings.HasPrefix(string(r.names[i]), string(stem)) }
	if matching(at) && !matching(at+1) {
		return r.names[at], ""
	}
	return apart(e.comment, e.claim().String()), ""
}

// isName says that there is a namespace and a name: others were not ours.
func isName(n service.Name) bool {
	namespace, name := n.Split()
	return namespace != "" && name != ""
}

// apart is a name for one of several that are the same as far as they go.
func apart(comment, what string) service.Name { return service.Name(comment + " (" + what + ")") }

// readEntries are all entries of one table.
func readEntries(f nft.Family, c *nft.Contents) []*readEntry {
	var entries []*readEntry
	for _, e := range entrances() {
		t := entranceReader{
			entrance: e, contents: c, family: f,
			all: poolTargets(c, e.all.endpoints, f), own: poolTargets(c, e.own.endpoints, f), sources: readSources(c, f),
		}
		for _, element := range sortedElements(c, e.verdicts) {
			entries = append(entries, t.read(element))
		}
	}
	return entries
}

// sortedElements of a set, by key; none where the table has no such set.
func sortedElements(c *nft.Contents, set string) []nft.Element {
	s := c.Sets[set]
	if s == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(s.Elements), func(a, b nft.Element) int { return strings.Compare(string(a.Key), string(b.Key)) })
}

// serviceCIDRs are the ranges that the table drops packets to.
func serviceCIDRs(c *nft.Contents) []netip.Prefix {
	var list []netip.Prefix
	if c.Chains[dispatch] == nil {
		return nil
	}
	for _, r := range c.Chains[dispatch].Rules {
		if len(r) != 3 || r[1] != (nft.MatchLocal{Field: nft.Daddr, Not: true}) || r[2] != (nft.Verdict{Code: nft.Drop}) {
			continue
		}
		if to, ok := r[0].(nft.MatchAddr); ok && to.Field == nft.Daddr && !to.Not {
			list = append(list, to.Prefix)
		}
	}
	return list
}

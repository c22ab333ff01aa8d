package ruleset

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/claims"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// ReadBack turns tables that were read from a kernel into a snapshot of the Services
// that they serve. With the configuration of the tables, Compile makes the same
// elements of that snapshot. The snapshot is for the given node, which must have a
// name.
//
// These facts are exact:
//
//	fact                               read from
//	Services and their cluster IPs     comments in cluster-ips
//	a cluster IP of several Services   comments "cluster IP also of ..." in services
//	protocols, ports, other addresses  keys in services
//	node ports                         keys in node-ports
//	names of ports                     comments in services and node-ports
//	endpoints that get connections     the maps of endpoints
//	external policy                    verdicts that lead to external-local, or accept
//	session affinity, its time-out     names of shared chains (parseShared)
//	balance of new connections         the same
//	time-outs of TCP and UDP           the same, but not of UDP port 53 (setTimeouts)
//	source ranges, and whose they are  sets source-ranges-..., comments in services-restricted and node-ports-restricted
//	conflicts (without the owner)      keys that the Service would have, and does not
//	ServiceCIDRs                       rules of postrouting
//	ranges of the node's own pods      rules of external-local
//
// These facts are chosen so that the same rules come of them. The Service may say
// something else:
//
//	fact                               value
//	internal policy                    Local if cluster IPs and other frontends differ (internalPolicy)
//	external failover                  drop unless clients outside are served otherwise, or passed on
//	endpoint's node                    the node's for local and hairpin endpoints, none where hairpin
//	                                   is not certain, else another one (elsewhere)
//	endpoint's conditions              ready
//	endpoint's weight                  its number of slots, if some endpoint has several; with hashes exact only
//	                                   where all nodes' lists are one
//	endpoint's hints                   this node, where the list of policy Cluster lacks local endpoints
//	external IP or load balancer's     external IP, unless the Service has source ranges there, and not as node ports
//	cluster IP with all ports lost     unknownClusterIP
//
// Comments have 128 bytes at most (nft.MaxComment). Only a Service whose comments
// were cut is guessed, in this order:
//
//	fact                               value
//	name at its cluster IP             the Service that has the cluster IP, if it begins so
//	name elsewhere                     the only Service with a cluster IP that begins so
//	else                               each frontend is a Service by itself
//	port of a node port                the port of that text; of several the one with the same endpoints
//
// A wrong name does no harm: conntrack judges a flow by the address and port that it
// goes to, and the command conntrack prints another name. A wrong port of a node port
// has other endpoints, so a flow by that node port may be called stale that is not.
//
// Tables do not tell endpoints without new connections, the number of a named port
// that only its node port is left of (it is 0), ages, zones, node ports of health
// checks, the affinity and time-outs of Services without endpoints, whether the time-outs of UDP port 53 are the
// Service's or the configuration's, claims that the kernel refused,
// and Services without cluster IP. Versions before the comment "cluster IP also of"
// wrote none; of their tables such a cluster IP comes back as an external IP.
//
// Sets, elements and rules that no program of ours has are passed over. A table that is not Readable
// tells nothing.
func ReadBack(m *nft.Model, table string, node *service.Node) service.Snapshot {
	snapshot, _ := readTables(m, table, node)
	return snapshot
}

// NamesSet is the set that names all Services with a cluster IP in a table.
const NamesSet = clusterIPs

// NamesIn returns the names in a set NamesSet that was read, each once.
func NamesIn(s *nft.SetContents) []service.Name {
	names := make([]service.Name, 0, len(s.Elements))
	for _, e := range s.Elements {
		if name := service.Name(e.Comment); isName(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readTables returns the snapshot, and what it was made of.
func readTables(m *nft.Model, table string, node *service.Node) (service.Snapshot, *readback) {
	r := &readback{
		node: node, services: map[service.Name]*Served{}, owners: map[service.Claim]service.Name{},
		onNode: map[netip.Addr]bool{}, maybeOnNode: map[netip.Addr]bool{},
	}
	snapshot := service.Snapshot{Node: node}
	var frontends []*Frontend
	var reached, here []netip.Prefix
	for _, f := range nft.Families() {
		c := m.Table(nft.TableID{Family: f, Name: table})
		if c == nil || !Readable(c) {
			continue
		}
		r.readClusterIPs(f, c)
		frontends = append(frontends, readFrontends(f, c)...)
		for _, cidr := range ServiceCIDRs(c) {
			snapshot.ServiceCIDRs = snapshot.ServiceCIDRs.Set(cidr.String(), cidr)
		}
		reached = append(reached, readReachable(c)...)
		here = append(here, readPods(c).here...)
	}
	if node != nil && len(here) > 0 {
		of := *node
		of.PodCIDRs = here
		node, snapshot.Node = &of, &of
	}
	if node != nil && len(reached) > 0 {
		snapshot.Node = withReachable(*node, reached)
	}
	r.names = slices.Sorted(maps.Keys(r.services))
	// Frontends by address tell the ports that node ports belong to.
	for _, nodePorts := range []bool{false, true} {
		for _, f := range frontends {
			if f.IsNodePort() == nodePorts {
				r.addFrontend(f)
			}
		}
	}
	for name, s := range r.services {
		s.join(r)
		svc := s.Service
		snapshot.Services = snapshot.Services.Set(name, svc)
		if conflicts := claims.ConflictsBy(svc, func(c service.Claim) service.Name {
			return r.owners[c]
		}); conflicts != nil {
			snapshot.Conflicts = snapshot.Conflicts.Set(name, conflicts)
		}
		if restrictions := s.restrictions(svc); restrictions != nil {
			snapshot.Restrictions = snapshot.Restrictions.Set(name, restrictions)
		}
	}
	return snapshot, r
}

// readback collects the Services of both families.
type readback struct {
	node     *service.Node
	services map[service.Name]*Served
	// names has the names that stand in cluster-ips, sorted.
	names  []service.Name
	owners map[service.Claim]service.Name
	// onNode has the addresses of endpoints on the node, maybeOnNode those of endpoints that may be there.
	onNode, maybeOnNode map[netip.Addr]bool
}

// service returns the Service of that name, a new one the first time.
func (r *readback) service(name service.Name) *Served {
	s := r.services[name]
	if s == nil {
		s = &Served{Service: &service.Service{Name: name}}
		r.services[name] = s
	}
	return s
}

// readClusterIPs reads the names of the Services with their cluster IPs, and the
// endpoints on the node.
func (r *readback) readClusterIPs(family nft.Family, c *nft.Contents) {
	for _, e := range sortedElements(c, clusterIPs) {
		a := addrOf(e.Key)
		name := service.Name(e.Comment)
		if !isName(name) {
			continue
		}
		if s := r.services[name]; isCut(e.Comment) && s != nil && len(*s.clusterIPs.Of(family)) > 0 {
			name = nameByItself(e.Comment, a.String())
		}
		list := r.service(name).clusterIPs.Of(family)
		*list = append(*list, a)
		r.owners[service.Claim{Addr: a}] = name
	}
	for _, e := range sortedElements(c, hairpin) {
		if a := addrOf(e.Key[:len(e.Key)/2]); e.Comment == maybeHere {
			r.maybeOnNode[a] = true
		} else {
			r.onNode[a] = true
		}
	}
}

// addFrontend gives the frontend to its Service.
func (r *readback) addFrontend(f *Frontend) {
	name, port := r.nameOf(f)
	if !isName(name) {
		return
	}
	r.owners[f.Claim()] = name
	s := r.service(name)
	if list := s.clusterIPs.Of(f.Family); f.alsoClusterIP && !slices.Contains(*list, f.Addr) {
		*list = append(*list, f.Addr)
	}
	s.addFrontend(f, port)
}

// nameOf reads the comment: the Service's name, and the text after it, which names
// the port. It guesses the name if the comment was cut.
func (r *readback) nameOf(f *Frontend) (name service.Name, port string) {
	if at := strings.LastIndexByte(f.comment, ':'); at >= 0 {
		return service.Name(f.comment[:at]), f.comment[at+1:]
	}
	if !f.commentCut {
		return "", ""
	}
	beginning := strings.TrimSuffix(f.comment, ellipsis)
	if owner := r.owners[service.Claim{Addr: f.Addr}]; !f.alsoClusterIP && strings.HasPrefix(string(owner), beginning) {
		return owner, ""
	}
	first, _ := slices.BinarySearch(r.names, service.Name(beginning))
	beginsSo := func(i int) bool { return i < len(r.names) && strings.HasPrefix(string(r.names[i]), beginning) }
	if beginsSo(first) && !beginsSo(first+1) {
		return r.names[first], ""
	}
	return nameByItself(f.comment, f.Claim().String()), ""
}

// isName says whether there is a namespace and a name. Our comments have both.
func isName(n service.Name) bool {
	namespace, name := n.Split()
	return namespace != "" && name != ""
}

// nameByItself names a Service of which only a cut comment is known, by what it has.
func nameByItself(comment, has string) service.Name { return service.Name(comment + " (" + has + ")") }

// sortedElements returns the elements of a set by key, none if the table has no such
// set.
func sortedElements(c *nft.Contents, set string) []nft.Element {
	s := c.Sets[set]
	if s == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(s.Elements), func(a, b nft.Element) int {
		return strings.Compare(string(a.Key), string(b.Key))
	})
}

// ServiceCIDRs returns the ranges whose addresses a table drops packets to if no Service has them.
func ServiceCIDRs(c *nft.Contents) []netip.Prefix {
	var list []netip.Prefix
	if c.Chains[postrouting] == nil {
		return nil
	}
	for _, r := range c.Chains[postrouting].Rules {
		r = r.Body()
		// Earlier versions dropped packets here.
		if len(r) != 3 || r[1] != notOwn() || r[2] != gotoChain(string(UnallocatedAddress)) &&
			r[2] != jump(checkUnallocated) && r[2] != (nft.Verdict{Code: nft.Drop}) {
			continue
		}
		if to, ok := r[0].(nft.MatchAddr); ok && to.Field == nft.Daddr && !to.Not {
			list = append(list, to.Prefix)
		}
	}
	return list
}

package snapshots_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/model/claims"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// claimWorld draws services that ask for the same few addresses: those of pods, of the
// node, of the API server's load balancer and others.
type claimWorld struct {
	*rand.Rand
	protected claims.Protected
	reserved  claims.Reserved
}

func pick[T any](w *claimWorld, list ...T) T { return list[w.IntN(len(list))] }

func (w *claimWorld) some(texts string) (list []netip.Addr) {
	for _, a := range addrs(texts) {
		if w.IntN(3) == 0 {
			list = append(list, a)
		}
	}
	return list
}

const (
	nodeAddress = "192.0.2.1"
	podAddress  = "10.244.0.5"
	apiFront    = "198.51.100.9"
	candidates  = nodeAddress + " " + podAddress + " 10.244.0.6 10.245.0.1 192.0.2.255 " + apiFront +
		" 2001:db8::1 203.0.113.7 10.96.0.2"
)

func (w *claimWorld) service(name service.Name) *service.Service {
	s := &service.Service{
		Name: name, Created: time.Unix(int64(w.IntN(3)), 0), ClusterIPs: addrs("10.96.0.1 fd00:96::1")[:1+w.IntN(2)],
		ExternalIPs: w.some(candidates), LoadBalancerIPs: w.some(candidates), HealthCheckNodePort: pick[uint16](w, 0, 0, 80,
			81),
		ExternalPolicy: pick(w, service.Cluster, service.Local),
	}
	if w.IntN(3) == 0 {
		s.ClusterIPs = addrs("10.96.0.2")
	}
	if w.IntN(4) == 0 {
		s.Sources = service.NewSources([]netip.Prefix{netip.MustParsePrefix(pick(w, "192.0.2.0/24", "203.0.113.0/24"))})
	}
	for i := range w.IntN(3) {
		p := service.Port{Name: fmt.Sprint("p", i), Protocol: pick(w, service.TCP, service.TCP, service.UDP),
			Port: uint16(80 + i), NodePort: pick[uint16](w, 0, 80, 81)}
		var list []service.Endpoint
		for range w.IntN(3) {
			text := pick(w, podAddress, "10.244.0.6", "10.245.0.1", nodeAddress, "203.0.113.7", "203.0.113.7", "203.0.113.7")
			e := service.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(text), pick[uint16](w, 80, 81)),
				Ready: w.IntN(4) > 0}
			if !e.Ready {
				e.Serving, e.Terminating = w.IntN(2) == 0, w.IntN(4) > 0
			}
			list = append(list, e)
		}
		p.Endpoints = service.MergeEndpoints(list)
		s.Ports = append(s.Ports, p)
	}
	s.Options.PortRanges = pick[service.RangesByProtocol](w, "", "", "80-81/TCP", "82-90/TCP,80/UDP",
		"1-65535/TCP,1-65535/UDP", "82/TCP")
	s.SetRangePorts()
	return s
}

// protect draws what is protected, and what is reserved.
func (w *claimWorld) protect(b *snapshots.Builder) {
	p := claims.Protected{}
	if w.IntN(2) == 0 {
		servers := claims.Servers{netip.MustParseAddrPort("203.0.113.7:80"), netip.MustParseAddrPort("203.0.113.7:81")}
		for _, a := range []string{apiFront, "0.0.0.0", nodeAddress} {
			p[service.Claim{Addr: netip.MustParseAddr(a), Protocol: service.TCP,
				Port: 80}] = claims.Protector{Protection: "the API server's", FromLoadBalancers: true, Servers: &servers}
		}
	}
	if w.IntN(2) == 0 {
		p[service.Claim{Addr: netip.MustParseAddr("0.0.0.0"), Protocol: service.TCP,
			Port: 81}] = claims.Protector{Protection: "a daemon's"}
	}
	r := claims.Reserved{Addresses: map[netip.Addr]service.Protection{}}
	if w.IntN(2) == 0 {
		r.Addresses[netip.MustParseAddr("192.0.2.255")] = "broadcast"
	}
	if w.IntN(2) == 0 {
		r.NodePods, r.Hosts = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}, addrs("10.244.0.6")
	}
	if w.IntN(2) == 0 {
		r.Pods = []netip.Prefix{netip.MustParsePrefix("10.245.0.0/16")}
	}
	r.KubeletPort = pick[uint16](w, 0, 81)
	r.NodePortAddresses = w.some(nodeAddress + " 2001:db8::1 " + podAddress)
	r.NodeAddresses = w.some(nodeAddress + " 203.0.113.7")
	w.protected, w.reserved = p, r
	b.SetProtected(p)
	b.SetReserved(r)
}

// claimOracle says by definition who has which claim.
type claimOracle struct {
	*claimWorld
	services map[service.Name]*service.Service
}

func (o *claimOracle) claimants(c service.Claim) (list []*service.Service) {
	for _, s := range o.services {
		if claimsOracle(s)[c] {
			list = append(list, s)
		}
	}
	return list
}

func (o *claimOracle) leads(s *service.Service, c service.Claim) bool {
	guard := o.protected[c]
	if guard.Servers == nil || s.Firewall().Restricts(c) && !slices.ContainsFunc(s.Sources.Ranges(),
		func(r netip.Prefix) bool { return r.Contains(netip.MustParseAddr(nodeAddress)) }) {
		return false
	}
	var ready, ending []netip.AddrPort
	for _, p := range s.Ports {
		for e := range p.Endpoints.All() {
			if (p.Port == c.Port && !c.Addr.IsUnspecified() || p.NodePort == c.Port && c.Addr.IsUnspecified()) &&
				p.Protocol == service.TCP {
				if e.Ready {
					ready = append(ready, e.Addr)
				} else if e.Serving && e.Terminating {
					ending = append(ending, e.Addr)
				}
			}
		}
	}
	if len(ready) == 0 || s.ExternalPolicy == service.Local {
		ready = append(ready, ending...)
	}
	return len(ready) > 0 && !slices.ContainsFunc(ready, func(a netip.AddrPort) bool {
		return !slices.Contains(*guard.Servers, a)
	})
}

func (o *claimOracle) protection(s *service.Service, c service.Claim) service.Protection {
	rank, in := rankOracle(s, c), func(p netip.Prefix) bool { return p.Contains(c.Addr) }
	guard, guarded := o.protected[c]
	if why := o.rangesKept(s, c, rank); why != "" {
		return why
	}
	switch {
	case rank == 0:
		return ""
	case guarded && (rank == 2 || guard.FromLoadBalancers) && !o.leads(s, c):
		return guard.Protection
	case c.Addr.IsUnspecified():
		return ""
	case o.reserved.Addresses[c.Addr] != "":
		return o.reserved.Addresses[c.Addr]
	case slices.ContainsFunc(o.reserved.NodePods, in) && !slices.Contains(o.reserved.Hosts, c.Addr):
		return "in the range of this node's pods"
	case rank == 2 && slices.ContainsFunc(o.reserved.Pods, in):
		return "in the range of the cluster's pods"
	case rank == 2 && c.Protocol == service.TCP && c.Port != 0 && o.reserved.KubeletPort == c.Port:
		return "the port of the nodes' kubelets"
	}
	return ""
}

// rangesKept is what protects a claim to ranges, beside what protects others.
func (o *claimOracle) rangesKept(s *service.Service, c service.Claim, rank int) (kept service.Protection) {
	if !c.IsRange() || rank == 0 {
		return ""
	}
	ranges, owner := rangesOracle(s, c.Protocol), clusterIPOracle(o.services, c.Addr)
	for guarded, guard := range o.protected {
		if guarded.Range() == c && ranges.Has(guarded.Port) && (rank == 2 || guard.FromLoadBalancers) &&
			(kept == "" || guard.Protection < kept) {
			kept = guard.Protection
		}
	}
	at := func(e service.Endpoint) bool { return e.Addr.Addr() == c.Addr }
	resident := o.resident(s, func(other *service.Service) bool {
		return slices.ContainsFunc(other.Ports, func(p service.Port) bool {
			return slices.ContainsFunc(slices.Collect(p.Endpoints.All()), at)
		})
	})
	switch {
	case slices.Contains(o.reserved.NodePortAddresses, c.Addr) || rank == 2 && slices.Contains(o.reserved.NodeAddresses,
		c.Addr):
		return "an address of the node, where ranges would take node ports and the node's own"
	case rank == 1:
		return kept
	case c.Protocol == service.TCP && o.reserved.KubeletPort != 0 && ranges.Has(o.reserved.KubeletPort):
		return "the port of the nodes' kubelets"
	case owner != nil:
		return "the cluster IP of Service " + service.Protection(owner.Name)
	case resident != nil:
		return "an endpoint of Service " + service.Protection(resident.Name) + " has the address"
	}
	return kept
}

// resident is the service that keeps an external IP from s, by an endpoint as has says; nil for none.
func (o *claimOracle) resident(s *service.Service, has func(*service.Service) bool) *service.Service {
	var oldest *service.Service
	for _, other := range o.services {
		if has(other) && (oldest == nil || compareAge(other, oldest) < 0) {
			oldest = other
		}
	}
	if oldest == nil || oldest == s || s.Created.Before(oldest.Created) {
		return nil
	}
	ours, _ := s.Name.Split()
	theirs, _ := oldest.Name.Split()
	if has(s) && ours == theirs {
		return nil
	}
	return oldest
}

// best is the claimant that goes first; nil for none.
func (o *claimOracle) best(c service.Claim) *service.Service {
	all := o.claimants(c)
	best := first(all, c, func(*service.Service) bool { return true })
	if best == nil || rankOracle(best, c) == 0 {
		return best
	}
	return cmp.Or(first(all, c, func(s *service.Service) bool { return o.leads(s, c) }), best)
}

// taken says whether something that is not the same claim keeps the claim from the service.
func (o *claimOracle) taken(s *service.Service, c service.Claim) bool {
	if c.Addr.IsUnspecified() || c.Protocol == 0 {
		return false
	}
	if r := o.best(c.Range()); r != nil && r != s && !c.IsRange() && rangesOracle(r, c.Protocol).Has(c.Port) &&
		o.protection(r, c.Range()) == "" &&
		first([]*service.Service{s, r}, c, func(*service.Service) bool { return true }) == r {
		return true
	}
	for _, port := range []uint16{c.Port, 0} { // 0 is that of the endpoints of ranges
		has := func(s *service.Service) bool {
			return slices.ContainsFunc(s.Ports, func(p service.Port) bool {
				return p.Protocol == c.Protocol && p.Endpoints.Find(service.Endpoint{Addr: netip.AddrPortFrom(c.Addr, port)}) != nil
			})
		}
		if rankOracle(s, c) == 2 && o.resident(s, has) != nil {
			return true
		}
	}
	n := o.number(c)
	if n == nil || n == s || rankOracle(s, c) < 2 {
		return false
	}
	return compareAge(n, s) < 0
}

// number is the service that has the claim's port as a number of the node, at an address
// where that counts; nil for none.
func (o *claimOracle) number(c service.Claim) *service.Service {
	if c.Protocol == 0 || !slices.Contains(o.reserved.NodePortAddresses, c.Addr) {
		return nil
	}
	n := service.NodePortClaim(ip.Of(c.Addr), &service.Port{Protocol: c.Protocol, NodePort: c.Port})
	if s := o.best(n); s != nil && o.protection(s, n) == "" {
		return s
	}
	return nil
}

func (o *claimOracle) conflicts() map[service.Name][]service.Conflict {
	all := map[service.Name][]service.Conflict{}
	every := map[service.Claim]bool{}
	for _, s := range o.services {
		maps.Copy(every, claimsOracle(s))
	}
	for c := range every {
		best := o.best(c)
		for _, s := range o.claimants(c) {
			why := o.protection(s, c)
			if why != "" || s != best || o.taken(s, c) {
				all[s.Name] = append(all[s.Name], service.Conflict{Claim: c, Protected: why})
			}
		}
		gets := rankOracle(best, c) > 0 && o.protection(best, c) == "" && !o.taken(best, c)
		if n := o.number(c); n != nil && gets && n != best && !claimsOracle(n)[c] {
			all[n.Name] = append(all[n.Name], service.Conflict{Claim: c})
		}
	}
	for _, list := range all {
		slices.SortFunc(list, func(a, b service.Conflict) int {
			return cmp.Or(a.Claim.Addr.Compare(b.Claim.Addr), cmp.Compare(a.Claim.Protocol, b.Claim.Protocol),
				cmp.Compare(a.Claim.Port, b.Claim.Port))
		})
	}
	return all
}

// TestReservedAgainstOracle: claims on pods' addresses, on numbers of the node, on
// reserved addresses and on the API server's, against their definition, after each of
// many changes. The snapshot of a fresh builder is the same.
func TestReservedAgainstOracle(t *testing.T) {
	kinds := map[string]int{}
	seeds(t, 40, func(t *testing.T, rng *rand.Rand) {
		w := &claimWorld{Rand: rng}
		node := service.Node{Name: "node-0", Addresses: addrs(nodeAddress)}
		b := snapshots.NewBuilder(node)
		w.protect(b)
		o := &claimOracle{w, map[service.Name]*service.Service{}}
		for change := range 120 {
			name := service.Name(pick(w, "a/", "b/") + pick(w, "x", "y", "z"))
			switch w.IntN(8) {
			case 0:
				b.Delete(name)
				delete(o.services, name)
			case 1:
				w.protect(b)
			default:
				s := w.service(name)
				if old := o.services[name]; old != nil && w.IntN(2) == 0 {
					s.Created, s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs = old.Created, old.ClusterIPs, old.ExternalIPs,
						old.LoadBalancerIPs
				}
				b.Set(s)
				o.services[name] = s
			}
			if w.IntN(4) == 0 {
				continue
			}
			got := map[service.Name][]service.Conflict{}
			for name, list := range b.Snapshot().Conflicts.All() {
				for c := range list.All() {
					got[name] = append(got[name], c)
					why := string(c.Protected)
					if at := strings.Index(why, " of Service "); at >= 0 {
						why = why[:at]
					}
					kinds[why]++
				}
			}
			if diff := difference(o.conflicts(), got, byValue); diff != "" {
				t.Fatalf("change %d (-want +got):\n%s\n%s", change, diff, b.Snapshot())
			}
			fresh := snapshots.NewBuilder(node)
			for _, name := range slices.Sorted(maps.Keys(o.services)) {
				fresh.Set(o.services[name])
			}
			fresh.SetReserved(w.reserved)
			fresh.SetProtected(w.protected)
			if a, b := fresh.Snapshot().String(), b.Snapshot().String(); a != b {
				t.Fatalf("change %d: fresh:\n%s\nhistory:\n%s", change, a, b)
			}
		}
	})
	for _, kind := range []string{"", "the API server's", "a daemon's", "broadcast", "in the range of this node's pods",
		"in the range of the cluster's pods", "the port of the nodes' kubelets",
		"the cluster IP", "an endpoint", "an address of the node, where ranges would take node ports and the node's own"} {
		if kinds[kind] == 0 {
			t.Errorf("no claim was a conflict by %q", kind)
		}
	}
}

// owners is who has each of the claims of some services that several make.
func owners(s service.Snapshot, services map[service.Name]*service.Service) map[service.Claim]service.Name {
	all := map[service.Claim]service.Name{}
	for _, svc := range services {
		for c := range claimsOracle(svc) {
			if owner := s.Owners.Of(c); owner != "" {
				all[c] = owner
			}
		}
	}
	return all
}

// TestDecidedTogether: after each of many changes, what was decided again as far as it was touched is what a fresh
// builder decides of all at once: among many services with many claims at the same addresses, some of them retained,
// and with more lists of source ranges than there is room for.
func TestDecidedTogether(t *testing.T) {
	restricted, closed, taken := 0, 0, 0
	seeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		w := &claimWorld{Rand: rng}
		node := service.Node{Name: "node-0", Addresses: addrs(nodeAddress)}
		build := func() *snapshots.Builder {
			b := snapshots.NewBuilder(node)
			b.SetMaxSourceLists(3)
			return b
		}
		b, services := build(), map[service.Name]*service.Service{}
		w.protect(b)
		for range 150 {
			name := service.Name(pick(w, "a/", "b/", "c/") + string(rune('a'+w.IntN(12))))
			switch old := services[name]; w.IntN(10) {
			case 0:
				b.Delete(name)
				delete(services, name)
			case 1:
				w.protect(b)
			case 2:
				node.Addresses = w.some(nodeAddress + " 203.0.113.7")
				b.SetNode(node)
			default:
				s := w.service(name)
				for i := range w.IntN(12) {
					s.Ports = append(s.Ports, service.Port{Name: fmt.Sprint("q", i), Protocol: pick(w, service.TCP, service.UDP),
						Port: uint16(82 + i), NodePort: pick[uint16](w, 0, 80, 81, 82)})
				}
				s.SetRangePorts()
				if w.IntN(4) == 0 {
					s.Retained = service.RetainedService
				}
				if w.IntN(3) == 0 {
					s.Sources = service.NewSources([]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(w.IntN(4))}), 16)})
				}
				if old != nil && w.IntN(2) == 0 { // other endpoints only
					s.Created, s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs = old.Created, old.ClusterIPs, old.ExternalIPs,
						old.LoadBalancerIPs
				}
				b.Set(s)
				services[name] = s
			}
			if w.IntN(4) == 0 {
				continue
			}
			fresh := build()
			for _, s := range services {
				fresh.Set(s)
			}
			fresh.SetNode(node)
			fresh.SetReserved(w.reserved)
			fresh.SetProtected(w.protected)
			want, got := fresh.Snapshot(), b.Snapshot()
			if diff := difference(contentsOf(want), contentsOf(got), byValue, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("(-together +step by step):\n%s", diff)
			}
			if diff := difference(owners(want, services), owners(got, services), byValue); diff != "" {
				t.Fatalf("owners (-together +step by step):\n%s", diff)
			}
			restricted, closed = restricted+got.Restrictions.Len(), closed+got.ClosedSources.Len()
			taken += got.Conflicts.Len()
		}
	})
	if restricted*closed*taken == 0 {
		t.Errorf("%d restricted, %d closed, %d in conflict: nothing was tested", restricted, closed, taken)
	}
}

// TestNumberAfterResident: a node port loses its number at an address of the node when the endpoint goes that kept the
// number from an older external IP there, whether it is an endpoint of a port or of ranges.
func TestNumberAfterResident(t *testing.T) {
	node := netip.MustParseAddr(nodeAddress)
	at := func(name service.Name, created int, s service.Service) *service.Service {
		s.Name, s.Created, s.ClusterIPs = name, time.Unix(int64(created), 0),
			[]netip.Addr{netip.AddrFrom4([4]byte{10, 104, 0, byte(created)})}
		s.SetRangePorts()
		return &s
	}
	for kind, ranges := range map[string]service.RangesByProtocol{"port": "", "ranges": "1-100/TCP"} {
		t.Run(kind, func(t *testing.T) {
			host := service.Endpoint{Addr: netip.AddrPortFrom(node, 80), Ready: true}
			if ranges != "" {
				host.Addr = netip.AddrPortFrom(node, 90)
			}
			b := snapshots.NewBuilder(service.Node{Name: "node-0", Addresses: []netip.Addr{node}})
			b.SetReserved(claims.Reserved{NodePortAddresses: []netip.Addr{node}})
			b.Set(at("c/number", 3, service.Service{Ports: []service.Port{{Protocol: service.TCP, Port: 9, NodePort: 80}}}))
			b.Set(at("b/external", 2, service.Service{ExternalIPs: []netip.Addr{node},
				Ports: []service.Port{{Protocol: service.TCP, Port: 80}}}))
			b.Set(at("a/resident", 1, service.Service{
				Ports: []service.Port{{Protocol: service.TCP, Port: 9,
					Endpoints: service.MergeEndpoints([]service.Endpoint{host})}},
				Options: service.Options{PortRanges: ranges},
			}))
			claim := service.Claim{Addr: node, Protocol: service.TCP, Port: 80}
			for _, step := range []struct {
				resident, external, number bool
			}{{true, true, false}, {false, false, true}} {
				if !step.resident {
					b.Delete("a/resident")
				}
				s := b.Snapshot()
				if e, n := s.Conflicts.At("b/external").Has(claim), s.Conflicts.At("c/number").Has(claim); e != step.external ||
					n != step.number {
					t.Errorf("with the endpoint: %t: the external IP lacks the port: %t, the node port its number: %t", step.resident,
						e, n)
				}
			}
		})
	}
}

// TestNumberOfOneThatCameAgain: a service that lost its number at an address of the node is deleted, and comes again
// with the address as its external IP. It lacks the port there, although it no longer lacks the number.
func TestNumberOfOneThatCameAgain(t *testing.T) {
	node := netip.MustParseAddr(nodeAddress)
	external := func(name service.Name, created int, port service.Port) *service.Service {
		port.Protocol = service.TCP
		return &service.Service{Name: name, Created: time.Unix(int64(created), 0), ExternalIPs: []netip.Addr{node},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 104, 0, byte(created)})}, Ports: []service.Port{port}}
	}
	b := snapshots.NewBuilder(service.Node{Name: "node-0", Addresses: []netip.Addr{node}})
	b.SetReserved(claims.Reserved{NodePortAddresses: []netip.Addr{node}})
	b.Set(external("a/external", 1, service.Port{Port: 80}))
	b.Set(external("b/number", 2, service.Port{Port: 9, NodePort: 80}))
	claim := service.Claim{Addr: node, Protocol: service.TCP, Port: 80}
	for _, step := range []string{"first", "again"} {
		if s := b.Snapshot(); !s.Conflicts.At("b/number").Has(claim) || s.Conflicts.At("a/external").Has(claim) {
			t.Errorf("%s: the younger service has the port", step)
		}
		b.Delete("b/number")
		b.Set(external("b/number", 3, service.Port{Port: 80}))
	}
}

package gen

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// Options are the sizes of the pools. A zero field takes the default.
type Options struct {
	// Names of services; 12.
	Names int
	// ClusterIPs and ExternalIPs of each family; 12 and 4. The last external
	// address is also a cluster IP.
	ClusterIPs, ExternalIPs int
	// Ports and NodePorts that a service may use; 4 each.
	Ports, NodePorts int
	// Endpoints is the greatest number of endpoints of a port in one family;
	// 6, drawn from twice as many addresses.
	Endpoints int
	// Nodes that endpoints run on; 3. The first is node-0, see PlainNode.
	Nodes int
	// LoadBalancerIPs of each family; 3, and two more that are an external
	// address and a cluster IP.
	LoadBalancerIPs int
	// LoadBalancers gives services load balancers' addresses, source ranges
	// and health check node ports.
	LoadBalancers bool
	// Affinity gives services session affinity.
	Affinity bool
	// Annotations gives services the options that they ask for by annotations, and endpoints weights.
	Annotations bool
}

func (o Options) filled() Options {
	for _, f := range []struct {
		field *int
		value int
	}{
		{&o.Names, 12}, {&o.ClusterIPs, 12}, {&o.ExternalIPs, 4}, {&o.Ports, 4},
		{&o.NodePorts, 4}, {&o.Endpoints, 6}, {&o.Nodes, 3}, {&o.LoadBalancerIPs, 3},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return o
}

// PlainNode is the node that snapshots of this package are for: node-0, with two
// addresses of its own on its interfaces.
func PlainNode() service.Node {
	addrs := []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("2001:db8::2")}
	return service.Node{Name: "node-0", Zone: "zone-0", Addresses: addrs, HostAddresses: slices.Clone(addrs)}
}

// Name is the i-th name of the pool; i counts from 0.
func Name(i int) service.Name {
	return service.NewName(fmt.Sprintf("ns-%d", i%3), fmt.Sprintf("svc-%d", i))
}

// Service makes a service of a random name.
func Service(rng *rand.Rand, opts Options) *service.Service {
	return NamedService(rng, Name(rng.IntN(opts.filled().Names)), opts)
}

// NamedService makes a random service of that name: of one family or both, with one
// to three ports, external addresses and node ports now and then.
func NamedService(rng *rand.Rand, name service.Name, opts Options) *service.Service {
	o := opts.filled()
	s := &service.Service{
		Name: name,
		// Three ages for all, so that the name has to decide often.
		Created: time.Date(2026, 1, 1, 0, 0, rng.IntN(3), 0, time.UTC),
	}
	families := []string{"10.96.0.%d", "fd00:96::%x"}
	external := []string{"198.51.100.%d", "2001:db8:99::%x"}
	pods := []string{"10.0.0.%d", "fd00:1::%x"}
	switch rng.IntN(4) {
	case 0:
		families, external, pods = families[1:], external[1:], pods[1:]
	case 1, 2:
		families, external, pods = families[:1], external[:1], pods[:1]
	}
	for i, format := range families {
		s.ClusterIPs = append(s.ClusterIPs, address(format, rng.IntN(o.ClusterIPs)))
		for range max(0, rng.IntN(6)-3) {
			at := rng.IntN(o.ExternalIPs)
			a := address(external[i], at)
			if at == o.ExternalIPs-1 {
				a = address(format, 0)
			}
			if !slices.Contains(s.ExternalIPs, a) {
				s.ExternalIPs = append(s.ExternalIPs, a)
			}
		}
	}
	for i := range 1 + rng.IntN(3) {
		p := service.Port{Name: fmt.Sprintf("p%d", i), Protocol: protocol(rng), Port: uint16(80 + rng.IntN(o.Ports))}
		if rng.IntN(3) == 0 {
			p.NodePort = uint16(30000 + rng.IntN(o.NodePorts))
		}
		if slices.ContainsFunc(s.Ports, func(q service.Port) bool {
			return p.Protocol == q.Protocol && (p.Port == q.Port || p.NodePort != 0 && p.NodePort == q.NodePort)
		}) {
			continue
		}
		p.Endpoints = service.MergeEndpoints(endpoints(rng, o, pods))
		s.Ports = append(s.Ports, p)
	}
	s.InternalPolicy = rng.IntN(4) == 0
	s.ExternalPolicy = rng.IntN(3) == 0
	if len(s.Ports) == 1 && rng.IntN(2) == 0 {
		s.Ports[0].Name = ""
	}
	if o.LoadBalancers {
		s.LoadBalancerIPs, s.Sources = loadBalancerIPs(rng, s, o), sources(rng)
		if s.ExternalPolicy == service.Local && rng.IntN(2) == 0 {
			s.HealthCheckNodePort = uint16(32000 + rng.IntN(4))
		}
	}
	if o.Affinity {
		s.AffinityTimeout = affinityTimeout(rng)
	}
	if o.Annotations && rng.IntN(3) == 0 {
		s.Options = options(rng, s)
		s.Sources = s.Sources.And(s.Options.SourceRanges)
	}
	s.SetRangePorts()
	return s
}

// address is the i-th of a pool given by its format.
func address(format string, i int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, i+1))
}

func protocol(rng *rand.Rand) service.Protocol {
	return []service.Protocol{service.TCP, service.TCP, service.UDP, service.SCTP}[rng.IntN(4)]
}

func endpoints(rng *rand.Rand, o Options, pods []string) []service.Endpoint {
	var list []service.Endpoint
	hinted, weighted := rng.IntN(4), o.Annotations && rng.IntN(4) == 0
	for _, format := range pods {
		for range rng.IntN(o.Endpoints + 1) {
			e := endpoint(rng, o, format)
			// Hints count only if all have them, and mostly all do.
			if hinted&1 != 0 && rng.IntN(20) > 0 {
				e.Nodes = service.NewHints([]string{fmt.Sprintf("node-%d", rng.IntN(o.Nodes))})
			}
			if hinted&2 != 0 && rng.IntN(20) > 0 {
				e.Zones = service.NewHints([]string{fmt.Sprintf("zone-%d", rng.IntN(3)), fmt.Sprintf("zone-%d", rng.IntN(3))})
			}
			if weighted {
				e.Weight = service.NewWeight(uint16(50 * rng.IntN(4)))
			}
			list = append(list, e)
		}
	}
	return list
}

func endpoint(rng *rand.Rand, o Options, format string) service.Endpoint {
	e := service.Endpoint{
		Addr:  netip.AddrPortFrom(address(format, rng.IntN(2*o.Endpoints)), uint16(8080+rng.IntN(2))),
		Ready: true, Serving: true,
	}
	if n := rng.IntN(o.Nodes + 1); n > 0 {
		e.Node = fmt.Sprintf("node-%d", n-1)
	}
	switch rng.IntN(6) {
	case 0: // terminating, still serving or not
		e.Ready, e.Serving, e.Terminating = false, rng.IntN(2) == 0, true
	case 1: // not ready yet
		e.Ready, e.Serving = false, false
	}
	return e
}

// Mutate returns s with one small change: an endpoint comes, goes or changes its
// conditions, or a port loses or gains all endpoints. With the Options for them, load
// balancer and affinity change too.
func Mutate(rng *rand.Rand, s *service.Service, opts Options) *service.Service {
	o := opts.filled()
	next := *s.Clone()
	if mutateRarely(rng, &next, o) {
		next.SetRangePorts()
		return &next
	}
	p := &next.Ports[rng.IntN(len(next.Ports))]
	list := slices.Collect(p.Endpoints.All())
	format := "10.0.0.%d"
	if a := s.ClusterIPs[rng.IntN(len(s.ClusterIPs))]; a.Is6() {
		format = "fd00:1::%x"
	}
	switch n := len(list); {
	case n == 0 || rng.IntN(3) == 0:
		list = append(list, endpoint(rng, o, format))
	case rng.IntN(6) == 0:
		list = nil
	case rng.IntN(2) == 0:
		i := rng.IntN(n)
		list = slices.Delete(list, i, i+1)
	case o.Annotations && rng.IntN(4) == 0:
		list[rng.IntN(n)].Weight = service.NewWeight(uint16(50 * rng.IntN(4)))
	default:
		e := &list[rng.IntN(n)]
		e.Ready, e.Terminating = !e.Ready, e.Ready
	}
	p.Endpoints = service.MergeEndpoints(list)
	next.SetRangePorts()
	return &next
}

// Change sets a service or, with a nil Service, deletes the one of that name.
type Change struct {
	Name    service.Name
	Service *service.Service
}

// Changes returns a stream of n changes: new services, small and large changes of
// services, and deletions.
func Changes(rng *rand.Rand, n int, opts Options) []Change {
	o := opts.filled()
	now := map[service.Name]*service.Service{}
	var list []Change
	for range n {
		name := Name(rng.IntN(o.Names))
		c := Change{Name: name}
		switch old := now[name]; {
		case old == nil || rng.IntN(4) == 0:
			c.Service = NamedService(rng, name, opts)
		case rng.IntN(4) > 0:
			c.Service = Mutate(rng, old, opts)
		}
		now[name] = c.Service
		list = append(list, c)
	}
	return list
}

// Apply makes the change.
func (c Change) Apply(b *snapshots.Builder) {
	if c.Service == nil {
		b.Delete(c.Name)
		return
	}
	b.Set(c.Service)
}

// Snapshot returns a snapshot with random services of about half of the pool's names.
func Snapshot(rng *rand.Rand, opts Options) service.Snapshot {
	b := snapshots.NewBuilder(PlainNode())
	for i := range opts.filled().Names {
		if rng.IntN(2) == 0 {
			b.Set(NamedService(rng, Name(i), opts))
		}
	}
	return b.Snapshot()
}

// Uniform returns a cluster for measurements: n services (65,536 at most), each with one
// cluster IP, TCP port 80 and the same number of ready endpoints (255 at most). No two
// services share an address. Every tenth service has a node port.
func Uniform(n, endpoints int) service.Snapshot {
	b := snapshots.NewBuilder(PlainNode())
	for i := range n {
		b.Set(UniformService(i, endpoints))
	}
	return b.Snapshot()
}

// UniformService is the i-th service of a Uniform cluster.
func UniformService(i, endpoints int) *service.Service {
	hi, lo := byte(i>>8), byte(i)
	p := service.Port{Name: "http", Protocol: service.TCP, Port: 80}
	if i%10 == 0 {
		p.NodePort = uint16(30000 + i/10)
	}
	var list []service.Endpoint
	for e := range endpoints {
		list = append(list, service.Endpoint{
			Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, hi, lo, byte(e + 1)}), 8080),
			Node:  fmt.Sprintf("node-%d", (i+e)%100),
			Ready: true, Serving: true,
		})
	}
	p.Endpoints = service.MergeEndpoints(list)
	return &service.Service{
		Name:       service.NewName(fmt.Sprintf("ns-%d", i%50), fmt.Sprintf("svc-%d", i)),
		Created:    time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, hi, lo})},
		Ports:      []service.Port{p},
	}
}

package watch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// objects are the API objects of a small cluster, by name.
type objects struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	// balance is the node's.
	balance service.Balance
}

func newObjects() objects {
	return objects{services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}}
}

// randomEvent sets or deletes one object, both in the objects and in the index.
func randomEvent(rng *rand.Rand, o objects, ix *index) {
	if i := rng.IntN(5); rng.IntN(3) == 0 {
		name := fmt.Sprint("svc-", i)
		if rng.IntN(4) == 0 {
			delete(o.services, name)
			ix.deleteService(service.NewName("default", name))
			return
		}
		o.services[name] = randomService(rng, name)
		ix.setService(convertService(o.services[name]))
		return
	}
	name := fmt.Sprint("slice-", rng.IntN(10))
	if rng.IntN(4) == 0 {
		delete(o.slices, name)
		ix.deleteSlice(service.NewName("default", name))
		return
	}
	o.slices[name] = randomSlice(rng, name)
	ix.setSlice(convertSlice(o.slices[name]))
}

func randomService(rng *rand.Rand, name string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Unix(int64(rng.IntN(2)),
			0)},
		Spec: corev1.ServiceSpec{
			ClusterIP: fmt.Sprint("10.96.0.", rng.IntN(6)+1),
			Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81},
				{Name: "a", Protocol: corev1.ProtocolUDP, Port: 80}}[:rng.IntN(4)],
		},
	}
	if rng.IntN(4) == 0 {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	switch rng.IntN(7) {
	case 0:
		s.Spec.ClusterIP = corev1.ClusterIPNone
	case 1:
		s.Labels = map[string]string{labelProxyName: "mesh"}
	case 2:
		s.Annotations = map[string]string{service.OptionPrefix + "port-ranges": []string{"70-90/TCP", "80/UDP,81/TCP",
			"1-65535/SCTP", "80"}[rng.IntN(4)]}
	case 3:
		s.Annotations = map[string]string{service.OptionPrefix + "external-failover": []string{"pass", "cluster",
			"perhaps"}[rng.IntN(3)]}
	case 4:
		s.Annotations = map[string]string{service.OptionPrefix + "balance": []string{"random", "client", "flow",
			"source"}[rng.IntN(4)]}
	case 5:
		s.Annotations = map[string]string{ciliumAlgorithm: []string{"random", "maglev", "maglev", "least-conn"}[rng.IntN(4)]}
		if rng.IntN(3) == 0 {
			s.Annotations[service.OptionPrefix+"balance"] = "client"
		}
	}
	return s
}

// ciliumAlgorithm is an annotation of Cilium that means what balance means.
const ciliumAlgorithm = "service.cilium.io/lb-algorithm"

func randomSlice(rng *rand.Rand, name string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("svc-", rng.IntN(5))},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range []string{"a", "b"}[:rng.IntN(3)] {
		number := int32(8080 + rng.IntN(2))
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p, Port: &number})
	}
	for range rng.IntN(4) {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.0.0.", rng.IntN(6)+1)}}
		for _, c := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			if b := rng.IntN(2) == 0; rng.IntN(2) == 0 {
				*c = &b
			}
		}
		if node := fmt.Sprint("node-", rng.IntN(3)); rng.IntN(3) > 0 {
			e.NodeName = &node
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// oracle joins all objects with each other, straight from the API's objects.
func (o objects) oracle() service.Snapshot {
	b := snapshots.NewBuilder(service.Node{Name: "node-0"})
	value := func(b *bool, absent bool) bool {
		if b == nil {
			return absent
		}
		return *b
	}
	for _, s := range o.services {
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		out := &service.Service{
			Name: service.NewName("default", s.Name), Created: s.CreationTimestamp.UTC(),
			ClusterIPs: []netip.Addr{netip.MustParseAddr(s.Spec.ClusterIP)},
		}
		switch s.Annotations[service.OptionPrefix+"external-failover"] {
		case "pass":
			out.Options.ExternalFailover = service.FailoverPass
		case "cluster":
			out.Options.ExternalFailover = service.FailoverCluster
		}
		balance, own := s.Annotations[service.OptionPrefix+"balance"]
		if !own {
			balance = map[string]string{"random": "random", "maglev": "flow"}[s.Annotations[ciliumAlgorithm]]
		}
		switch balance {
		case "random":
		case "client":
			out.Options.Balance = service.ByClient
		case "flow":
			out.Options.Balance = service.ByFlow
			if !own && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
				out.Options.Balance = service.ByClient
			}
		default:
			if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
				out.Options.Balance = o.balance
			}
		}
		if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			out.AffinityTimeout = 3 * time.Hour
		}
		_ = out.Options.Set("port-ranges", s.Annotations[service.OptionPrefix+"port-ranges"]) // a bad value leaves it empty
		for _, p := range s.Spec.Ports {
			port := service.Port{Name: p.Name, Protocol: service.TCP, Port: uint16(p.Port)}
			if p.Protocol == corev1.ProtocolUDP {
				port.Protocol = service.UDP
			}
			var endpoints []service.Endpoint
			for _, slice := range o.slices {
				for _, sp := range slice.Ports {
					if slice.Labels[discoveryv1.LabelServiceName] != s.Name || *sp.Name != p.Name || port.Protocol != service.TCP {
						continue
					}
					for _, e := range slice.Endpoints {
						endpoint := service.Endpoint{
							Addr:        netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*sp.Port)),
							Ready:       value(e.Conditions.Ready, true),
							Serving:     value(e.Conditions.Serving, true),
							Terminating: value(e.Conditions.Terminating, false),
						}
						if e.NodeName != nil {
							endpoint.Node = *e.NodeName
						}
						endpoints = append(endpoints, endpoint)
					}
				}
			}
			port.Endpoints = service.MergeEndpoints(endpoints)
			out.Ports = append(out.Ports, port)
		}
		if s.Labels[labelProxyName] != "" {
			b.SetOther(out)
			continue
		}
		out.SetRangePorts()
		b.Set(out)
	}
	return b.Snapshot()
}

// checkHistory plays n random events, and flushes now and then. It compares the result
// with the oracle, and with an index that sees only the final objects, in another order.
func checkHistory(t *testing.T, rng *rand.Rand, n int) {
	t.Helper()
	ix, o := newIndex("node-0"), newObjects()
	o.balance = service.Balance(rng.IntN(3))
	ix.options.Balance = o.balance
	var last service.Snapshot
	var text string
	for range n {
		randomEvent(rng, o, ix)
		if rng.IntN(3) == 0 {
			now := ix.flush()
			compareSnapshots(t, "oracle", o.oracle(), now)
			if text != "" && last.String() != text {
				t.Fatalf("events changed an earlier snapshot:\n%s\nbefore:\n%s", last, text)
			}
			last, text = now, now.String()
		}
	}
	end := ix.flush()
	compareSnapshots(t, "oracle at the end", o.oracle(), end)
	if again := ix.flush(); again != end {
		t.Fatal("a flush without events changed the snapshot")
	}

	fresh := newIndex("node-0")
	fresh.options.Balance = o.balance
	var steps []func()
	for _, s := range o.services {
		steps = append(steps, func() { fresh.setService(convertService(s)) })
	}
	for _, s := range o.slices {
		steps = append(steps, func() { fresh.setSlice(convertSlice(s)) })
	}
	rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		step()
	}
	compareSnapshots(t, "fresh build", fresh.flush(), end)
	if n := len(ix.knownServices()); n > len(o.services) || len(ix.slices) != len(o.slices) {
		t.Fatalf("the index keeps %d services and %d slices of %d and %d", n, len(ix.slices), len(o.services), len(o.slices))
	}
	for owner, j := range ix.joined {
		if j.object == nil && j.foreign == nil && len(j.slices) == 0 || j.dirty {
			t.Fatalf("%s is left though nothing is joined there, or waits for a flush: %t", owner, j.dirty)
		}
		if j.object != nil && j.object.bare != ix.builder.Service(owner) {
			t.Fatalf("%s is there twice: as an object and in the snapshot", owner)
		}
		for _, s := range j.slices {
			if ix.slices[s.key] != s || s.owner != owner {
				t.Fatalf("slice %s is left with %s", s.key, owner)
			}
		}
	}
}

func compareSnapshots(t *testing.T, what string, want, got service.Snapshot) {
	t.Helper()
	if diff := cmp.Diff(want.String(), got.String()); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

func TestEventOrder(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			checkHistory(t, rand.New(rand.NewPCG(seed, 3)), 100)
		})
	}
}

// byteSource turns a fuzzer's bytes into random numbers, so that the fuzzer can steer
// every choice. After the last byte the numbers are random.
type byteSource struct {
	data []byte
	rand.Source
}

func (s *byteSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.Source.Uint64()
	}
	b := s.data[0]
	s.data = s.data[1:]
	return uint64(b) * 0x0101010101010101 // The byte goes into every part of the word that IntN may look at.
}

func FuzzEventOrder(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 4))
	for range 20 {
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(rng.IntN(256))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1000 {
			return
		}
		checkHistory(t, rand.New(&byteSource{data, rand.NewPCG(1, 5)}), len(data)/8)
	})
}

// TestUnrelatedKeepItsPointer: an event replaces its own service and no other. Ports with
// unchanged endpoints share these with the last version.
func TestUnrelatedKeepItsPointer(t *testing.T) {
	ix := newIndex("node-0")
	for i := range 3 {
		ix.setService(convertService(uniformService(i)))
		ix.setSlice(convertSlice(uniformSlice(i, 3)))
	}
	before := ix.flush()

	ix.setSlice(convertSlice(uniformSlice(1, 3)))
	ix.setService(convertService(uniformService(1)))
	if ix.flush() != before {
		t.Error("equal objects changed the snapshot")
	}
	s := uniformSlice(1, 3)
	changed, extra := "changed", int32(9090)
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &changed, Port: &extra})
	ix.setSlice(convertSlice(s))
	svc := uniformService(1)
	svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: changed, Port: 81})
	ix.setService(convertService(svc))
	after := ix.flush()
	for name, old := range before.Services.All() {
		if now := after.Services.At(name); (now != old) != (name == "ns-1/svc-1") {
			t.Errorf("%s: replaced: %t", name, now != old)
		}
	}
	old, now := before.Services.At("ns-1/svc-1"), after.Services.At("ns-1/svc-1")
	if len(now.Ports) != 2 || now.Ports[1].Endpoints.Len() != 3 {
		t.Fatalf("the second port is not there:\n%s", now)
	}
	if !old.Ports[0].Endpoints.Same(now.Ports[0].Endpoints) {
		t.Error("the port that did not change has a copy of its endpoints")
	}
	if held := ix.slices["ns-1/slice-1"].port(now.Ports[0].InSlices()); !held.Same(now.Ports[0].Endpoints) {
		t.Error("the slice and the service hold the same endpoints twice")
	}
}

// TestLimits: names of the greatest length, and ten slices of 1,000 endpoints.
func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 63)
	ix := newIndex("node-0")
	ix.setService(convertService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: long, Name: long},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: long, Port: 80}}},
	}))
	want := map[netip.AddrPort]bool{}
	for i := range 10 {
		port, protocol := int32(8080), corev1.ProtocolTCP
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: long, Name: fmt.Sprint(long, "-", i),
				Labels: map[string]string{discoveryv1.LabelServiceName: long}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &long, Port: &port, Protocol: &protocol}},
		}
		for e := range 1000 {
			addr := fmt.Sprintf("10.%d.%d.%d", i, e/250, e%250+1)
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
			want[netip.AddrPortFrom(netip.MustParseAddr(addr), 8080)] = true
		}
		ix.setSlice(convertSlice(s))
	}
	snapshot := ix.flush()
	if problems := ix.takeProblems(); len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	s := snapshot.Services.At(service.NewName(long, long))
	got := map[netip.AddrPort]bool{}
	for a := range share.Choose(s, &s.Ports[0], &service.Node{}, ip.V4).Cluster.All() {
		got[a] = true
	}
	if !maps.Equal(want, got) || s.ID(&s.Ports[0]) != long+"/"+long+":"+long {
		t.Fatalf("%d endpoints of %d, of %s", len(got), len(want), s.ID(&s.Ports[0]))
	}
	back, err := gen.ReadSnapshot(strings.NewReader(snapshot.String()))
	if err != nil || back.String() != snapshot.String() {
		t.Fatalf("the text form does not come back: %v", err)
	}
}

// uniformService and uniformSlice are the i-th objects of a large cluster, as its API
// server would send them.
func uniformService(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprint("ns-", i%50), Name: fmt.Sprint("svc-", i), UID: "5e4b6f0e-0000-4000-8000-000000000000",
			CreationTimestamp: metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: fmt.Sprintf("172.30.%d.%d", i>>8, i&255), ClusterIPs: []string{fmt.Sprintf("172.30.%d.%d", i>>8, i&255)},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func uniformSlice(i, endpoints int) *discoveryv1.EndpointSlice {
	name, port, protocol, yes, no := "http", int32(8080), corev1.ProtocolTCP, true, false
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprint("ns-", i%50), Name: fmt.Sprint("slice-", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("svc-", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
	for e := range endpoints {
		node := fmt.Sprint("node-", (i+e)%1000)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, e+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node,
		})
	}
	return s
}

func uniformIndex(services, endpoints int) *index {
	ix := newIndex("node-0")
	for i := range services {
		ix.setService(convertService(uniformService(i)))
		ix.setSlice(convertSlice(uniformSlice(i, endpoints)))
	}
	ix.flush()
	return ix
}

// TestEventCostsItsServiceOnly counts the allocations of an event in clusters of two
// sizes. They may differ by the length of the path to the service in the snapshot's tree,
// but not by the size of the cluster.
func TestEventCostsItsServiceOnly(t *testing.T) {
	cost := func(services int) float64 {
		ix := uniformIndex(services, 10)
		variants := []*discoveryv1.EndpointSlice{uniformSlice(services/2, 10), uniformSlice(services/2, 9)}
		i := 0
		return testing.AllocsPerRun(10, func() {
			ix.setSlice(convertSlice(variants[i%2]))
			ix.flush()
			i++
		})
	}
	small, large := cost(10), cost(5000)
	if large > small+40 {
		t.Fatalf("an event takes %v allocations among 10 services, %v among 5,000", small, large)
	}
}

func BenchmarkSliceEvent(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{100, 10}, {10_000, 10}, {10, 1000}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			ix := uniformIndex(size.services, min(size.endpoints, 250))
			variants := []*discoveryv1.EndpointSlice{uniformSlice(5, size.endpoints), uniformSlice(5, size.endpoints-1)}
			if size.endpoints > 250 {
				variants = slices.Clone(variants)
				for _, v := range variants {
					for e := range v.Endpoints {
						v.Endpoints[e].Addresses = []string{fmt.Sprintf("10.200.%d.%d", e/250, e%250+1)}
					}
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ix.setSlice(convertSlice(variants[i%2]))
				ix.flush()
			}
		})
	}
}

// BenchmarkInitialBuild converts and joins a whole cluster, as a start does.
func BenchmarkInitialBuild(b *testing.B) {
	var services []*corev1.Service
	var endpointSlices []*discoveryv1.EndpointSlice
	for i := range 10_000 {
		services = append(services, uniformService(i))
		endpointSlices = append(endpointSlices, uniformSlice(i, 10))
	}
	b.ReportAllocs()
	for b.Loop() {
		ix := newIndex("node-0")
		for i := range services {
			ix.setService(convertService(services[i]))
			ix.setSlice(convertSlice(endpointSlices[i]))
		}
		ix.flush()
	}
}

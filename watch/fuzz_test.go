package watch

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// message is an object of the API as it travels.
type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
	GetNamespace() string
	GetName() string
}

// decode reads an object as JSON, if it looks so, or else as protobuf. It returns false for
// one that does not decode, or whose names no API server accepts.
func decode(data []byte, into message) bool {
	if strings.HasPrefix(string(data), "{") {
		if json.Unmarshal(data, into) != nil {
			return false
		}
	} else if into.Unmarshal(data) != nil {
		return false
	}
	return into.GetName() != "" && checkName(into.GetName()) == nil && checkName(into.GetNamespace()) == nil
}

// fuzzedObjects are two Services, three EndpointSlices, a Node and a ServiceCIDR in protobuf
// or JSON.
type fuzzedObjects [7][]byte

// events returns a function for each object that decodes. It sets the object in an index. Of
// Services with one name, and of slices, only the first counts: they are one object at
// different times, and the order of its events does count.
func (o *fuzzedObjects) events() (set, remove []func(*index)) {
	type object struct {
		service bool
		name    service.Name
	}
	seen := map[object]bool{}
	first := func(o object) bool {
		again := seen[o]
		seen[o] = true
		return !again
	}
	for i, data := range o {
		switch {
		case i < 2:
			if s := new(corev1.Service); decode(data, s) && first(object{true, service.NewName(s.Namespace, s.Name)}) {
				set = append(set, func(ix *index) { ix.setService(convertService(s)) })
				remove = append(remove, func(ix *index) { ix.deleteService(service.NewName(s.Namespace, s.Name)) })
			}
		case i < 5:
			if s := new(discoveryv1.EndpointSlice); decode(data, s) &&
				first(object{false, service.NewName(s.Namespace, s.Name)}) {
				if _, owned := s.Labels[discoveryv1.LabelServiceName]; owned &&
					checkName(s.Labels[discoveryv1.LabelServiceName]) != nil {
					continue
				}
				set = append(set, func(ix *index) { ix.setSlice(convertSlice(s)) })
				remove = append(remove, func(ix *index) { ix.deleteSlice(service.NewName(s.Namespace, s.Name)) })
			}
		case i == 5:
			if n := new(corev1.Node); decode(data, n) {
				n.Namespace, n.Name = "", "node-0"
				set = append(set, func(ix *index) { ix.setNode(convertNode(n)) })
				remove = append(remove, func(ix *index) { ix.deleteNode(service.NewName("", n.Name)) })
			}
		default:
			if c := new(networkingv1.ServiceCIDR); decode(data, c) {
				set = append(set, func(ix *index) { ix.setCIDR(convertCIDR(c)) })
				remove = append(remove, func(ix *index) { ix.deleteCIDR(service.NewName(c.Namespace, c.Name)) })
			}
		}
	}
	return set, remove
}

// fuzzedSeeds are objects of random clusters.
func fuzzedSeeds(t testing.TB) []fuzzedObjects {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 15))
	marshal := func(m message) []byte {
		data, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var seeds []fuzzedObjects
	for i := range 8 {
		var o fuzzedObjects
		for j := range 2 {
			s := randomService(rng, []string{"svc-0", "svc-1"}[j])
			s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{s.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
			s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{"198.51.100.1"}
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", " 192.0.2.0/24"}[:i%3]
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.2"}}
			s.Spec.ExternalTrafficPolicy = []corev1.ServiceExternalTrafficPolicy{"Local", "Cluster"}[i%2]
			seconds := int32(10)
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP,
				&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
			for k := range s.Spec.Ports {
				s.Spec.Ports[k].NodePort = int32(30000 + k)
			}
			o[j] = marshal(s)
		}
		for j := range 3 {
			s := randomSlice(rng, []string{"slice-0", "slice-1", "slice-2"}[j])
			s.Labels[discoveryv1.LabelServiceName] = []string{"svc-0", "svc-1"}[j%2]
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"}
			for k := range s.Endpoints {
				s.Endpoints[k].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-0"}},
					ForNodes: []discoveryv1.ForNode{{Name: "node-0"}}}
			}
			o[2+j] = marshal(s)
		}
		o[5] = marshal(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-0", Labels: map[string]string{corev1.LabelTopologyZone: "zone-0"}},
			Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24", "fd00::/64"},
				Taints: []corev1.Taint{{Key: taintToBeDeleted}}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.2"}}},
		})
		o[6] = marshal(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:96::/108"}}})
		seeds = append(seeds, o)
	}
	twice := seeds[0] // one Service at two times
	twice[1] = bytes.Replace(twice[0], []byte("198.51.100.2"), []byte("198.51.100.9"), 1)
	return append(seeds, twice, fuzzedObjects{
		[]byte(
			`{"metadata":{"name":"svc-0","namespace":"default"},"spec":{"clusterIP":"010.096.0.1","clusterIPs":["10.96.0.1",` +
				`"fd00:96::1"],"ipFamilies":["IPv4","IPv6"],"ports":[{"name":"a","port":80},{"name":"b","port":70000}]}}`),
		nil,
		[]byte(
			`{"metadata":{"name":"slice-0","namespace":"default","labels":{"kubernetes.io/service-name":"svc-0"}},` +
				`"addressType":"IPv6","ports":[{"name":"a","port":8080},{"port":1}],"endpoints":[{"addresses":["fd00:1::1"],` +
				`"nodeName":"node-0"},{"addresses":["::ffff:10.0.0.1"]}]}`),
	})
}

// FuzzObjects: whatever objects an API server sends, they become a snapshot and a program in
// bounded memory, that a kernel takes. The order of the events does not count, nor does what
// was there before. When the objects have gone, nothing is left of them.
func FuzzObjects(f *testing.F) {
	for _, o := range fuzzedSeeds(f) {
		f.Add(o[0], o[1], o[2], o[3], o[4], o[5], o[6])
	}
	f.Fuzz(func(t *testing.T, service1, service2, slice1, slice2, slice3, node, cidr []byte) {
		o := fuzzedObjects{service1, service2, slice1, slice2, slice3, node, cidr}
		size := 0
		for _, data := range o {
			size += len(data)
		}
		check.Bounded(t, 32<<20+uint64(size)<<12, func() { checkObjects(t, &o) })
	})
}

func checkObjects(t *testing.T, o *fuzzedObjects) {
	cfg := ruleset.Config{Table: ruleset.DefaultTable, Settings: service.Settings{NodeCIDR: true}}
	set, remove := o.events()
	ix, compiler, state, kernel := newIndex("node-0"), ruleset.NewCompiler(cfg), nft.State{}, nft.NewModel()
	sync := func(s service.Snapshot) *nft.Program {
		want := compiler.Compile(s)
		var batch nft.Batch
		batch, state = state.Plan(want, time.Time{})
		if err := strict.Apply(kernel, batch); err != nil {
			t.Fatalf("%v\n%s\n%s", err, s, batch)
		}
		if diff := check.Diff(want, kernel); diff != "" {
			t.Fatalf("(-want +got):\n%s\n%s", diff, s)
		}
		return want
	}
	for i, event := range set {
		event(ix)
		if i%2 == 1 {
			sync(ix.flush())
		}
	}
	whole := ix.flush()
	program := sync(whole)
	for _, p := range ix.takeProblems() {
		if p.Error() == "" {
			t.Error("a problem without words")
		}
	}
	if again, err := gen.ReadSnapshot(strings.NewReader(whole.String())); err != nil || again.String() != whole.String() {
		t.Errorf("the text form does not come back: %v\n%s", err, whole)
	}

	other := newIndex("node-0")
	for i := range set {
		set[len(set)-1-i](other)
	}
	compareSnapshots(t, "the other way round", whole, other.flush())
	if got := ruleset.Compile(cfg, other.flush()).Model().String(); got != program.Model().String() {
		t.Errorf("another program:\n%s\nwant\n%s", got, program.Model())
	}
	for _, event := range remove {
		event(ix)
	}
	sync(ix.flush())
	if s := ix.flush(); s.Services.Len() > 0 || len(ix.joined) > 0 || len(ix.slices) > 0 {
		t.Errorf("left: %s", s)
	}
}

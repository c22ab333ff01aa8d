package watch

import (
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
	"nftproxy/test/check"
)

// udpServices are four services with every port name that TestSliceChanges uses. A port
// that is in no slice stays without endpoints.
func udpServices(ix *index) {
	for i := range 4 {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("svc", i+1)},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.96.0.", i+1)},
		}
		for n, name := range []string{"", "p11", "p11-2", "p12", "p122", "p13", "p14", "p21", "p22", "p23", "p33", "p44",
			"p45"} {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Protocol: corev1.ProtocolUDP, Port: int32(1 + n)})
		}
		ix.setService(convertService(s))
	}
}

// slicesOf reads a line for each slice:
//
//	NAME SERVICE PORT=NUMBER,... ADDRESS@NODE ...
//
// A "!" behind an endpoint says that it is terminating and still serves.
func slicesOf(t *testing.T, text string) map[string]*discoveryv1.EndpointSlice {
	all := map[string]*discoveryv1.EndpointSlice{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: words[0],
				Labels: map[string]string{discoveryv1.LabelServiceName: words[1]}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for port := range strings.SplitSeq(words[2], ",") {
			name, number, _ := strings.Cut(port, "=")
			n, err := strconv.ParseInt(number, 10, 32)
			must(t, err)
			udp, number32 := corev1.ProtocolUDP, int32(n)
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &udp, Port: &number32})
		}
		for _, word := range words[3:] {
			word, leaving := strings.CutSuffix(word, "!")
			addr, node, _ := strings.Cut(word, "@")
			ready, serving := !leaving, true
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{addr}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &leaving},
			})
		}
		all[s.Name] = s
	}
	return all
}

// endpointsOf lists what has endpoints, a line for each port:
//
//	SERVICE PORT ADDRESS:PORT@NODE ...
func endpointsOf(s service.Snapshot) string {
	var b strings.Builder
	for name, svc := range s.Services.All() {
		_, short := name.Split()
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if p.Endpoints.Len() == 0 {
				continue
			}
			fmt.Fprintf(&b, "%s %s", short, p.Name)
			for e := range p.Endpoints.All() {
				fmt.Fprintf(&b, " %s@%s", e.Addr, e.Node)
				if e.Terminating {
					b.WriteByte('!')
				}
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// TestSliceChanges has the cases of kube-proxy's TestUpdateEndpointsMap (v1.37.2) and
// some of its EndpointSliceCache's. A case has the slices and the endpoints, each before
// and after. An empty fourth field means no change.
func TestSliceChanges(t *testing.T) {
	const one = "a svc1 p11=11 10.1.1.1@other\n"
	const two = one + "b svc1 p12=12 10.1.1.2@other\n"
	const oneIs, twoIs = "svc1 p11 10.1.1.1:11@other\n", "svc1 p11 10.1.1.1:11@other\nsvc1 p12 10.1.1.2:12@other\n"
	const many = `a svc1 p11=11,p12=12 10.1.1.1@other 10.1.1.2@node-0
b svc1 p13=13,p14=14 10.1.1.3@other 10.1.1.4@node-0
c svc2 p21=21,p22=22 10.2.2.1@other 10.2.2.2@node-0
`
	const manyIs = `svc1 p11 10.1.1.1:11@other 10.1.1.2:11@node-0
svc1 p12 10.1.1.1:12@other 10.1.1.2:12@node-0
svc1 p13 10.1.1.3:13@other 10.1.1.4:13@node-0
svc1 p14 10.1.1.3:14@other 10.1.1.4:14@node-0
svc2 p21 10.2.2.1:21@other 10.2.2.2:21@node-0
svc2 p22 10.2.2.1:22@other 10.2.2.2:22@node-0
`
	const ports = "a svc1 p11=11,p12=12 10.1.1.1@other 10.1.1.2@node-0\n"
	const portsIs = "svc1 p11 10.1.1.1:11@other 10.1.1.2:11@node-0\nsvc1 p12 10.1.1.1:12@other 10.1.1.2:12@node-0\n"
	for _, test := range []struct{ name, before, after, is, becomes string }{
		{name: "nothing"},
		{name: "the same, unnamed port", before: "a svc1 =11 10.1.1.1@other", after: "a svc1 =11 10.1.1.1@other",
			is: "svc1  10.1.1.1:11@other\n"},
		{name: "the same, named port, local", before: "a svc1 p11=11 10.1.1.1@node-0", after: "a svc1 p11=11 10.1.1.1@node-0",
			is: "svc1 p11 10.1.1.1:11@node-0\n"},
		{name: "the same, two slices", before: two, after: two, is: twoIs},
		{
			name: "the same, two slices, several ports, local", is: "svc1 p11 10.1.1.1:11@node-0\nsvc1 p12 " +
				"10.1.1.1:12@node-0\nsvc1 p13 10.1.1.3:13@other\n",
			before: "a svc1 p11=11,p12=12 10.1.1.1@node-0\nb svc1 p13=13 10.1.1.3@other",
			after:  "a svc1 p11=11,p12=12 10.1.1.1@node-0\nb svc1 p13=13 10.1.1.3@other",
		},
		{name: "the same, two services, several of everything", before: many, after: many, is: manyIs},
		{name: "a slice comes", after: "a svc1 =11 10.1.1.1@node-0", becomes: "svc1  10.1.1.1:11@node-0\n"},
		{name: "a slice goes", before: "a svc1 =11 10.1.1.1@node-0", is: "svc1  10.1.1.1:11@node-0\n", becomes: "-"},
		{name: "an address and a port come", before: one, after: ports, is: oneIs, becomes: portsIs},
		{name: "an address and a port go", before: ports, after: one, is: portsIs, becomes: oneIs},
		{name: "a second slice comes", before: one, after: one + "b svc1 p12=12 10.1.1.2@node-0", is: oneIs, becomes: oneIs +
			"svc1 p12 10.1.1.2:12@node-0\n"},
		{name: "the second slice goes", before: two, after: one, is: twoIs, becomes: oneIs},
		{name: "a port gets another name", before: one, after: "a svc1 p11-2=11 10.1.1.1@other", is: oneIs,
			becomes: "svc1 p11-2 10.1.1.1:11@other\n"},
		{name: "a port gets another number", before: one, after: "a svc1 p11=22 10.1.1.1@other", is: oneIs,
			becomes: "svc1 p11 10.1.1.1:22@other\n"},
		{
			name: "much at once",
			before: one + "c svc2 p22=22 10.2.2.2@node-0 10.2.2.22@node-0\nd svc2 p23=23 10.2.2.3@node-0\nf svc4 p44=44 " +
				"10.4.4.4@node-0 10.4.4.5@node-0\ng svc4 p45=45 10.4.4.6@node-0\n",
			after: "a svc1 p11=11 10.1.1.1@other 10.1.1.11@other\nb svc1 p12=12,p122=122 10.1.1.2@other\ne svc3 p33=33 " +
				"10.3.3.3@other\nf svc4 p44=44 10.4.4.4@node-0\n",
			is: `svc1 p11 10.1.1.1:11@other
svc2 p22 10.2.2.2:22@node-0 10.2.2.22:22@node-0
svc2 p23 10.2.2.3:23@node-0
svc4 p44 10.4.4.4:44@node-0 10.4.4.5:44@node-0
svc4 p45 10.4.4.6:45@node-0
`,
			becomes: `svc1 p11 10.1.1.1:11@other 10.1.1.11:11@other
svc1 p12 10.1.1.2:12@other
svc1 p122 10.1.1.2:122@other
svc3 p33 10.3.3.3:33@other
svc4 p44 10.4.4.4:44@node-0
`,
		},
		{name: "from no address to one", before: "a svc1 =11", after: "a svc1 =11 10.1.1.1@other",
			becomes: "svc1  10.1.1.1:11@other\n"},
		{name: "ready to terminating", before: one, after: "a svc1 p11=11 10.1.1.1@other!", is: oneIs,
			becomes: "svc1 p11 10.1.1.1:11@other!\n"},
		{name: "terminating to none", before: "a svc1 p11=11 10.1.1.1@other!", after: "a svc1 p11=11",
			is: "svc1 p11 10.1.1.1:11@other!\n", becomes: "-"},

		{name: "two slices with the same endpoint", before: one + strings.Replace(one, "a ", "b ", 1), after: one, is: oneIs},
		{name: "the endpoint moves to another slice", before: one, after: strings.Replace(one, "a ", "b ", 1), is: oneIs},
		{
			name: "the running one of two with one address counts, whichever comes first", is: "svc1 p11 10.1.1.1:11@other\n",
			before: "a svc1 p11=11 10.1.1.1@node-0! 10.1.1.1@other", after: "a svc1 p11=11 10.1.1.1@other 10.1.1.1@node-0!",
		},
		{name: "one address, two numbers of one port", before: "a svc1 p11=11 10.1.1.1@other\nb svc1 p11=22 10.1.1.1@other",
			is: "svc1 p11 10.1.1.1:11@other 10.1.1.1:22@other\n", becomes: "-"},
		{name: "the slice's service label changes", before: one, after: "a svc2 p11=11 10.1.1.1@other", is: oneIs,
			becomes: "svc2 p11 10.1.1.1:11@other\n"},
		{name: "one of two slices changes its service label", before: two, after: strings.Replace(two, "b svc1", "b svc3", 1),
			is: twoIs, becomes: oneIs + "svc3 p12 10.1.1.2:12@other\n"},
		{name: "the label names a service that is not there", before: one, after: "a svc9 p11=11 10.1.1.1@other", is: oneIs,
			becomes: "-"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ix := newIndex("node-0")
			udpServices(ix)
			before, after := slicesOf(t, test.before), slicesOf(t, test.after)
			for _, s := range before {
				ix.setSlice(convertSlice(s))
			}
			was := ix.flush()
			if diff := cmp.Diff(test.is, endpointsOf(was)); diff != "" {
				t.Fatalf("before (-want +got):\n%s", diff)
			}
			for name := range before {
				if after[name] == nil {
					ix.deleteSlice(service.NewName("default", name))
				}
			}
			for _, s := range after {
				ix.setSlice(convertSlice(s))
			}
			now := ix.flush()
			if test.becomes == "" {
				if now != was {
					t.Fatalf("no change was expected, (-before +after):\n%s", cmp.Diff(endpointsOf(was), endpointsOf(now)))
				}
				return
			}
			if diff := cmp.Diff(strings.TrimPrefix(test.becomes, "-"), endpointsOf(now)); diff != "" {
				t.Fatalf("after (-want +got):\n%s", diff)
			}
			owners := 0
			for _, j := range ix.joined {
				owners += min(1, len(j.slices))
			}
			if owners > len(after) {
				t.Errorf("%d services own slices, of %d slices", owners, len(after))
			}
		})
	}
}

// TestProxyNameByWatch: a Service that gains the label is another proxy's, and no longer that when it is deleted.
func TestProxyNameByWatch(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	s.set("services", uniformService(0))
	s.set("endpointslices", uniformSlice(0, 2))
	o := observe(t, s, Options{})
	o.await(textNode + textSvc0Two)
	s.remove("services", "svc-0")
	o.await(textNode)
	s.set("services", uniformService(0))
	o.await(textNode + textSvc0Two)
	labelled := uniformService(0)
	labelled.Labels = map[string]string{labelProxyName: "mesh"}
	s.set("services", labelled)
	o.await(textNode + "service ns-0/svc-0 created 0001-01-01T00:00:00Z\n  cluster-ip 172.30.0.0\n  port - tcp 80\n  " +
		"other-proxy\n")
	s.remove("services", "svc-0")
	o.await(textNode)
	s.set("services", uniformService(0))
	o.await(textNode + textSvc0Two)
}

// TestManyPortsOfSlice: a slice of many ports and many endpoints takes a bounded amount of
// memory. The ports that are left out are reported, and the others have all endpoints.
func TestManyPortsOfSlice(t *testing.T) {
	s := uniformSlice(0, 250)
	s.Ports = nil
	for i := range 20_000 {
		name, port := fmt.Sprint("p", i), int32(i+1)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	var object *sliceObject
	check.Bounded(t, 8<<20, func() { object = convertSlice(s) })
	if len(object.problems) != 1 {
		t.Fatalf("problems: %v", object.problems)
	}
	want := "ports: 18952 of 20000 are left out: each has 250 endpoints, and the slice would take more than 262144 " +
		"elements"
	if got := object.problems[0].Error(); !strings.HasSuffix(got, want) {
		t.Errorf("problem %q, want %q", got, want)
	}
	last := object.ports[len(object.ports)-1].key
	if n := len(object.ports); n != 1048 || object.port(last).Len() != 250 {
		t.Errorf("%d ports, the last one with %d endpoints", n, object.port(last).Len())
	}
}

// TestVersionsBetweenSnapshots: versions of a slice that no snapshot has take memory for the endpoints, not for those
// of each port, and the snapshot after them takes as much as after one.
func TestVersionsBetweenSnapshots(t *testing.T) {
	const ports, endpoints, versions = 256, 500, 50
	object, first := uniformService(0), uniformSlice(0, endpoints)
	object.Spec.Ports, first.Ports = nil, nil
	for i := range ports {
		name := fmt.Sprint("p", i)
		object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1)})
		first.Ports = append(first.Ports, discoveryv1.EndpointPort{Name: &name})
	}
	version := func(name string, v int) *sliceObject {
		s := first.DeepCopy()
		s.Name = name
		for i := range s.Ports {
			port := int32(8000 + 2*i + v%2)
			s.Ports[i].Port = &port
		}
		s.Endpoints = s.Endpoints[v:]
		return convertSlice(s)
	}
	fill := func(ix *index, v int) {
		ix.setSlice(version("a", v))
		ix.setSlice(version("b", v))
	}
	ix, fresh := newIndex("node-0"), newIndex("node-0")
	ix.setService(convertService(object))
	fresh.setService(convertService(object))
	fill(ix, 0)
	ix.flush()
	check.Bounded(t, 2*versions<<20, func() {
		for v := range versions {
			fill(ix, v+1)
		}
	})
	fill(fresh, versions)
	want := fresh.flush()
	var got service.Snapshot
	check.Bounded(t, 200<<20, func() { got = ix.flush() })
	compareSnapshots(t, "after all versions", want, got)
}

// TestManyPorts: sixteen times as many ports take sixteen times as long, and not 256 times.
// One user's Service would hold up all others.
func TestManyPorts(t *testing.T) {
	cost := func(ports int) time.Duration {
		object, slice := uniformService(0), uniformSlice(0, 2)
		object.Spec.Ports, slice.Ports = nil, nil
		for i := range ports {
			name, port := fmt.Sprint("p", i), int32(i+1)
			object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{Name: name, Port: port, NodePort: port})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
		}
		ix := newIndex("node-0")
		least := time.Hour
		for range 3 {
			before := threadTime(t)
			ix.setService(convertService(object))
			ix.setSlice(convertSlice(slice))
			ix.flush()
			least = min(least, threadTime(t)-before)
		}
		return least
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if small, large := cost(4000), cost(64_000); large > 100*small {
		t.Errorf("4,000 ports take %v, and 64,000 take %v", small, large)
	}
}

// TestManyPortsAndSlices: many slices of a Service of many ports are joined as few are, and
// the time of an event does not grow with ports times slices.
func TestManyPortsAndSlices(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cost := func(ports, slices int) time.Duration {
		ix := newIndex("node-0")
		object := uniformService(0)
		object.Spec.Ports = nil
		for i := range ports {
			object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
		}
		ix.setService(convertService(object))
		event := func(i int, addr string) {
			s := uniformSlice(0, 1)
			name := fmt.Sprint("p", i%2)
			s.Name, s.Ports[0].Name, s.Endpoints[0].Addresses = fmt.Sprint("slice-", i), &name, []string{addr}
			ix.setSlice(convertSlice(s))
		}
		for i := range slices {
			event(i, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
		}
		ix.flush()
		least := time.Hour
		for i := range 3 {
			before := threadTime(t)
			event(1, fmt.Sprint("10.2.0.", i+1))
			ix.flush()
			least = min(least, threadTime(t)-before)
		}
		s := ix.flush().Services.At(ix.knownServices()[0].key)
		for i, want := range []int{(slices + 1) / 2, slices / 2} {
			if n := s.Ports[i].Endpoints.Len(); n != want {
				t.Errorf("%d ports, %d slices: port %d has %d endpoints, want %d", ports, slices, i, n, want)
			}
		}
		if s.Ports[1].Endpoints.Find(service.Endpoint{Addr: netip.MustParseAddrPort("10.2.0.3:8080")}) == nil {
			t.Errorf("%d ports, %d slices: the last change is missing", ports, slices)
		}
		return least
	}
	cost(4, 2000) // few ports
	cost(2000, 4) // few slices
	if few, many := cost(4000, 16), cost(4000, 4000); many > 100*few {
		t.Errorf("an event takes %v with 16 slices, and %v with 4,000", few, many)
	}
}

// threadTime is the time that the thread has spent on a processor.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var spent unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent); err != nil {
		t.Fatal(err)
	}
	return time.Duration(spent.Nano())
}

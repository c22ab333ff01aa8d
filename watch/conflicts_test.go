package watch

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// grabbing returns a Service that asks for ten ports on each of its addresses.
func grabbing(name string, created int64, clusterIP string, externalIPs ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, CreationTimestamp: metav1.Unix(created, 0)},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, ExternalIPs: externalIPs},
	}
	for i := range 10 {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i)})
	}
	return s
}

// sliceFor returns an EndpointSlice of a Service with one ready endpoint for all its
// ports.
func sliceFor(s *corev1.Service, name, address string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port})
	}
	return slice
}

func texts(problems []Problem) string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, p.Error())
	}
	return strings.Join(lines, "\n")
}

// TestManyConflictsAreFewProblems: all conflicts of a Service are one problem. Of
// thousands of Services with conflicts, a hundred are reported.
func TestManyConflictsAreFewProblems(t *testing.T) {
	ix := newIndex("node-0")
	ix.setService(convertService(grabbing("first", 0, "10.96.0.1", "198.51.100.1")))
	ix.flush()
	ix.setService(convertService(grabbing("second", 1, "10.96.0.2", "198.51.100.1")))
	ix.flush()
	want := "Service tenant/second: 198.51.100.1:80/tcp belongs to Service tenant/first; 198.51.100.1:81/tcp belongs to " +
		"Service tenant/first; " +
		"198.51.100.1:82/tcp belongs to Service tenant/first; and 7 more"
	if got := texts(ix.takeProblems()); got != want {
		t.Errorf("of one Service is reported:\n%s\nwant:\n%s", got, want)
	}
	for i := range 1000 {
		ix.setService(convertService(grabbing(fmt.Sprint("later-", i), 2, fmt.Sprintf("10.97.%d.%d", i/250, i%250+1),
			"198.51.100.1")))
	}
	ix.flush()
	list := ix.takeProblems()
	if n := len(list); n != maxDenials+1 || !strings.Contains(list[n-1].Error(), "900 more Services") {
		t.Errorf("of 1,000 Services with 10 conflicts each there are %d reports, the last: %v", n, list[n-1])
	}
	// When the owner goes, the claims pass to the next Service. The other Services lose
	// nothing that they had, so no report follows.
	ix.deleteService("tenant/first")
	ix.flush()
	if got := texts(ix.takeProblems()); got != "" {
		t.Errorf("when the owner goes, reported:\n%s", got)
	}
}

// TestTooLargeIsReportedOnce: a Service beyond the bound is reported once. A change of
// its endpoints causes no further report, but a change of the Service does.
func TestTooLargeIsReportedOnce(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0", MaxElements: 25}, service.NewMailbox())
	ix, s := w.index, grabbing("large", 0, "10.96.0.1", "198.51.100.1", "198.51.100.2")
	ix.setService(convertService(s))
	ix.flush()
	want := "Service tenant/large: left out: 1 external IP: the service would take more than 25 elements " +
		"(--nftproxy-max-service-elements)"
	if got := texts(ix.takeProblems()); got != want {
		t.Errorf("reported:\n%s\nwant:\n%s", got, want)
	}
	for i := range 3 {
		ix.setSlice(convertSlice(sliceFor(s, fmt.Sprint("large-", i), fmt.Sprintf("10.244.0.%d", i+1))))
		ix.flush()
	}
	if left := ix.flush().LeftOut.At("tenant/large"); left == nil || left.ExternalIPs != 2 {
		t.Errorf("with endpoints there is left out: %v", left)
	}
	if got := texts(ix.takeProblems()); got != "" {
		t.Errorf("reported again:\n%s", got)
	}
	s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "198.51.100.3")
	ix.setService(convertService(s))
	ix.flush()
	if got := texts(ix.takeProblems()); !strings.Contains(got, "3 external IPs") {
		t.Errorf("when it changes, reported:\n%s", got)
	}
}

// TestNoRoomForElementsIsReported: the Service that loses its hash to older ones is reported, with the flag that helps.
func TestNoRoomForElementsIsReported(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0", MaxAllElements: 4 * 12_000}, service.NewMailbox())
	ix := w.index
	for i, name := range []string{"oldest", "b", "c", "d", "younger"} {
		s := grabbing(name, int64(i), fmt.Sprintf("10.96.0.%d", i+1))
		s.Annotations = map[string]string{"nftproxy.io/balance": "client"}
		ix.setService(convertService(s))
		ix.setSlice(convertSlice(sliceFor(s, name+"-a", "10.244.0.1")))
		ix.setSlice(convertSlice(sliceFor(s, name+"-b", "10.244.0.2")))
	}
	ix.flush()
	want := "Service tenant/younger: weights of endpoints, hashes of clients and least connections do not count, but " +
		"for the weight 0: there is room for 48000 elements beyond 4096 of each service, and for 12000 in one namespace, " +
		"the oldest services first (--nftproxy-max-elements)"
	if got := texts(ix.takeProblems()); got != want {
		t.Errorf("reported:\n%s\nwant:\n%s", got, want)
	}
	ix.deleteService("tenant/oldest")
	if left := ix.flush().LeftOut.At("tenant/younger"); left != nil {
		t.Errorf("when the oldest one has gone: %v", left)
	}
}

// TestClosedSourcesAreReported: a Service whose source ranges are beyond the bound is
// reported once, as long as that lasts, and lets in nobody.
func TestClosedSourcesAreReported(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0", MaxSourceLists: 4}, service.NewMailbox())
	ix := w.index
	set := func(name string, created int64, address string, ranges ...string) {
		s := grabbing(name, created, address)
		s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, ranges
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		ix.setService(convertService(s))
	}
	set("first", 0, "10.96.0.1", "203.0.113.0/24")
	set("equal", 2, "10.96.0.2", "203.0.113.0/24")
	ix.flush()
	if got := texts(ix.takeProblems()); got != "" {
		t.Errorf("with one list, reported:\n%s", got)
	}
	set("other", 1, "10.96.0.3", "203.0.114.0/24")
	if ranges, all := ix.flush().Services.At("tenant/other").Sources.Of(ip.V4); all || len(ranges) > 0 {
		t.Errorf("it lets in %v (all: %t)", ranges, all)
	}
	want := "Service tenant/other: no client is let in where source ranges apply: there is room for 4 different lists " +
		"of source ranges, and for 1 by the Services of one namespace, the oldest Services first " +
		"(--nftproxy-max-source-lists)"
	if got := texts(ix.takeProblems()); got != want {
		t.Errorf("reported:\n%s\nwant:\n%s", got, want)
	}
	set("other", 1, "10.96.0.4", "203.0.115.0/24")
	ix.flush()
	if got := texts(ix.takeProblems()); got != "" {
		t.Errorf("again:\n%s", got)
	}
}

// TestWithoutAffinityIsReported: a Service that asks for session affinity and does not
// get it is reported once, as long as that lasts. Of thousands of such Services, a
// hundred are reported.
func TestWithoutAffinityIsReported(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0", MaxAffinityPorts: 80}, service.NewMailbox())
	ix := w.index
	set := func(name string, created int64, address string) {
		s := grabbing(name, created, address)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		ix.setService(convertService(s))
	}
	set("first", 0, "10.96.0.1")
	set("second", 1, "10.96.0.2")
	ix.flush()
	if got := texts(ix.takeProblems()); got != "" {
		t.Errorf("with as many ports as may have it, reported:\n%s", got)
	}
	set("third", 2, "10.96.0.3")
	if got := ix.flush().Services.At("tenant/third"); got.AffinityTimeout != 0 {
		t.Errorf("it is\n%s", got)
	}
	want := "Service tenant/third: served without session affinity, by a hash of the client's address: the services of " +
		"one namespace may have it on 20 ports, the oldest first (a quarter of --nftproxy-max-affinity-ports)"
	if got := texts(ix.takeProblems()); got != want {
		t.Errorf("reported:\n%s\nwant:\n%s", got, want)
	}
	set("third", 2, "10.96.0.4")
	ix.flush()
	if got := texts(ix.takeProblems()); got != "" {
		t.Errorf("reported again:\n%s", got)
	}
	for i := range 1000 {
		set(fmt.Sprint("later-", i), 3, fmt.Sprintf("10.97.%d.%d", i/250, i%250+1))
	}
	ix.flush()
	list := ix.takeProblems()
	if n := len(list); n != maxDenials+1 || !strings.Contains(list[n-1].Error(), "900 more Services") {
		t.Errorf("of 1,000 there are %d reports, the last: %v", n, list[n-1])
	}
	ix.deleteService("tenant/first")
	if got := ix.flush().Services.At("tenant/third"); got.AffinityTimeout == 0 {
		t.Errorf("when an older one has gone it is\n%s", got)
	}
	if got := texts(ix.takeProblems()); got != "" {
		t.Errorf("when an older one goes, reported:\n%s", got)
	}
	set("first", 0, "10.96.0.1")
	ix.flush()
	if got := texts(ix.takeProblems()); got != want {
		t.Errorf("when it comes back, reported:\n%s", got)
	}
}

// TestExternalIPsIgnored: with IgnoreExternalIPs a Service has none of its external IPs,
// and a single report says so.
func TestExternalIPsIgnored(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0", IgnoreExternalIPs: true}, service.NewMailbox())
	ix, s := w.index, grabbing("web", 0, "10.96.0.1", "198.51.100.1")
	for range 2 {
		ix.setService(convertService(s))
	}
	got := ix.flush().Services.At("tenant/web")
	if len(got.ExternalIPs) != 0 || len(got.ClusterIPs) != 1 {
		t.Errorf("it is\n%s", got)
	}
	list := ix.takeProblems()
	if len(list) != 1 || !errors.Is(list[0], ErrExternalIPsIgnored) || list[0].Field != "spec.externalIPs" ||
		list[0].Object.Name != "web" {
		t.Errorf("reported: %s", texts(list))
	}
}

// TestProtectedPorts: an external IP takes neither the API server's address nor one of
// the node's own ports, on one of the node's addresses or on all of them.
func TestProtectedPorts(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0", OwnPorts: []OwnPort{
		{Port: 80, Whose: "a test"}, {Addr: netip.MustParseAddr("192.168.0.3"), Port: 81, Whose: "a test"},
	}}, service.NewMailbox())
	w.SetHostAddresses([]netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.3")}, nil)
	w.AddAPIServer(netip.MustParseAddrPort("[::ffff:198.51.100.1]:82"))
	w.index.setService(convertService(grabbing("web", 0, "10.96.0.1", "192.168.0.2", "192.168.0.3", "198.51.100.1",
		"10.96.0.1")))
	// The Service keeps its cluster IP, even where an interface of the node has it.
	w.SetHostAddresses([]netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.3"),
		netip.MustParseAddr("10.96.0.1")}, nil)
	var got []string
	for l := range w.index.flush().Conflicts.At("tenant/web").All() {
		got = append(got, l.Claim.String())
	}
	if want := "192.168.0.2:80/tcp 192.168.0.3:80/tcp 192.168.0.3:81/tcp 198.51.100.1:82/tcp"; strings.Join(got,
		" ") != want {
		t.Errorf("protected are %v, want %s", got, want)
	}
	for i := range 100 {
		w.AddAPIServer(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 443))
	}
	if n := len(w.index.apiServers); n != maxAPIServers {
		t.Errorf("%d addresses of the API server are remembered", n)
	}
}

// TestRetainedConflict: a retained Service that loses a port with its address hears which
// Service has the address.
func TestRetainedConflict(t *testing.T) {
	withLists(t, 20, func(l *lists) {
		l.list(0, 0)
		heir := uniformService(100)
		heir.Spec.ClusterIP, heir.Spec.ClusterIPs = "172.30.0.3", []string{"172.30.0.3"}
		heir.Spec.Ports[0].Port = 9999
		l.change(convertService(heir).put)
		l.settle()
		e := took[*ConflictError](l)
		if len(e) != 1 || len(e[0].Conflicts) != 2 || strings.Count(e[0].String(), "belongs to Service "+heir.Namespace+"/"+
			heir.Name) != 2 {
			t.Errorf("reported %v", e)
		}
	})
}

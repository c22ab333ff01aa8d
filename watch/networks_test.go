package watch

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
)

// TestNetworksInServiceCIDR: the snapshot has ServiceCIDRs and the node's networks in them together, the
// networks are asked for again after a change of routes, and each set of them is reported once.
func TestNetworksInServiceCIDR(t *testing.T) {
	var asked [][]netip.Prefix
	answer := []netip.Prefix{netip.MustParsePrefix("10.100.0.0/24")}
	ix := newIndex("node-1")
	ix.options.Networks = func(ranges []netip.Prefix) []netip.Prefix {
		asked = append(asked, ranges)
		return answer
	}
	step := func(what string, wantAsked int, wantReported bool, want ...string) {
		t.Helper()
		s := ix.flush()
		var got []string
		for _, n := range s.Node.Networks {
			got = append(got, n.String())
		}
		if !slices.Equal(got, want) || len(asked) != wantAsked {
			t.Errorf("%s: networks %v, want %v; asked %d times, want %d", what, got, want, len(asked), wantAsked)
		}
		reported := slices.ContainsFunc(ix.takeProblems(), func(p Problem) bool {
			e, ok := p.Event()
			return errors.As(p, new(*NetworkError)) && ok && e.Reason == ReasonNetworkInServiceCIDR && e.Object.Kind == "Node"
		})
		if reported != wantReported {
			t.Errorf("%s: reported %t", what, reported)
		}
	}
	cidr := convertCIDR(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}})
	step("no ranges", 0, false)
	ix.setCIDR(cidr)
	step("a range", 1, true, "10.100.0.0/24")
	step("nothing new", 1, false, "10.100.0.0/24")
	ix.unrouted = true
	step("asked again", 2, false, "10.100.0.0/24")
	answer = append(answer, netip.MustParsePrefix("10.101.0.0/24"))
	ix.unrouted = true
	step("another network", 3, true, "10.100.0.0/24", "10.101.0.0/24")
	ix.setNode(convertNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}))
	step("the Node comes", 3, false, "10.100.0.0/24", "10.101.0.0/24")
	ix.deleteCIDR(cidr.key)
	step("no range", 3, false)
}

// TestAPIServerAddresses: they are those that the proxy has reached and the endpoints of default/kubernetes. That
// Service's cluster IP is none, nor does any other Service add one or take one away. One in a range is reported.
func TestAPIServerAddresses(t *testing.T) {
	ix := newIndex("node-1")
	want := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, a := range ix.flush().Node.APIServers {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	want("nothing is known")
	ix.addAPIServer(netip.MustParseAddrPort("10.96.0.1:443"))
	ix.addAPIServer(netip.MustParseAddrPort("10.100.0.3:6443"))
	want("reached", "10.96.0.1", "10.100.0.3")
	set := func(name, clusterIP, endpoint string) {
		namespace, short := service.Name(name).Split()
		ix.setService(convertService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short},
			Spec: corev1.ServiceSpec{ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
				Ports: []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}}},
		}))
		port, portName := int32(6443), "https"
		ix.setSlice(convertSlice(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short,
				Labels: map[string]string{discoveryv1.LabelServiceName: short}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{endpoint}}},
		}))
	}
	set("default/kubernetes", "10.96.0.1", "10.100.0.4")
	want("default/kubernetes", "10.100.0.3", "10.100.0.4")
	set("tenant/kubernetes", "10.100.0.3", "10.100.0.5")
	want("a tenant's", "10.100.0.3", "10.100.0.4")
	ix.takeProblems()
	ix.setCIDR(convertCIDR(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}))
	ix.unprotected = true
	ix.flush()
	if !slices.ContainsFunc(ix.takeProblems(), func(p Problem) bool { return errors.As(p, new(*NetworkError)) }) {
		t.Error("API servers in the range are not reported")
	}
}

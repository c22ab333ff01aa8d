package share_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

func endpoint(addr, node string, conditions ...string) service.Endpoint {
	return service.Endpoint{
		Addr: netip.MustParseAddrPort(addr), Node: node,
		Ready:       slices.Contains(conditions, "ready"),
		Serving:     slices.Contains(conditions, "serving"),
		Terminating: slices.Contains(conditions, "terminating"),
	}
}

func TestChoose(t *testing.T) {
	all := []service.Endpoint{
		endpoint("10.0.0.1:80", "a", "ready", "serving"),
		endpoint("10.0.0.2:80", "a"),
		endpoint("10.0.0.3:80", "b", "serving", "terminating"),
		endpoint("10.0.0.4:80", "b", "terminating"),
		endpoint("10.0.0.5:80", "b", "serving"),
		endpoint("10.0.0.6:80", "b", "ready", "serving", "terminating"),
		endpoint("[fd00::1]:80", "a", "serving", "terminating"),
		endpoint("[fd00::2]:80", "a"),
	}
	for _, test := range []struct {
		name      string
		endpoints []service.Endpoint
		family    ip.Family
		want      []string
		local     []string // on node a
	}{
		{"no endpoint", nil, ip.V4, nil, nil},
		{"ready only, publishNotReadyAddresses' terminating one included", all, ip.V4, []string{"10.0.0.1:80", "10.0.0.6:80"},
			[]string{"10.0.0.1"}},
		{"the families fall back on their own", all, ip.V6, []string{"[fd00::1]:80"}, []string{"fd00::1"}},
		{"none ready: serving while terminating", all[1:5], ip.V4, []string{"10.0.0.3:80"}, nil},
		{"serving but neither ready nor terminating is never used", all[4:5], ip.V4, nil, nil},
		{"neither ready nor serving", all[7:], ip.V6, nil, nil},
		{"none of the family", all[:6], ip.V6, nil, nil},
		{
			"one local address, two ports",
			[]service.Endpoint{endpoint("10.0.0.1:80", "a", "ready"), endpoint("10.0.0.1:81", "a", "ready")},
			ip.V4, []string{"10.0.0.1:80", "10.0.0.1:81"}, []string{"10.0.0.1"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := service.Port{Endpoints: service.MergeEndpoints(slices.Clone(test.endpoints))}
			var want []netip.AddrPort
			for _, a := range test.want {
				want = append(want, netip.MustParseAddrPort(a))
			}
			var local []netip.Addr
			for _, a := range test.local {
				local = append(local, netip.MustParseAddr(a))
			}
			node := service.Node{Name: "a"}
			c := share.Choose(&service.Service{}, &p, &node, test.family)
			if diff := gocmp.Diff(choice{cluster: want, anywhere: len(want) > 0}, choiceOf(c), byChoice, byValue); diff != "" {
				t.Errorf("Choose (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(local, onNode(c), byValue); diff != "" {
				t.Errorf("OnNode (-want +got):\n%s", diff)
			}
		})
	}
}

// TestChoosePolicy: which lists a service uses, and that each falls back to
// terminating endpoints on its own.
func TestChoosePolicy(t *testing.T) {
	remote := endpoint("10.0.0.1:80", "b", "ready", "serving")
	local := endpoint("10.0.0.2:80", "a", "ready", "serving")
	leaving := endpoint("10.0.0.3:80", "a", "serving", "terminating")
	leavingRemote := endpoint("10.0.0.4:80", "b", "serving", "terminating")
	unready := endpoint("10.0.0.5:80", "a")
	for _, test := range []struct {
		name               string
		internal, external service.TrafficPolicy
		nodePort           uint16
		endpoints          []service.Endpoint
		cluster, local     string
		anywhere           bool
	}{
		{"internal Local, nothing external: no cluster list", service.Local, service.Cluster, 0,
			[]service.Endpoint{remote, local}, "", "10.0.0.2:80", true},
		{"internal Local beside a node port needs both", service.Local, service.Cluster, 30000,
			[]service.Endpoint{remote, local}, "10.0.0.1:80 10.0.0.2:80", "10.0.0.2:80", true},
		{"external Local without anything external: no local list", service.Cluster, service.Local, 0,
			[]service.Endpoint{remote, local}, "10.0.0.1:80 10.0.0.2:80", "", true},
		{"external Local", service.Cluster, service.Local, 30000, []service.Endpoint{remote, local},
			"10.0.0.1:80 10.0.0.2:80", "10.0.0.2:80", true},
		{"local falls back to terminating, cluster does not", service.Cluster, service.Local, 30000,
			[]service.Endpoint{remote, leaving, unready}, "10.0.0.1:80", "10.0.0.3:80", true},
		{"only elsewhere", service.Local, service.Cluster, 0, []service.Endpoint{remote}, "", "", true},
		{"only terminating elsewhere", service.Local, service.Cluster, 0, []service.Endpoint{leavingRemote}, "", "", true},
		{"nothing usable", service.Local, service.Local, 30000, []service.Endpoint{unready}, "", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := service.Service{InternalPolicy: test.internal, ExternalPolicy: test.external}
			p := service.Port{NodePort: test.nodePort, Endpoints: service.MergeEndpoints(slices.Clone(test.endpoints))}
			want := choice{addrPorts(test.cluster), addrPorts(test.local), test.anywhere}
			if diff := gocmp.Diff(want, choiceOf(share.Choose(&s, &p, &service.Node{Name: "a"}, ip.V4)), byChoice,
				byValue); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func addrPorts(words string) []netip.AddrPort {
	var list []netip.AddrPort
	for _, w := range strings.Fields(words) {
		list = append(list, netip.MustParseAddrPort(w))
	}
	return list
}

// choice is a share.Choice for comparisons.
type choice struct {
	cluster, local []netip.AddrPort
	anywhere       bool
}

var byChoice = gocmp.AllowUnexported(choice{})

func choiceOf(c share.Choice) choice {
	return choice{slices.Collect(c.Cluster.All()), slices.Collect(c.Local.All()), c.Anywhere}
}

// onNode are the distinct addresses of the chosen endpoints on the node.
func onNode(c share.Choice) []netip.Addr { return addresses(c.OnNode) }

// addresses are the distinct ones of a list.
func addresses(of share.Addresses) []netip.Addr {
	var list []netip.Addr
	for a := range of.All() {
		list = append(list, a.Addr())
	}
	return slices.Compact(list)
}

// TestMaybeOnNode: an endpoint without nodeName may run on the node, and so may one whose
// address is in the node's podCIDRs, whatever its nodeName is. Neither is in the list of
// policy Local.
func TestMaybeOnNode(t *testing.T) {
	p := service.Port{NodePort: 30000, Endpoints: service.MergeEndpoints([]service.Endpoint{
		endpoint("10.0.0.1:80", "a", "ready", "serving"),
		endpoint("10.0.0.2:80", "b", "ready", "serving"),
		endpoint("10.1.0.3:80", "", "ready", "serving"),
		endpoint("10.1.0.4:80", "b", "ready", "serving"),
		endpoint("10.1.0.5:80", ""),
		endpoint("[fd00::6]:80", "", "ready", "serving"),
	})}
	for _, test := range []struct {
		podCIDR string
		family  ip.Family
		here    string
		maybe   string
	}{
		{"10.2.0.0/24", ip.V4, "10.0.0.1", "10.1.0.3"},
		{"10.0.0.0/24", ip.V4, "10.0.0.1", "10.0.0.2 10.1.0.3"},
		{"10.0.0.0/8", ip.V4, "10.0.0.1", "10.0.0.2 10.1.0.3 10.1.0.4"},
		{"10.0.0.0/8", ip.V6, "", "fd00::6"},
	} {
		node := service.Node{Name: "a", PodCIDRs: []netip.Prefix{netip.MustParsePrefix(test.podCIDR)}}
		c := share.Choose(&service.Service{ExternalPolicy: service.Local}, &p, &node, test.family)
		for what, pair := range map[string][2]string{
			"local": {test.here, texts(addresses(c.Local))}, "on the node": {test.here, texts(onNode(c))},
			"perhaps": {test.maybe, texts(addresses(c.MaybeOnNode))},
		} {
			if pair[0] != pair[1] {
				t.Errorf("podCIDR %s, %s, %s: want %q, got %q", test.podCIDR, test.family, what, pair[0], pair[1])
			}
		}
	}
}

func texts(addrs []netip.Addr) string {
	var words []string
	for _, a := range addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

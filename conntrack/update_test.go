package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

func (s Scope) text() string {
	if s.Everything {
		return "everything"
	}
	var words []string
	for _, f := range s.Filters {
		text := ""
		if f.Dst.IsValid() {
			text = f.Dst.String()
		}
		if f.Port != 0 {
			text += fmt.Sprintf(":%d", f.Port)
		}
		if f.Protocol != 0 {
			text += "/" + f.Protocol.String()
		}
		if f.Endpoint.IsValid() {
			text += " to " + f.Endpoint.String()
		}
		if f.Mask != 0 {
			text += fmt.Sprintf(" if [%v] of [%v]", f.Status, f.Mask)
		}
		words = append(words, text)
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// The scope of a change has the entries that it can make stale, and as few others as
// possible.
func TestUpdateScope(t *testing.T) {
	const (
		endpoint = "    endpoint 10.0.0.1:53 n1 ready serving\n"
		unserved = "    endpoint 10.0.0.1:53 n1\n"
		http     = "    endpoint 10.0.0.3:8080 n1 terminating\n"
		udp      = "/udp to 10.0.0.1:53"
		moved    = "10.96.0.1:53/udp, 203.0.113.5:53/udp, :30053/udp"
	)
	tests := []struct {
		name     string
		from, to func(string) string
		want     string
	}{
		{"nothing", keep, keep, ""},
		{"another endpoint", replace(endpoint, ""), keep, ""},
		{"endpoint gone", keep, replace(endpoint, ""), udp},
		{"endpoint no longer serves", keep, replace(endpoint, unserved), udp},
		{"endpoint serves again", replace(endpoint, unserved), keep, ""},
		{"TCP endpoint gone", keep, replace(http, ""), "/tcp to 10.0.0.3:8080 if [] of [seen-reply]"},
		{"TCP endpoint that was the address gone", replace(http, http+"    endpoint 203.0.113.5:80 n1 ready serving\n"), keep,
			"/tcp to 203.0.113.5:80"},
		{"TCP endpoint that was the node port gone", replace(http, http+"    endpoint 192.168.0.2:30080 n1 ready serving\n"),
			keep,
			"/tcp to 192.168.0.2:30080"},
		{"TCP endpoint no longer ready", keep, replace("8080 n1 ready serving", "8080 n1"),
			"/tcp to 10.0.0.1:8080 if [] of [seen-reply]"},
		{"TCP endpoint ready again", replace("8080 n1 ready serving", "8080 n1"), keep, ""},
		{"SCTP endpoint no longer serves", keep, replace("82 n1 serving terminating", "82 n1 terminating"),
			"/sctp to 10.0.0.2:82 if [] of [seen-reply]"},
		{"first endpoint", keep, replace("port empty udp 81\n", "port empty udp 81\n    endpoint 10.0.0.1:81 n1 ready "+
			"serving\n"),
			"10.96.0.1:81/udp, 203.0.113.5:81/udp"},
		{"last endpoint gone", replace("port empty udp 81\n", "port empty udp 81\n    endpoint 10.0.0.1:81 n1 ready "+
			"serving\n"), keep,
			"/udp to 10.0.0.1:81"},
		{"many endpoints gone", keep, without("    endpoint 10.0.0.1:53 n1 ready serving\n", "  port http tcp"), moved},
		{"endpoint moved to another node", keep, replace(endpoint, "    endpoint 10.0.0.1:53 n2 ready serving\n"), moved},
		{"new service", until("service default/younger"), keep, "10.96.0.4, 203.0.113.5:53/udp"},
		{"new services", until("service default/local"), keep, "everything"},
		{"new service, its address free", without("service default/restricted", "service default/younger"), keep,
			"10.96.0.3, 203.0.113.8:53/udp, :30055/udp"},
		{"service gone", keep, without("service default/restricted", "service default/younger"),
			"/udp to 10.0.0.1:53, 10.96.0.3"},
		{"new node port", replace(" node-port 30055", ""), keep, ":30055/udp"},
		{"other node port", keep, replace("node-port 30055", "node-port 30056"), "/udp to 10.0.0.1:53, :30056/udp"},
		{"other cluster IP", keep, replace("cluster-ip 10.96.0.4\n", "cluster-ip 10.96.0.5\n"),
			"10.96.0.4, 10.96.0.5, 203.0.113.5:53/udp"},
		{"other port", keep, replace("port empty udp 81", "port empty udp 82"),
			"10.96.0.1:82/udp, 203.0.113.5:82/udp"},
		{"the older claimant goes", keep, without("  external-ip 203.0.113.5\n", "  port dns"),
			"203.0.113.5:53/udp, 203.0.113.5:80/tcp if [] of [seen-reply], 203.0.113.5:82/sctp if [] of [seen-reply]"},
		{"the older claimant is made anew", keep, replace("service default/web created 2026-01-01",
			"service default/web created 2026-03-01"),
			"203.0.113.5:53/udp"},
		{"source ranges", keep, replace("source-range 198.51.100.0/28\n  port", "source-range 198.51.100.0/29\n  port"),
			"10.96.0.3:53/udp, 203.0.113.8:53/udp, :30055/udp"},
		{"policy", replace("internal-policy Local", "internal-policy Cluster"), keep,
			"10.96.0.2:53/udp, 203.0.113.6:53/udp, 203.0.113.7:53/udp, :30054/udp"},
		{"new address of the node, not for node ports", replace("  host-address 192.168.1.2\n", ""), keep, ""},
		{"address of the node gone", keep, replace("  host-address 192.168.1.2\n", ""), "everything"},
		{"pod's interface gone", replace("  host-address 192.168.1.2\n", "  host-address fe80::1%veth0\n"),
			replace("  host-address 192.168.1.2\n", ""), ""},
		{"other address for node ports", keep, replace("  address 192.168.0.2\n", "  address 192.168.1.2\n"), "everything"},
		{"ServiceCIDR", replace("service-cidr 10.96.0.0/16\n", ""), keep, "everything"},
		{"ServiceCIDR gone", keep, replace("service-cidr 10.96.0.0/16\n", ""), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x, b := NewIndex(Options{}), snapshots.NewBuilder(service.Node{})
			x.Update(become(b, parse(t, test.from(dnatedCluster))))
			got := x.Update(become(b, parse(t, test.to(dnatedCluster)))).text()
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("scope (-want +got):\n%s", diff)
			}
		})
	}
}

// With --nodeport-addresses, an address that comes to an interface serves node
// ports from then on.
func TestUpdateScopeNewNodePortAddress(t *testing.T) {
	x, b := NewIndex(Options{NodePortAddresses: nodePortAddresses(t, "192.168.1.0/24")}),
		snapshots.NewBuilder(service.Node{})
	x.Update(become(b, parse(t, replace("  host-address 192.168.1.2\n", "")(dnatedCluster))))
	if got := x.Update(become(b, parse(t, dnatedCluster))).text(); got != "192.168.1.2" {
		t.Errorf("scope: %q", got)
	}
}

// Removal of established connections, where asked for, needs to see them.
func TestUpdateScopeEstablished(t *testing.T) {
	x, b := NewIndex(Options{Established: []service.Protocol{service.TCP}}), snapshots.NewBuilder(service.Node{})
	x.Update(become(b, parse(t, dnatedCluster)))
	to := replace("    endpoint 10.0.0.3:8080 n1 terminating\n", "")
	if got, want := x.Update(become(b, parse(t, to(dnatedCluster)))).text(), "/tcp to 10.0.0.3:8080"; got != want {
		t.Errorf("scope: %q, want %q", got, want)
	}
}

func TestScope(t *testing.T) {
	at := func(i int) Filter {
		return Filter{Dst: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Protocol: service.UDP, Port: 53}
	}
	var s Scope
	if !s.Empty() || s.Selects(&Flow{}) {
		t.Error("the zero Scope is not empty")
	}
	s.add(Filter{Dst: at(0).Dst})
	s.add(at(0)) // is in it
	for i := range maxFilters {
		s.add(at(i))
	}
	if len(s.Filters) != maxFilters || s.Everything {
		t.Errorf("%d filters, everything %t", len(s.Filters), s.Everything)
	}
	wide := Scope{}
	wide.merge(s)
	wide.merge(Scope{Filters: []Filter{at(maxFilters)}})
	if !wide.Everything || len(wide.Filters) > 0 {
		t.Errorf("after one too many: %+v", wide)
	}
	f := dnated(service.UDP, "10.0.0.9", "10.0.0.3:53", "10.1.0.1:53", 0)
	if !s.Selects(&f) || !wide.Selects(&f) {
		t.Error("does not select what a filter selects")
	}
	if f.Protocol = service.TCP; s.Selects(&f) || !wide.Selects(&f) {
		t.Error("selects what no filter selects, or not everything")
	}
}

// Other settings may make any flow stale.
func TestUpdateScopeNewSettings(t *testing.T) {
	x, b := NewIndex(Options{}), snapshots.NewBuilder(service.Node{})
	s := become(b, parse(t, dnatedCluster))
	x.Update(s)
	node := *s.Node
	node.Settings = &service.Settings{NodePortAddresses: nodePortAddresses(t, "192.168.1.0/24")}
	b.SetNode(node)
	if got := x.Update(b.Snapshot()); !got.Everything {
		t.Errorf("scope: %q, want everything", got.text())
	}
}

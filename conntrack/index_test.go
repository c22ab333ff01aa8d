package conntrack

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/internal/service"
)

// cluster has a service with and one without endpoints (udp), one on an
// address that NodeLocal DNSCache binds on the node, and an ingress on the
// host network that is its own external address and node port.
const cluster = `
node n1
  address 192.168.0.2
  address 2001:db8::1
  host-address 127.0.0.1
  host-address 192.168.0.2
  host-address 192.168.1.2
  host-address 10.96.0.10
  host-address ::1
  host-address 2001:db8::1
  host-address 2001:db8:1::1
  host-address fe80::1%eth0
service-cidr 10.96.0.0/16
service-cidr fd00::/112
service default/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  cluster-ip fd00::1
  external-ip 203.0.113.5
  port http tcp 80 node-port 30080
    endpoint 10.0.0.1:8080 n1 ready serving
  port quic udp 80 node-port 30081
  port stream sctp 80
service kube-system/dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  port dns udp 53
    endpoint 10.0.0.3:53 n1 ready serving
service default/ingress created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  external-ip 192.168.0.2
  port quic udp 443 node-port 30443
    endpoint 192.168.0.2:443 n1 serving
    endpoint 192.168.0.2:30443 n1 ready serving
`

func parse(t testing.TB, text string) service.Snapshot {
	t.Helper()
	s, err := service.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func nodePortAddresses(t testing.TB, list ...string) service.NodePortAddresses {
	t.Helper()
	n, err := service.ParseNodePortAddresses(list)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func flow(protocol service.Protocol, dst string, status Status) Flow {
	to := netip.MustParseAddrPort(dst)
	from := netip.MustParseAddrPort("198.51.100.7:40000")
	if to.Addr().Is6() {
		from = netip.MustParseAddrPort("[2001:db8:9::7]:40000")
	}
	return Flow{Protocol: protocol, Original: Tuple{from, to}, Reply: Tuple{to, from}, Status: status}
}

func TestStale(t *testing.T) {
	const gre = service.Protocol(47)
	tests := []struct {
		name      string
		protocol  service.Protocol
		dst       string
		status    Status
		nodePorts string // --nodeport-addresses, separated by blanks
		want      Reason // empty: not stale
	}{
		{"service with endpoints", service.TCP, "10.96.0.1:80", 0, "", ServiceAddress},
		{"service with endpoints, IPv6", service.TCP, "[fd00::1]:80", 0, "", ServiceAddress},
		{"service without endpoints", service.UDP, "10.96.0.1:80", 0, "", ServiceAddress},
		{"SCTP", service.SCTP, "10.96.0.1:80", 0, "", ServiceAddress},
		{"external IP", service.TCP, "203.0.113.5:80", 0, "", ServiceAddress},
		{"external IP, other port", service.TCP, "203.0.113.5:81", 0, "", ""},
		{"external IP, other protocol", gre, "203.0.113.5:80", 0, "", ""},
		{"DNATed", service.UDP, "10.96.0.1:80", DstNAT, "", ""},
		{"only its source rewritten", service.UDP, "10.96.0.1:80", SrcNAT, "", ServiceAddress},
		{"elsewhere", service.UDP, "198.51.100.1:80", 0, "", ""},
		{"answered UDP", service.UDP, "203.0.113.5:80", SeenReply | Assured, "", ServiceAddress},
		{"TCP answered but not established", service.TCP, "203.0.113.5:80", SeenReply, "", ServiceAddress},
		{"established TCP", service.TCP, "203.0.113.5:80", SeenReply | Assured, "", ""},
		{"established SCTP", service.SCTP, "10.96.0.1:80", SeenReply | Assured, "", ""},

		{"cluster IP, unknown port", service.TCP, "10.96.0.1:81", 0, "", ClusterIP},
		{"cluster IP, unknown protocol", gre, "[fd00::1]:0", 0, "", ClusterIP},
		{"local cluster IP, other protocol's port", service.TCP, "10.96.0.10:53", 0, "", ""},
		{"local cluster IP, its port", service.UDP, "10.96.0.10:53", 0, "", ServiceAddress},
		{"local cluster IP, unknown port", service.TCP, "10.96.0.10:8080", 0, "", ""},

		{"unallocated address", service.TCP, "10.96.1.1:80", 0, "", Unallocated},
		{"unallocated address, other protocol, IPv6", gre, "[fd00::99]:0", 0, "", Unallocated},
		{"outside the ServiceCIDR", service.TCP, "10.97.0.1:80", 0, "", ""},

		{"node port, primary address", service.TCP, "192.168.0.2:30080", 0, "", NodePort},
		{"node port, primary address, IPv6", service.TCP, "[2001:db8::1]:30080", 0, "", NodePort},
		{"node port, second address", service.TCP, "192.168.1.2:30080", 0, "", ""},
		{"node port, another host", service.TCP, "192.168.0.3:30080", 0, "", ""},
		{"node port, other protocol", service.SCTP, "192.168.0.2:30080", 0, "", ""},
		{"node port, established", service.TCP, "192.168.0.2:30080", SeenReply | Assured, "", ""},
		{"node port without endpoints", service.UDP, "192.168.0.2:30081", 0, "", NodePort},
		{"node port, CIDR with it", service.TCP, "192.168.1.2:30080", 0, "192.168.1.0/24", NodePort},
		{"node port, CIDR without it", service.TCP, "192.168.0.2:30080", 0, "192.168.1.0/24", ""},
		{"node port, no CIDR of its family", service.TCP, "[2001:db8:1::1]:30080", 0, "192.168.1.0/24", NodePort},
		{"node port, all", service.TCP, "192.168.1.2:30080", 0, "0.0.0.0/0", NodePort},
		{"node port, all, link-local", service.TCP, "[fe80::1]:30080", 0, "::/0", NodePort},
		{"node port, all, not local", service.TCP, "192.168.0.3:30080", 0, "0.0.0.0/0", ""},
		{"node port, all, loopback", service.TCP, "127.0.0.1:30080", 0, "0.0.0.0/0", ""},

		{"DNATed to where it was going", service.UDP, "192.168.0.2:443", 0, "", ""},
		{"DNATed to the node port itself", service.UDP, "192.168.0.2:30443", 0, "", ""},
		{"same endpoint by another address", service.UDP, "10.96.0.2:443", 0, "", ServiceAddress},
		{"same node port by another address", service.UDP, "192.168.1.2:30443", 0, "0.0.0.0/0", NodePort},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := NewIndex(nodePortAddresses(t, strings.Fields(test.nodePorts)...))
			x.Update(parse(t, cluster))
			got, stale := x.Stale(flow(test.protocol, test.dst, test.status))
			if got != test.want || stale != (test.want != "") {
				t.Errorf("Stale() = %q, %t, want %q", got, stale, test.want)
			}
		})
	}
}

func TestStaleSparesOtherZones(t *testing.T) {
	x := NewIndex(service.NodePortAddresses{})
	x.Update(parse(t, cluster))
	f := flow(service.UDP, "10.96.0.1:80", 0)
	f.Zone = 1
	if reason, stale := x.Stale(f); stale {
		t.Errorf("Stale() = %q for zone 1", reason)
	}
}

func TestUpdateGrown(t *testing.T) {
	const endpoint = "    endpoint 10.0.0.1:8080 n1 ready serving\n"
	tests := []struct {
		name     string
		from, to func(string) string
		want     bool
	}{
		{"nothing", keep, keep, false},
		{"new service", func(string) string { return "node n1" }, keep, true},
		{"service gone", keep, without("service default/web", "service kube"), false},
		{"new port", without("  port stream sctp 80\n", ""), keep, true},
		{"new node port", replace(" node-port 30080", ""), keep, true},
		{"new external IP", replace("  external-ip 203.0.113.5\n", ""), keep, true},
		{"new host address", replace("  host-address 192.168.1.2\n", ""), keep, true},
		{"cluster IP no longer bound", keep, replace("  host-address 10.96.0.10\n", ""), true},
		{"first endpoint", replace(endpoint, ""), keep, false},
		{"last endpoint gone", keep, replace(endpoint, ""), false},
		{"endpoint that was the address gone", keep, replace("    endpoint 192.168.0.2:443 n1 serving\n", ""), true},
		{"endpoint that was the node port gone", keep, replace("    endpoint 192.168.0.2:30443 n1 ready serving\n", ""), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := NewIndex(service.NodePortAddresses{})
			b := service.NewBuilder(service.Node{})
			x.Update(become(b, parse(t, test.from(cluster))))
			if got := x.Update(become(b, parse(t, test.to(cluster)))); got != test.want {
				t.Errorf("Update() = %t, want %t", got, test.want)
			}
		})
	}
}

func keep(s string) string { return s }

func replace(old, new string) func(string) string {
	return func(s string) string {
		if !strings.Contains(s, old) {
			panic("nothing to replace: " + old)
		}
		return strings.Replace(s, old, new, 1)
	}
}

// without cuts from one text up to the next.
func without(from, to string) func(string) string {
	return func(s string) string {
		i := strings.Index(s, from)
		return s[:i] + s[i+len(from):][strings.Index(s[i+len(from):], to):]
	}
}

// become brings the builder to the snapshot, so that what is equal is shared.
func become(b *service.Builder, want service.Snapshot) service.Snapshot {
	b.SetNode(*want.Node)
	for name := range b.Snapshot().Services.All() {
		if _, ok := want.Services.Get(name); !ok {
			b.Delete(name)
		}
	}
	for _, s := range want.Services.All() {
		b.Set(s)
	}
	return b.Snapshot()
}

// An index that followed any series of changes is the same as a fresh one, and
// it never finds more flows stale without having said so.
func TestUpdateFollows(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		x := NewIndex(service.NodePortAddresses{})
		b := service.NewBuilder(randomNode(r))
		stale := map[Flow]bool{}
		for range 10 {
			for range r.IntN(4) {
				change(r, b)
			}
			grown := x.Update(b.Snapshot())
			fresh := NewIndex(service.NodePortAddresses{})
			fresh.Update(b.Snapshot())
			if diff := cmp.Diff(fresh, x, cmp.AllowUnexported(Index{}, target{}, localPort{}),
				cmpopts.IgnoreFields(Index{}, "snapshot", "addresses"), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
				t.Fatalf("seed %d: followed index differs from a fresh one (-want +got):\n%s\n%s", seed, diff, b.Snapshot())
			}
			for _, f := range probes() {
				_, now := x.Stale(f)
				if now && !stale[f] && !grown {
					t.Fatalf("seed %d: %v became stale unannounced\n%s", seed, f, b.Snapshot())
				}
				stale[f] = now
			}
		}
	}
}

// A small world in which claims meet: three service addresses, of which one
// may be bound on the node, and the node's own.
func worldAddrs() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2"), netip.MustParseAddr("10.96.0.3"),
		netip.MustParseAddr("192.168.0.2"),
	}
}

func probes() []Flow {
	var flows []Flow
	for _, a := range worldAddrs() {
		for port := range uint16(4) {
			flows = append(flows, flow(service.UDP, fmt.Sprintf("%s:%d", a, port), 0))
		}
	}
	return flows
}

func pick(r *rand.Rand, from []netip.Addr) []netip.Addr {
	var some []netip.Addr
	for _, a := range from {
		if r.IntN(2) == 0 {
			some = append(some, a)
		}
	}
	return some
}

func randomNode(r *rand.Rand) service.Node {
	world := worldAddrs()
	return service.Node{Name: "n1", Addresses: world[3:], HostAddresses: pick(r, world[2:])}
}

func change(r *rand.Rand, b *service.Builder) {
	world := worldAddrs()
	name := service.Name(fmt.Sprintf("ns/%d", r.IntN(4)))
	switch r.IntN(6) {
	case 0:
		b.Delete(name)
	case 1:
		b.SetNode(randomNode(r))
	default:
		s := &service.Service{Name: name, Created: time.Unix(int64(r.IntN(3)), 0), ClusterIPs: world[r.IntN(3):][:1], ExternalIPs: pick(r, world)}
		for port := range uint16(r.IntN(3)) {
			p := service.Port{Protocol: service.UDP, Port: port + 1, NodePort: uint16(r.IntN(4))}
			for range r.IntN(3) {
				addr := netip.AddrPortFrom(world[r.IntN(4)], uint16(1+r.IntN(3)))
				p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: addr, Ready: true})
			}
			p.Endpoints = service.MergeEndpoints(p.Endpoints)
			s.Ports = append(s.Ports, p)
		}
		b.Set(s)
	}
}

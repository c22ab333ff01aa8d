package conntrack

import (
	"net/netip"
	"strings"
	"testing"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// cluster has a Service with endpoints, one without (udp), one on an address that
// NodeLocal DNSCache binds on the node, and an ingress on the host network whose endpoint
// has the Service's own external address and node port.
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
  port late tcp 8443
    endpoint 192.168.0.2:8443 n1
  port late udp 8443
    endpoint 192.168.0.2:8443 n1
`

func parse(t testing.TB, text string) service.Snapshot {
	t.Helper()
	s, err := gen.ReadSnapshot(strings.NewReader(text))
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
		{"DNATed", service.UDP, "10.96.0.1:80", DstNAT, "", EndpointGone},
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
		{"node port on loopback, from outside", service.TCP, "127.0.0.1:30080", 0, "127.0.0.0/8", ""},

		{"DNATed to where it was going", service.UDP, "192.168.0.2:443", 0, "", ""},
		{"DNATed to the node port itself", service.UDP, "192.168.0.2:30443", 0, "", ""},
		{"DNATed to where it was going, unready, unanswered", service.TCP, "192.168.0.2:8443", 0, "", EndpointGone},
		{"DNATed to where it was going, unready, answered", service.TCP, "192.168.0.2:8443", SeenReply, "", ""},
		{"DNATed to where it was going, unready, UDP", service.UDP, "192.168.0.2:8443", SeenReply | Assured, "",
			EndpointGone},
		{"same endpoint by another address", service.UDP, "10.96.0.2:443", 0, "", ServiceAddress},
		{"same node port by another address", service.UDP, "192.168.1.2:30443", 0, "0.0.0.0/0", NodePort},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := NewIndex(Options{NodePortAddresses: nodePortAddresses(t, strings.Fields(test.nodePorts)...)})
			x.Update(parse(t, cluster))
			x.Presume()
			got, stale := x.Stale(flow(test.protocol, test.dst, test.status))
			if got != test.want || stale != (test.want != "") {
				t.Errorf("Stale() = %q, %t, want %q", got, stale, test.want)
			}
		})
	}
}

func TestStaleSparesOtherZones(t *testing.T) {
	x := NewIndex(Options{})
	x.Update(parse(t, cluster))
	f := flow(service.UDP, "10.96.0.1:80", 0)
	f.Zone = 1
	if reason, stale := x.Stale(f); stale {
		t.Errorf("Stale() = %q for zone 1", reason)
	}
}

// A packet may have any protocol number. In a claim to a whole cluster IP, 0 stands for no
// protocol; a packet with number 0 must not count as one to a port of the Service.
func TestStaleTakesAnyProtocol(t *testing.T) {
	x := NewIndex(Options{})
	x.Update(parse(t, cluster))
	for protocol := range 256 {
		switch p := service.Protocol(protocol); p {
		case service.TCP, service.UDP, service.SCTP:
		default:
			f := flow(p, "10.96.0.1:0", 0)
			if reason, _ := x.Stale(f); reason != ClusterIP {
				t.Errorf("Stale() = %q for protocol %d, want %q", reason, protocol, ClusterIP)
			}
			f.Status = DstNAT
			if reason, _ := x.Stale(f); reason != "" {
				t.Errorf("Stale() = %q for protocol %d that others translated", reason, protocol)
			}
			if s, _, ok := x.Owner(f); ok {
				t.Errorf("Owner() = %v for protocol %d", s.Name, protocol)
			}
		}
	}
}

func keep(s string) string { return s }

func replace(from, to string) func(string) string {
	return func(s string) string {
		if !strings.Contains(s, from) {
			panic("nothing to replace: " + from)
		}
		return strings.Replace(s, from, to, 1)
	}
}

// without returns a function that cuts the text from one word up to another.
func without(from, to string) func(string) string {
	return func(s string) string {
		i := strings.Index(s, from)
		return s[:i] + s[i+len(from):][strings.Index(s[i+len(from):], to):]
	}
}

// until returns a function that cuts the text from a word to the end.
func until(text string) func(string) string {
	return func(s string) string { return s[:strings.Index(s, text)] }
}

// become gives the builder the snapshot's Services. Equal Services stay shared.
func become(b *snapshots.Builder, want service.Snapshot) service.Snapshot {
	b.SetNode(*want.Node)
	var cidrs []netip.Prefix
	for _, cidr := range want.ServiceCIDRs.All() {
		cidrs = append(cidrs, cidr)
	}
	b.SetServiceCIDRs(cidrs)
	for name := range b.Snapshot().Services.All() {
		if _, ok := want.Services.Get(name); !ok {
			b.Delete(name)
		}
	}
	for name := range b.Snapshot().Others.All() {
		b.DeleteOther(name)
	}
	for _, s := range want.Services.All() {
		b.Set(s)
	}
	for _, s := range want.Others.All() {
		b.SetOther(s)
	}
	return b.Snapshot()
}

// TestStaleOnLoopback: connections that nftproxy makes for its clients on loopback count as those to a node port. Other
// flows to loopback addresses do not, such as those of the clients themselves.
func TestStaleOnLoopback(t *testing.T) {
	for _, test := range []struct {
		src, dst, nodePorts string
		want                Reason
	}{
		{"192.168.0.2:40000", "127.0.0.1:30080", "primary 127.0.0.0/8", NodePort},
		{"192.168.1.2:40000", "127.0.0.1:30080", "127.0.0.1/32", NodePort},
		{"[2001:db8::1]:40000", "[::1]:30080", "localhost", NodePort},
		{"[2001:db8::1]:40000", "[::1]:30080", "primary 127.0.0.0/8", ""},
		{"192.168.0.2:40000", "127.0.0.1:30080", "primary", ""},
		{"192.168.0.2:40000", "127.0.0.2:30080", "localhost", ""},
		{"192.168.0.2:40000", "127.0.0.1:30099", "localhost", ""},
		{"127.0.0.1:40000", "127.0.0.1:30080", "localhost", ""},
	} {
		x := NewIndex(Options{NodePortAddresses: nodePortAddresses(t, strings.Fields(test.nodePorts)...)})
		x.Update(parse(t, cluster))
		f := flow(service.TCP, test.dst, 0)
		f.Original.Src, f.Reply.Dst = netip.MustParseAddrPort(test.src), netip.MustParseAddrPort(test.src)
		if got, _ := x.Stale(f); got != test.want {
			t.Errorf("from %s to %s, node ports on %s: %q, want %q", test.src, test.dst, test.nodePorts, got, test.want)
		}
	}
}

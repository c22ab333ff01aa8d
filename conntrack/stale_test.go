package conntrack

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// dnatedCluster has everything that decides whether a DNATed flow is stale: pods that serve
// or not, terminate or not, on this node and elsewhere; traffic policies; source ranges;
// a claim that two Services ask for. Pods have addresses of 10.0.0.0/16.
const dnatedCluster = `
node n1
  address 192.168.0.2
  host-address 127.0.0.1
  host-address 192.168.0.2
  host-address 192.168.1.2
service-cidr 10.96.0.0/16
service default/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  external-ip 203.0.113.5
  port dns udp 53 node-port 30053
    endpoint 10.0.0.1:53 n1 ready serving
    endpoint 10.0.0.2:53 n1 serving terminating
    endpoint 10.0.0.3:53 n1 terminating
    endpoint 10.0.0.4:53 n1
    endpoint 10.0.0.5:53 n2 ready serving
  port http tcp 80 node-port 30080
    endpoint 10.0.0.1:8080 n1 ready serving
    endpoint 10.0.0.3:8080 n1 terminating
  port empty udp 81
  port sigtran sctp 82
    endpoint 10.0.0.2:82 n1 serving terminating
    endpoint 10.0.0.4:82 n1
service default/local created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  external-ip 203.0.113.6
  load-balancer-ip 203.0.113.7
  source-range 198.51.100.0/28
  internal-policy Local
  external-policy Local
  port dns udp 53 node-port 30054
    endpoint 10.0.0.1:53 n1 ready serving
    endpoint 10.0.0.5:53 n2 ready serving
service default/restricted created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.3
  load-balancer-ip 203.0.113.8
  source-range 198.51.100.0/28
  port dns udp 53 node-port 30055
    endpoint 10.0.0.1:53 n1 ready serving
service default/younger created 2026-02-01T00:00:00Z
  cluster-ip 10.96.0.4
  external-ip 203.0.113.5
  port dns udp 53
    endpoint 10.0.0.9:53 n1 ready serving
`

// formerly returns the cluster with endpoints that it does not have any more.
func formerly(cluster string) string {
	for port, endpoints := range map[string][]string{
		"dns udp 53 node-port 30053": {"10.0.0.99:53", "10.0.0.1:54"}, "http tcp 80 node-port 30080": {"10.0.0.99:8080"},
		"empty udp 81":               {"10.0.0.1:53"},
		"dns udp 53 node-port 30055": {"10.0.0.99:53"},
	} {
		cluster = replace("  port "+port+"\n", "  port "+port+"\n    endpoint "+strings.Join(endpoints,
			" n1 ready serving\n    endpoint ")+" n1 ready serving\n")(cluster)
	}
	return cluster
}

func dnated(protocol service.Protocol, src, dst, endpoint string, status Status) Flow {
	from := netip.AddrPortFrom(netip.MustParseAddr(src), 40000)
	return Flow{
		Protocol: protocol, Status: status | DstNAT,
		Original: Tuple{from, netip.MustParseAddrPort(dst)},
		Reply:    Tuple{netip.MustParseAddrPort(endpoint), from},
	}
}

// podRange recognizes pods by their addresses, as --cluster-cidr does.
func podRange(_ *service.Node, a netip.Addr) (pod, known bool) {
	return netip.MustParsePrefix("10.0.0.0/16").Contains(a), true
}

func TestStaleDNATed(t *testing.T) {
	const (
		tcp, udp, sctp        = service.TCP, service.UDP, service.SCTP
		outsider              = "198.51.100.77"
		admitted              = "198.51.100.7"
		pod                   = "10.0.0.77"
		self                  = "192.168.0.2"
		answered              = SeenReply
		assured               = SeenReply | Assured
		unanswered            = Status(0)
		keep           Reason = ""
	)
	tests := []struct {
		name          string
		protocol      service.Protocol
		src           string
		dst, endpoint string
		status        Status
		want          Reason
	}{
		{"endpoint that serves", udp, pod, "10.96.0.1:53", "10.0.0.1:53", assured, keep},
		{"endpoint that serves while it terminates", udp, pod, "10.96.0.1:53", "10.0.0.2:53", assured, keep},
		{"endpoint that no longer serves", udp, pod, "10.96.0.1:53", "10.0.0.3:53", assured, EndpointGone},
		{"endpoint that does not serve yet", udp, pod, "10.96.0.1:53", "10.0.0.4:53", unanswered, EndpointGone},
		{"no endpoint", udp, pod, "10.96.0.1:53", "10.0.0.99:53", assured, EndpointGone},
		{"no endpoint, another port of one", udp, pod, "10.96.0.1:53", "10.0.0.1:54", assured, EndpointGone},
		{"no endpoint at all", udp, pod, "10.96.0.1:81", "10.0.0.1:53", assured, EndpointGone},
		{"endpoint of another port", tcp, pod, "10.96.0.1:80", "10.0.0.1:53", unanswered, keep},
		{"external IP", udp, outsider, "203.0.113.5:53", "10.0.0.99:53", assured, EndpointGone},

		{"TCP, unready pod, established", tcp, pod, "10.96.0.1:80", "10.0.0.3:8080", assured, keep},
		{"TCP, unready pod, answered", tcp, pod, "10.96.0.1:80", "10.0.0.3:8080", answered, keep},
		{"TCP, unready pod, unanswered", tcp, pod, "10.96.0.1:80", "10.0.0.3:8080", unanswered, EndpointGone},
		{"TCP, unready pod, unanswered, node port", tcp, outsider, "192.168.0.2:30080", "10.0.0.3:8080", unanswered,
			EndpointGone},
		{"SCTP, unready pod, unanswered", sctp, pod, "10.96.0.1:82", "10.0.0.4:82", unanswered, EndpointGone},
		{"SCTP, unready pod, answered", sctp, pod, "10.96.0.1:82", "10.0.0.4:82", answered, keep},
		{"SCTP, pod that terminates and serves, unanswered", sctp, pod, "10.96.0.1:82", "10.0.0.2:82", unanswered, keep},
		{"TCP, no endpoint, unanswered", tcp, pod, "10.96.0.1:80", "10.0.0.99:8080", unanswered, EndpointGone},
		{"TCP, no endpoint, established", tcp, pod, "10.96.0.1:80", "10.0.0.99:8080", assured, keep},
		{"SCTP is not the service's", sctp, pod, "10.96.0.1:80", "10.0.0.99:8080", unanswered, keep},

		{"node port", udp, outsider, "192.168.0.2:30053", "10.0.0.1:53", assured, keep},
		{"node port, no endpoint", udp, outsider, "192.168.0.2:30053", "10.0.0.99:53", assured, EndpointGone},
		{"node port's number on an address that does not serve it", udp, outsider, "192.168.1.2:30053", "10.0.0.99:53",
			assured, keep},
		{"node port's number on another host", udp, outsider, "192.168.0.3:30053", "10.0.0.99:53", assured, keep},
		{"node port's number, other protocol", tcp, outsider, "192.168.0.2:30053", "10.0.0.99:53", unanswered, keep},

		{"claim of two, the older's endpoint", udp, outsider, "203.0.113.5:53", "10.0.0.1:53", assured, keep},
		{"claim of two, the younger's endpoint after it had the claim", udp, outsider, "203.0.113.5:53", "10.0.0.9:53",
			assured, EndpointGone},

		{"somebody else's DNAT of a cluster IP", udp, pod, "10.96.0.1:53", "172.17.0.2:53", assured, keep},
		{"somebody else's DNAT of a cluster IP, unanswered", tcp, pod, "10.96.0.1:80", "172.17.0.2:80", unanswered, keep},
		{"somebody else's DNAT of an external IP", udp, outsider, "203.0.113.5:53", "172.17.0.2:53", assured, keep},
		{"somebody else's DNAT of a load balancer's address", udp, admitted, "203.0.113.8:53", "172.17.0.2:53", unanswered,
			keep},
		{"somebody else's DNAT of a node port", udp, outsider, "192.168.0.2:30053", "172.17.0.2:53", assured, keep},
		{"somebody else's DNAT to another Service's endpoint", udp, pod, "10.96.0.3:53", "10.0.0.5:53", assured, keep},
		{"somebody else's DNAT to another Service's former endpoint", udp, pod, "10.96.0.2:53", "10.0.0.99:53", assured,
			keep},
		{"somebody else's DNAT of a port without endpoints", udp, pod, "10.96.0.1:81", "172.17.0.2:81", assured, keep},
		{"somebody else's DNAT", udp, outsider, "192.168.0.2:5353", "172.17.0.2:53", assured, keep},
		{"somebody else's DNAT, unanswered", tcp, outsider, "192.168.0.2:8080", "172.17.0.2:80", unanswered, keep},
		{"somebody else's DNAT of a cluster IP's unused port", tcp, pod, "10.96.0.1:5353", "172.17.0.2:80", unanswered, keep},
		{"another proxy's cluster IP", udp, pod, "10.96.0.99:53", "10.0.0.99:53", assured, keep},
		{"another proxy's cluster IP, an endpoint of ours as well", udp, pod, "10.96.0.99:53", "10.0.0.1:53", assured, keep},
		{"another proxy's cluster IP, unanswered TCP", tcp, pod, "10.96.0.99:80", "10.0.0.1:8080", unanswered, keep},

		{"source in the ranges", udp, admitted, "203.0.113.8:53", "10.0.0.1:53", unanswered, keep},
		{"source not in the ranges", udp, outsider, "203.0.113.8:53", "10.0.0.1:53", unanswered, ForbiddenSource},
		{"source not in the ranges, answered", udp, outsider, "203.0.113.8:53", "10.0.0.1:53", answered, keep},
		{"source ranges are not for cluster IPs", udp, outsider, "10.96.0.3:53", "10.0.0.1:53", unanswered, keep},
		{"source ranges are not for node ports", udp, outsider, "192.168.0.2:30055", "10.0.0.1:53", unanswered, keep},
		{"endpoint gone and source not in the ranges", udp, outsider, "203.0.113.8:53", "10.0.0.99:53", unanswered,
			EndpointGone},

		{"internal Local, endpoint here", udp, pod, "10.96.0.2:53", "10.0.0.1:53", unanswered, keep},
		{"internal Local, endpoint elsewhere", udp, pod, "10.96.0.2:53", "10.0.0.5:53", unanswered, ForbiddenPolicy},
		{"internal Local, endpoint elsewhere, answered", udp, pod, "10.96.0.2:53", "10.0.0.5:53", answered, keep},
		{"internal Local, the node itself", udp, self, "10.96.0.2:53", "10.0.0.5:53", unanswered, ForbiddenPolicy},
		{"external Local, endpoint here", udp, outsider, "203.0.113.6:53", "10.0.0.1:53", unanswered, keep},
		{"external Local, outsider, endpoint elsewhere", udp, outsider, "203.0.113.6:53", "10.0.0.5:53", unanswered,
			ForbiddenPolicy},
		{"external Local, outsider, endpoint elsewhere, node port", udp, outsider, "192.168.0.2:30054", "10.0.0.5:53",
			unanswered, ForbiddenPolicy},
		{"external Local, pod, endpoint elsewhere", udp, pod, "203.0.113.6:53", "10.0.0.5:53", unanswered, keep},
		{"external Local, the node itself, endpoint elsewhere", udp, self, "192.168.0.2:30054", "10.0.0.5:53", unanswered,
			keep},
		{"external Local, loopback, endpoint elsewhere", udp, "127.0.0.9", "192.168.0.2:30054", "10.0.0.5:53", unanswered,
			keep},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := NewIndex(Options{Pod: podRange})
			x.Update(parse(t, formerly(dnatedCluster)))
			x.Update(parse(t, replace("service default/web created 2026-01-01",
				"service default/web created 2026-03-01")(dnatedCluster)))
			x.Update(parse(t, dnatedCluster))
			f := dnated(test.protocol, test.src, test.dst, test.endpoint, test.status)
			if got, stale := x.Stale(f); got != test.want || stale != (test.want != "") {
				t.Errorf("Stale() = %q, %t, want %q", got, stale, test.want)
			}
			f.Zone = 1
			if got, _ := x.Stale(f); got != test.want {
				t.Errorf("Stale() = %q in another zone, want %q", got, test.want)
			}
		})
	}
}

// Where pods cannot be recognized, every client may reach the endpoints that pods may
// reach.
func TestStalePolicyWhereNobodyKnowsPods(t *testing.T) {
	for name, pod := range map[string]func(*service.Node, netip.Addr) (bool, bool){
		"never": nil, "not by address": func(*service.Node, netip.Addr) (pod, known bool) { return false, false },
	} {
		x := NewIndex(Options{Pod: pod})
		x.Update(parse(t, dnatedCluster))
		for dst, want := range map[string]Reason{"203.0.113.6:53": "", "10.96.0.2:53": ForbiddenPolicy} {
			if got, _ := x.Stale(dnated(service.UDP, "198.51.100.77", dst, "10.0.0.5:53", 0)); got != want {
				t.Errorf("%s: %s: %q, want %q", name, dst, got, want)
			}
		}
	}
}

// A load balancer on the nodes themselves (klipper-lb) has their addresses. Its source
// ranges do not restrict the node ports.
func TestStaleSourceRangesOnTheNode(t *testing.T) {
	x := NewIndex(Options{})
	x.Update(parse(t, replace("load-balancer-ip 203.0.113.8\n", "load-balancer-ip 192.168.0.2\n")(dnatedCluster)))
	for dst, want := range map[string]Reason{"192.168.0.2:53": ForbiddenSource, "192.168.0.2:30055": ""} {
		if got, _ := x.Stale(dnated(service.UDP, "198.51.100.77", dst, "10.0.0.1:53", 0)); got != want {
			t.Errorf("%s: %q, want %q", dst, got, want)
		}
	}
}

func TestStaleEstablished(t *testing.T) {
	x := NewIndex(Options{Established: []service.Protocol{service.TCP}})
	x.Update(parse(t, formerly(dnatedCluster)))
	x.Update(parse(t, dnatedCluster))
	for endpoint, want := range map[string]Reason{
		"10.0.0.1:8080": "", "10.0.0.3:8080": "", // only unready
		"10.0.0.99:8080": EndpointGone,
	} {
		if got, _ := x.Stale(dnated(service.TCP, "10.0.0.77", "10.96.0.1:80", endpoint, SeenReply|Assured)); got != want {
			t.Errorf("%s: %q, want %q", endpoint, got, want)
		}
	}
	x.Update(parse(t, replace("  port http tcp 80 node-port 30080\n",
		"  port http tcp 81 node-port 30080\n")(dnatedCluster)))
	for endpoint, want := range map[string]Reason{"10.0.0.1:8080": ServiceGone, "10.0.0.99:8080": ServiceGone,
		"10.0.0.98:8080": ""} {
		if got, _ := x.Stale(dnated(service.TCP, "10.0.0.77", "10.96.0.1:80", endpoint, SeenReply|Assured)); got != want {
			t.Errorf("port gone, %s: %q, want %q", endpoint, got, want)
		}
	}
}

// TestKubernetes106651: the entry of an SCTP client with a fixed source port, whose INITs go on to an endpoint that has
// left, looks like that of a living association. It ends where the node or the Service asks for that, and only then.
func TestKubernetes106651(t *testing.T) {
	const port = "  port sigtran sctp 82\n"
	left := replace(port, port+"    endpoint 10.0.0.99:82 n1 ready serving\n")(dnatedCluster)
	asking := func(option string) func(string) string {
		return replace("  port dns udp 53 node-port 30053\n", option+"  port dns udp 53 node-port 30053\n")
	}
	const cut, keep = "  option departed-connections cut\n", "  option departed-connections keep\n"
	sctp, tcp := []service.Protocol{service.SCTP}, []service.Protocol{service.TCP}
	for name, c := range map[string]struct {
		established []service.Protocol
		option      string
		want        Reason
	}{
		"by default": {nil, "", ""}, "the node asks for TCP": {tcp, "", ""}, "the node asks": {sctp, "", EndpointGone},
		"the Service asks": {nil, cut, EndpointGone}, "the Service refuses": {sctp, keep, ""},
	} {
		x := NewIndex(Options{Established: c.established})
		x.Update(parse(t, asking(c.option)(left)))
		x.Update(parse(t, asking(c.option)(dnatedCluster)))
		for _, at := range []string{"10.0.0.99:82", "10.0.0.4:82"} { // the second one is only unready
			want := c.want
			if at == "10.0.0.4:82" {
				want = ""
			}
			if got, _ := x.Stale(dnated(service.SCTP, "198.51.100.77", "10.96.0.1:82", at, SeenReply|Assured)); got != want {
				t.Errorf("%s: %s: %q, want %q", name, at, got, want)
			}
		}
	}
}

// IPVS translates without a bit of the status. Its flows stay with an endpoint that serves, and end with it as those
// with DNAT do.
func TestStaleByIPVS(t *testing.T) {
	x := NewIndex(Options{})
	x.Update(parse(t, dnatedCluster))
	for endpoint, want := range map[string]Reason{"10.0.0.1:53": "", "10.0.0.3:53": EndpointGone,
		"10.96.0.1:53": ServiceAddress} {
		flow := dnated(service.UDP, "10.0.0.77", "10.96.0.1:53", endpoint, SeenReply|Assured)
		flow.Status &^= DstNAT
		if got, _ := x.Stale(flow); got != want {
			t.Errorf("answered by %s: %q, want %q", endpoint, got, want)
		}
	}
}

// The kernel does not mark a translation to the destination that the packet already has. Such a connection ends with
// its endpoint as others do. One to a process that nothing was said of is left alone.
func TestStaleEstablishedIdentity(t *testing.T) {
	const endpoint = "    endpoint 203.0.113.5:80 n2 ready serving\n"
	before := strings.Replace(dnatedCluster, "  port http tcp 80 node-port 30080\n",
		"  port http tcp 80 node-port 30080\n"+endpoint, 1)
	flow := dnated(service.TCP, "10.0.0.77", "203.0.113.5:80", "203.0.113.5:80", SeenReply|Assured)
	flow.Status &^= DstNAT
	for name, c := range map[string]struct {
		established []service.Protocol
		after       string
		want        Reason
	}{
		"not asked for": {nil, dnatedCluster, ""},
		"still there":   {[]service.Protocol{service.TCP}, before, ""},
		"endpoint gone": {[]service.Protocol{service.TCP}, dnatedCluster, EndpointGone},
		"the port, too": {[]service.Protocol{service.TCP}, replace("  port http tcp 80 node-port 30080\n",
			"  port http tcp 81 node-port 30080\n")(dnatedCluster), ServiceGone},
		"other protocol": {[]service.Protocol{service.SCTP}, dnatedCluster, ""},
	} {
		x := NewIndex(Options{Established: c.established})
		x.Update(parse(t, before))
		x.Update(parse(t, c.after))
		if got, _ := x.Stale(flow); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	x := NewIndex(Options{Established: []service.Protocol{service.TCP}})
	x.Update(parse(t, dnatedCluster))
	if got, _ := x.Stale(flow); got != "" {
		t.Errorf("a connection to a local listener: %q", got)
	}
}

// An unanswered flow whose translation kept its destination, such as datagrams to a log server on the host network,
// ends where source ranges or a traffic policy keep its client out now, as others do.
func TestStaleForbiddenIdentity(t *testing.T) {
	const direct = `
service default/direct created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.5
  external-ip 203.0.113.9
  option source-ranges 198.51.100.0/28
  port log udp 514 node-port 30514
    endpoint 203.0.113.9:514 n2 ready serving
    endpoint 192.168.0.2:30514 n1 ready serving
`
	local := strings.Replace(dnatedCluster, "    endpoint 10.0.0.5:53 n2 ready serving\nservice default/restricted",
		"    endpoint 203.0.113.6:53 n2 ready serving\nservice default/restricted", 1)
	restricted := strings.Replace(local, "    endpoint 10.0.0.1:53 n1 ready serving\nservice default/younger",
		"    endpoint 203.0.113.8:53 n1 ready serving\nservice default/younger", 1)
	x := NewIndex(Options{Pod: podRange})
	x.Update(parse(t, restricted+direct[1:]))
	for dst, want := range map[string]Reason{
		"203.0.113.8:53": ForbiddenSource, "203.0.113.9:514": ForbiddenSource, "192.168.0.2:30514": ForbiddenSource,
		"203.0.113.6:53": ForbiddenPolicy,
	} {
		for _, c := range []struct {
			name, src string
			status    Status
			want      Reason
		}{
			{"outside", "198.51.100.77", 0, want},
			{"answered", "198.51.100.77", SeenReply, ""},
			{"in the ranges", "198.51.100.7", 0, map[Reason]Reason{ForbiddenPolicy: ForbiddenPolicy}[want]},
		} {
			flow := dnated(service.UDP, c.src, dst, dst, c.status)
			flow.Status &^= DstNAT
			if got, _ := x.Stale(flow); got != c.want {
				t.Errorf("%s, %s: %q, want %q", dst, c.name, got, c.want)
			}
		}
	}
}

// An address that becomes an external IP, too, is restricted from then on by the annotation source-ranges.
func TestScopeOfExternalIP(t *testing.T) {
	const cluster = `
node n1
service default/direct created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.5
  option source-ranges 198.51.100.0/28
  port log udp 514
    endpoint 10.0.0.1:514 n1 ready serving
`
	x := NewIndex(Options{})
	b := snapshots.NewBuilder(service.Node{})
	x.Update(become(b, parse(t, cluster)))
	flow := dnated(service.UDP, "198.51.100.77", "10.96.0.5:514", "10.0.0.1:514", 0)
	if got, _ := x.Stale(flow); got != "" {
		t.Errorf("as cluster IP: %q", got)
	}
	scope := x.Update(become(b, parse(t, replace("  option", "  external-ip 10.96.0.5\n  option")(cluster))))
	if got, _ := x.Stale(flow); got != ForbiddenSource || !scope.Selects(&flow) {
		t.Errorf("as external IP: %q, in the scope %t", got, scope.Selects(&flow))
	}
}

// The index knows the flows of a former Service until it forgets the endpoints. DNATs of
// other programs to the same address are never stale.
func TestStaleServiceGone(t *testing.T) {
	const web = "service default/web created 2026-01-01T00:00:00Z"
	noCIDR := replace("service-cidr 10.96.0.0/16\n", "")
	for name, c := range map[string]struct {
		changes []func(string) string // in this order
		gone    string                // empty if no flow is stale
	}{
		"no change": {[]func(string) string{keep}, ""},
		"service deleted": {[]func(string) string{without(web, "service default/local")},
			"10.96.0.1:53 203.0.113.5:53 192.168.0.2:30053"},
		"address changed": {[]func(string) string{replace("cluster-ip 10.96.0.1\n", "cluster-ip 10.96.0.11\n")},
			"10.96.0.1:53"},
		"port changed": {[]func(string) string{replace("dns udp 53 node-port 30053", "dns udp 54 node-port 30053")},
			"10.96.0.1:53 203.0.113.5:53"},
		"node port changed": {[]func(string) string{replace("node-port 30053", "node-port 30057")}, "192.168.0.2:30053"},
		"endpoint first, then service": {
			[]func(string) string{replace("    endpoint 10.0.0.1:53 n1 ready serving\n", ""),
				without(web, "service default/local")},
			"10.96.0.1:53 203.0.113.5:53 192.168.0.2:30053",
		},
		"deleted and back with another address": {
			[]func(string) string{
				without(web, "service default/local"), replace("cluster-ip 10.96.0.1\n", "cluster-ip 10.96.0.11\n")},
			"10.96.0.1:53",
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Without the younger claimant, which would get the external IP.
			cluster := noCIDR(dnatedCluster)
			cluster = cluster[:strings.Index(cluster, "service default/younger")]
			x, b := NewIndex(Options{}), snapshots.NewBuilder(service.Node{})
			x.Update(become(b, parse(t, cluster)))
			for _, change := range c.changes {
				x.Update(become(b, parse(t, change(cluster))))
			}
			check := func(when, want string) {
				t.Helper()
				var got []string
				for _, dst := range []string{"10.96.0.1:53", "203.0.113.5:53", "192.168.0.2:30053"} {
					if reason, _ := x.Stale(dnated(service.UDP, "198.51.100.7", dst, "10.0.0.1:53",
						SeenReply)); reason == ServiceGone {
						got = append(got, dst)
					}
					if reason, stale := x.Stale(dnated(service.UDP, "198.51.100.7", dst, "172.17.0.2:53",
						SeenReply)); reason == ServiceGone {
						t.Errorf("%s: %s: somebody else's DNAT is %t: %q", when, dst, stale, reason)
					}
				}
				if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
					t.Errorf("%s: service gone (-want +got):\n%s", when, diff)
				}
			}
			check("after the change", c.gone)
			x.Forget(x.Epoch() - 1)
			if len(c.changes) == 1 {
				check("when the older are forgotten", c.gone)
			}
			x.Forget(x.Epoch())
			check("when all is forgotten", "")
			if n := len(x.departed.from); n != 0 || len(x.departed.order) != 0 || x.departed.kept != 0 ||
				x.departed.keptEndpoints != 0 {
				t.Errorf("%d claims are remembered: %+v", n, x.departed)
			}
		})
	}
}

// due is the number of departures that no pass has covered.
func (d *departed) due() int { return len(d.order) - d.kept }

// check compares the counts with what is remembered.
func (d *departed) check(t *testing.T) {
	t.Helper()
	total, endpoints := 0, 0
	for _, list := range d.from {
		total += len(list)
	}
	for _, one := range d.order[:d.kept] {
		endpoints += one.endpoints.Len()
	}
	if total != len(d.order) || endpoints != d.keptEndpoints {
		t.Errorf("%d departures, %d in order; %d endpoints are kept, counted %d", total, len(d.order), endpoints,
			d.keptEndpoints)
	}
}

// Where no pass succeeds, departed endpoints must not fill the memory. But the index
// remembers all that one update removes until a pass has looked for their flows.
func TestDepartedIsBounded(t *testing.T) {
	d := departed{from: map[service.Claim][]*departure{}}
	e := service.MergeEndpoints([]service.Endpoint{{}})
	d.epoch++
	for i := range 2 * maxDeparted {
		d.add(service.Claim{Port: uint16(i), Protocol: service.Protocol(i >> 16)}, &service.Port{}, e, cutoff{})
	}
	d.epoch++
	d.add(service.Claim{}, &service.Port{}, e, cutoff{})
	if want := 2*maxDeparted + 1; len(d.order) != want {
		t.Errorf("%d departures are remembered, want %d", len(d.order), want)
	}
	for i := range 3 * maxDeparted {
		d.epoch++
		d.add(service.Claim{Port: uint16(i)}, &service.Port{}, e, cutoff{})
		if len(d.order) > 3*maxDeparted+1 {
			t.Fatalf("%d departures are remembered", len(d.order))
		}
	}
	if d.check(t); len(d.order) > maxDeparted+1 {
		t.Errorf("%d departures are remembered", len(d.order))
	}
}

// What passes have covered is kept, the latest of it in bounded number, and forgotten on demand.
func TestDepartedIsKept(t *testing.T) {
	d := departed{from: map[service.Claim][]*departure{}}
	var three []service.Endpoint
	for i := range 3 {
		three = append(three, service.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i))})
	}
	e, claim := service.MergeEndpoints(three), func(i uint64) service.Claim {
		return service.Claim{Port: uint16(i % 7), Protocol: 1}
	}
	for d.epoch < 2*maxKept {
		d.epoch++
		d.add(claim(d.epoch), &service.Port{}, e, cutoff{})
		d.cover(d.epoch - 1)
		if d.due() != 1 || d.keptEndpoints > maxKept {
			t.Fatalf("epoch %d: %d are due, %d endpoints are kept", d.epoch, d.due(), d.keptEndpoints)
		}
	}
	if d.check(t); d.kept != maxKept/3 {
		t.Errorf("%d departures are kept, want %d", d.kept, maxKept/3)
	}
	d.forget(d.epoch - 2)
	if d.check(t); d.kept != 1 || d.due() != 1 {
		t.Errorf("%d departures are kept and %d are due, want one and one", d.kept, d.due())
	}
	if d.forget(d.epoch); len(d.order) != 0 || len(d.from) != 0 {
		t.Errorf("all is forgotten but %+v", d)
	}
}

func TestOwner(t *testing.T) {
	x := NewIndex(Options{})
	x.Update(parse(t, dnatedCluster))
	for dst, want := range map[string]string{
		"10.96.0.1:53": "default/web:dns", "203.0.113.5:53": "default/web:dns", "192.168.0.2:30054": "default/local:dns",
		"10.96.0.4:53": "default/younger:dns", "10.96.0.1:5353": "", "192.168.1.2:30054": "", "198.51.100.1:53": "",
	} {
		got := ""
		s, p, ok := x.Owner(dnated(service.UDP, "198.51.100.7", dst, "10.0.0.1:53", 0))
		if ok {
			got = s.ID(p)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", dst, got, want)
		}
	}
}

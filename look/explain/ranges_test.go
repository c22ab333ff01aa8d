package explain_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/look/explain"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// TestClosedSourceRanges: ranges beyond the bound let in nobody, and the cause is the bound.
func TestClosedSourceRanges(t *testing.T) {
	w := newWorld(t)
	b := snapshots.NewBuilder(*w.snapshot.Node)
	b.SetMaxSourceLists(1)
	for i, name := range []string{"older", "younger"} {
		b.Set(&service.Service{
			Name: service.NewName("ns", name), Created: time.Unix(int64(i), 0),
			ClusterIPs:      []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})},
			LoadBalancerIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})},
			Sources: service.NewSources([]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, 0}),
				24+i)}),
			Ports: []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints([]service.Endpoint{
				{Addr: netip.MustParseAddrPort("10.244.0.5:80"), Ready: true, Serving: true},
			})}},
		})
	}
	w.snapshot = b.Snapshot()
	w.facts.Tables = ruleset.Compile(ruleset.Config{Table: "nftproxy"}, w.snapshot).Model()
	w.facts.Objects, w.facts.Source = &w.snapshot, "the objects"
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.0:80/tcp", explain.Endpoint, "10.244.0.5:80")
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.1:80/tcp", explain.Dropped, "Service ns/younger: no client is let in",
		"--nftproxy-max-source-lists")
	w.says("eth0 192.0.2.1:1000 -> 198.51.100.0:80/tcp", explain.Dropped,
		"let in only 203.0.113.0/24, and 192.0.2.1 is not among them")
}

// TestSourceRangesByAnnotation: the explanation names the field that keeps the client out, at each way in.
func TestSourceRangesByAnnotation(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(cluster + `service ns/direct created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.8
  external-ip 198.51.100.18
  load-balancer-ip 198.51.100.8
  source-range 203.0.113.0/24
  option source-ranges 203.0.113.0/24
  port http tcp 80 node-port 30088
    endpoint 10.244.0.5:80 node-1 ready serving
service ns/both created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.9
  load-balancer-ip 198.51.100.28
  source-range 203.0.113.0/25
  option source-ranges 203.0.113.0/24
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.snapshot = s
	w.facts.Tables = ruleset.Compile(ruleset.Config{Table: "nftproxy"}, s).Model()
	const annotation = "annotation nftproxy.io/source-ranges"
	for _, known := range []bool{false, true} {
		field, both := "loadBalancerSourceRanges (or the "+annotation+")", "loadBalancerSourceRanges (or the "+annotation+")"
		if known {
			w.facts.Objects, w.facts.Source = &s, "the objects"
			field, both = annotation, "loadBalancerSourceRanges and the "+annotation
		}
		w.says("eth0 192.0.2.1:1000 -> 198.51.100.18:80/tcp", explain.Dropped, "\n  the "+field+" of Service ns/direct "+
			"let in only 203.0.113.0/24, and 192.0.2.1 is not among them", "do not restrict cluster IPs")
		w.says("eth0 192.0.2.1:1000 -> 198.51.100.8:80/tcp", explain.Dropped, "\n  the "+field+
			" of Service ns/direct let in only 203.0.113.0/24", "\n  add the client's range to the "+field+" of ns/direct, or")
		w.says("eth0 192.0.2.1:1000 -> 198.51.100.28:80/tcp", explain.Dropped,
			"the "+both+" of Service ns/both let in only 203.0.113.0/25")
		w.says("eth0 192.0.2.1:1000 -> 192.168.0.2:30088/tcp", explain.Dropped, "the "+annotation+" of Service ns/direct "+
			"let in only 203.0.113.0/24, and 192.0.2.1 is not among them")
		w.says("node 192.168.0.2:1000 -> 192.168.0.2:30088/tcp", explain.Dropped, "192.168.0.2 is not among them")
		w.says("eth0 203.0.113.200:1000 -> 192.168.0.2:30088/tcp", explain.Endpoint, "10.244.0.5:80")
	}
}

// TestSourceRangesDenied: the explanation of a client that ranges deny does not ask for it to be added to them.
func TestSourceRangesDenied(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(cluster + `service ns/denying created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.8
  load-balancer-ip 198.51.100.8
  source-range 0.0.0.0/1
  source-range 128.0.0.0/2
  option service.cilium.io/src-ranges-policy deny
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
service ns/both created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.9
  load-balancer-ip 198.51.100.28
  source-range 10.0.0.0/8
  option service.cilium.io/src-ranges-policy deny
  option source-ranges 10.0.0.0/8,192.0.0.0/2
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
service ns/none created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  load-balancer-ip 198.51.100.38
  source-range none
  option service.cilium.io/src-ranges-policy deny
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.snapshot = s
	w.facts.Tables = ruleset.Compile(ruleset.Config{Table: "nftproxy"}, s).Model()
	w.facts.Objects, w.facts.Source = &s, "the objects"
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.8:80/tcp", explain.Dropped, "\n  the loadBalancerSourceRanges of Service "+
		"ns/denying deny 203.0.113.1 (service.cilium.io/src-ranges-policy: deny)",
		"\n  take the client's range out of the loadBalancerSourceRanges of ns/denying, or")
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.28:80/tcp", explain.Dropped, "of Service ns/both deny 203.0.113.1")
	w.says("eth0 172.16.0.1:1000 -> 198.51.100.28:80/tcp", explain.Dropped,
		"the loadBalancerSourceRanges and the annotation nftproxy.io/source-ranges of Service ns/both let in only 10.0.0.0/8")
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.38:80/tcp", explain.Dropped, "of Service ns/none let in no client")
	w.says("eth0 100.0.0.1:1000 -> 198.51.100.8:80/tcp", explain.Endpoint, "10.244.0.5:80")
}

// TestTimeoutsByAnnotation: the steps say which time-outs the connection gets.
func TestTimeoutsByAnnotation(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(cluster + `service ns/timed created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.8
  option tcp-established-timeout 2h
  option udp-timeouts 30s,10m
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
  port dns udp 53
    endpoint 10.244.0.5:53 node-1 ready serving
service ns/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.99
  affinity 7200s
  option tcp-established-timeout 2h
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.snapshot = s
	w.facts.Tables = ruleset.Compile(ruleset.Config{Table: "nftproxy"}, s).Model()
	// With session affinity a new client meets two chains. One of them gives the time-out.
	e := w.ask("eth0 192.0.2.1:1000 -> 10.96.0.99:80/tcp")
	if text := e.Text(true); strings.Count(text, "asks for a time-out") != 1 {
		t.Errorf("the text should say once that the Service asks for a time-out:\n%s", text)
	}
	w.says("eth0 192.0.2.1:1000 -> 10.96.0.8:80/tcp", explain.Endpoint, "connection tracking forgets the connection "+
		"2h0m0s after its last packet")
	w.says("eth0 192.0.2.1:1000 -> 10.96.0.8:53/udp", explain.Endpoint, "connection tracking forgets the flow 10m0s "+
		"after its last packet, or 30s after it if nothing has answered")
}

package balance

import (
	"net/netip"
	"strings"
	"testing"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// neighbours share addresses, ports of the node and endpoints with a/web, which follows connections.
const neighbours = `node node
 address 192.0.2.1
 address 2001:db8::1
 host-address 192.0.2.1
 host-address 2001:db8::1
service a/web created 2026-01-01T00:00:00Z
 cluster-ip 10.96.0.1
 cluster-ip fd00:96::1
 external-ip 198.51.100.1
 external-ip 2001:db8:1::1
 load-balancer-ip 203.0.113.1
 option balance least-connections
 option port-ranges 20000-20010/TCP
 port http tcp 80 node-port 30080
  endpoint 10.0.0.1:8080 node ready serving
  endpoint [fd00::1]:8080 node ready serving
 port ranges tcp ranges=20000-20010
  endpoint 10.0.0.1:0 node ready serving
  endpoint [fd00::1]:0 node ready serving
service a/least created 2025-02-01T00:00:00Z
 cluster-ip 10.96.0.2
 external-ip 198.51.100.1
 option balance least-connections
 port x tcp 20001
  endpoint 10.0.0.1:20001 node ready serving
service b/in-ranges created 2025-01-01T00:00:00Z
 cluster-ip 10.96.0.3
 cluster-ip fd00:96::3
 external-ip 198.51.100.1
 external-ip 2001:db8:1::1
 port x tcp 20005
  endpoint 10.0.0.1:20005 node ready serving
  endpoint [fd00::1]:20005 node ready serving
 port y udp 20006
  endpoint 10.0.0.1:20006 node ready serving
service b/same-balancer created 2026-02-01T00:00:00Z
 cluster-ip 10.96.0.4
 load-balancer-ip 203.0.113.1
 port x tcp 81
  endpoint 10.0.0.1:8080 node ready serving
service b/on-node created 2026-02-01T00:00:00Z
 cluster-ip 10.96.0.5
 external-ip 192.0.2.1
 port x tcp 30080
  endpoint 10.0.0.1:8080 node ready serving
service b/same-cluster-ip created 2025-01-01T00:00:00Z
 cluster-ip 10.96.0.1
 port x tcp 20003
  endpoint 10.0.0.1:20003 node ready serving
`

// TestOwner: a connection counts for the Service that has the address and port, if that follows connections: not for
// the one whose ranges have the port too, or whose node port it would be. When the Service goes, those of the same port
// count for who has it then.
func TestOwner(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(neighbours))
	if err != nil {
		t.Fatal(err)
	}
	b, m := snapshots.NewBuilder(*s.Node), newMover(service.NodePortAddresses{})
	for _, svc := range s.Services.All() {
		b.Set(svc)
	}
	m.follow(b.Snapshot())
	type where struct {
		protocol service.Protocol
		to       string
	}
	want := map[where]string{
		{service.TCP, "10.96.0.1:80"}: "a/web:http", {service.TCP, "192.0.2.1:30080"}: "",
		{service.TCP, "[2001:db8::1]:30080"}: "a/web:http", {service.TCP, "203.0.113.1:80"}: "a/web:http",
		{service.TCP, "203.0.113.1:81"}: "", {service.TCP, "198.51.100.1:80"}: "a/web:http",
		{service.TCP, "198.51.100.1:20000"}: "a/web:ranges", {service.TCP, "198.51.100.1:20001"}: "a/least:x",
		{service.TCP, "198.51.100.1:20005"}: "", {service.TCP, "[2001:db8:1::1]:20005"}: "",
		{service.TCP, "[2001:db8:1::1]:20006"}: "a/web:ranges", {service.UDP, "198.51.100.1:20006"}: "",
		{service.TCP, "198.51.100.1:20011"}: "", {service.TCP, "10.96.0.1:20003"}: "",
		{service.TCP, "10.96.0.1:20004"}: "a/web:ranges", {service.TCP, "10.96.0.3:20005"}: "",
		{service.TCP, "10.96.0.2:20001"}: "a/least:x",
	}
	check := func(when string) {
		t.Helper()
		for at, id := range want {
			to := netip.MustParseAddrPort(at.to)
			reply := netip.MustParseAddrPort("10.0.0.1:8080")
			if to.Addr().Is6() {
				reply = netip.MustParseAddrPort("[fd00::1]:8080")
			}
			open := openTo{}
			counted := m.count(open, conntrack.Flow{Protocol: at.protocol, Status: conntrack.DstNAT,
				Original: conntrack.Tuple{Dst: to}, Reply: conntrack.Tuple{Src: reply}})
			got := ""
			for _, svc := range m.snapshot.Services.All() {
				for i := range svc.Ports {
					if len(open[&svc.Ports[i]]) > 0 {
						got = svc.ID(&svc.Ports[i])
					}
				}
			}
			if got != id || counted != (id != "") {
				t.Errorf("%s: %v %s counts for %q (%v), want %q", when, at.protocol, at.to, got, counted, id)
			}
		}
	}
	check("all are there")
	for _, svc := range s.Services.All() {
		if namespace, _ := svc.Name.Split(); namespace == "b" {
			b.Delete(svc.Name)
		}
	}
	m.follow(b.Snapshot())
	want[where{service.TCP, "198.51.100.1:20005"}], want[where{service.TCP, "10.96.0.1:20003"}] = "a/web:ranges",
		"a/web:ranges"
	want[where{service.TCP, "[2001:db8:1::1]:20005"}] = "a/web:ranges"
	want[where{service.TCP, "192.0.2.1:30080"}] = "a/web:http"
	check("the others are gone")
	for _, svc := range s.Services.All() {
		random := svc.Clone()
		random.Options.Balance = service.ByRandom
		b.Set(random)
	}
	m.follow(b.Snapshot())
	for at := range want {
		want[at] = ""
	}
	check("none follows connections")
}

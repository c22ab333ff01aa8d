package otherproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cloudflare/ipvs"
	"github.com/cloudflare/ipvs/netmask"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestVirtualServer: what the kernel says about virtual servers and their servers is taken over, and names them to the
// kernel again.
func TestVirtualServer(t *testing.T) {
	for text, of := range map[string]ipvs.Service{
		"10.96.0.10:53/udp":    {Family: ipvs.INET, Protocol: ipvs.UDP, Port: 53},
		"[fd00:96::a]:443/tcp": {Family: ipvs.INET6, Protocol: ipvs.TCP, Port: 443},
		"192.0.2.1:30080/sctp": {Family: ipvs.INET, Protocol: ipvs.SCTP, Port: 30080},
	} {
		addr, _, _ := strings.Cut(text, "/")
		of.Address = netip.MustParseAddrPort(addr).Addr()
		s := parseServer(of)
		if s.String() != text || s.whole || s.mark != 0 || !s.natted {
			t.Errorf("%s: %+v", text, s)
		}
		if diff := cmp.Diff(of, s.service(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s named to the kernel (-want +got):\n%s", text, diff)
		}
		bits := of.Address.BitLen()
		of.Netmask, of.Scheduler, of.Flags = netmask.MaskFrom(bits, bits), "rr", ipvs.ServiceHashed
		if s := parseServer(of); !s.whole {
			t.Errorf("%s, of the address alone: %+v", text, s)
		}
		of.Netmask = netmask.MaskFrom(24, bits)
		if s := parseServer(of); s.whole {
			t.Errorf("%s, of a network: %+v", text, s)
		}
	}
	if s := parseServer(ipvs.Service{Family: ipvs.INET, FWMark: 7}); s.mark != 7 || s.whole {
		t.Errorf("of a mark: %+v", s)
	}
	s := virtualServer{natted: true}
	for i, n := range [][2]uint32{{2, 3}, {0, 0}, {4, 0}} { // what persistence remembers is no connection
		s.addServer(ipvs.DestinationExtended{ActiveConnections: n[0], InactiveConnections: n[1], PersistentConnections: 100})
		if !s.natted {
			t.Errorf("server %d: %+v", i, s)
		}
	}
	if s.connections != 9 {
		t.Errorf("%d connections, want 9", s.connections)
	}
	for _, method := range []ipvs.ForwardType{ipvs.Local, ipvs.Tunnel, ipvs.DirectRoute, ipvs.Bypass} {
		other := s
		if other.addServer(ipvs.DestinationExtended{Destination: ipvs.Destination{FwdMethod: method}}); other.natted {
			t.Errorf("a server of method %v: %+v", method, other)
		}
	}
}

// TestOfKubeProxy: which virtual servers kube-proxy can have made.
func TestOfKubeProxy(t *testing.T) {
	bound := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2"),
		netip.MustParseAddr("fd00:96::1")}
	ports := map[nodePort]bool{{ip.V4, unix.IPPROTO_TCP, 30080}: true}
	exclude := []netip.Prefix{netip.MustParsePrefix("10.96.0.2/32")}
	server := func(protocol uint8, to string) virtualServer {
		return virtualServer{Frontend: Frontend{protocol, netip.MustParseAddrPort(to)}, whole: true, natted: true}
	}
	with := func(change func(*virtualServer)) virtualServer {
		s := server(unix.IPPROTO_TCP, "10.96.0.1:443")
		change(&s)
		return s
	}
	got := map[string]bool{}
	for what, s := range map[string]virtualServer{
		"a Service's address":            server(unix.IPPROTO_TCP, "10.96.0.1:443"),
		"the same of IPv6":               server(unix.IPPROTO_UDP, "[fd00:96::1]:53"),
		"a node port":                    server(unix.IPPROTO_TCP, "192.0.2.1:30080"),
		"another protocol's port":        server(unix.IPPROTO_UDP, "192.0.2.1:30080"),
		"the other family's port":        server(unix.IPPROTO_TCP, "[2001:db8::1]:30080"),
		"an address that is not bound":   server(unix.IPPROTO_TCP, "192.0.2.1:80"),
		"an address that is excluded":    server(unix.IPPROTO_TCP, "10.96.0.2:443"),
		"a mark":                         with(func(s *virtualServer) { s.mark = 1 }),
		"a network":                      with(func(s *virtualServer) { s.whole = false }),
		"direct routing":                 with(func(s *virtualServer) { s.natted = false }),
		"a protocol that Services lack":  server(unix.IPPROTO_ESP, "10.96.0.1:0"),
		"a Service that has connections": with(func(s *virtualServer) { s.connections = 3 }),
	} {
		got[what] = s.ofKubeProxy(bound, ports, exclude)
	}
	want := map[string]bool{
		"a Service's address": true, "the same of IPv6": true, "a node port": true, "another protocol's port": false,
		"the other family's port":      false,
		"an address that is not bound": false, "an address that is excluded": false, "a mark": false, "a network": false,
		"direct routing":                false,
		"a protocol that Services lack": false, "a Service that has connections": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestKernelVirtualServers: what a kernel with IPVS tells of virtual servers in a network namespace, and that one of
// them goes.
func TestKernelVirtualServers(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "servers")
	if err := ns.Do(func() error { return tryVirtualServers(t) }); err != nil {
		t.Fatal(err)
	}
}

func tryVirtualServers(t *testing.T) error {
	c, err := dialIPVS()
	if err != nil {
		return err
	}
	if c == nil {
		t.Skip("this kernel has no IPVS; make test-kernels PACKAGES=node/otherproxy has")
	}
	defer c.close()
	if none, err := c.servers(); err != nil || len(none) > 0 {
		t.Errorf("at first: %v, %v", none, err)
	}
	all := func(bits int) netmask.Mask { return netmask.MaskFrom(bits, bits) }
	v4, v6 := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")
	for _, s := range []ipvs.Service{
		{Family: ipvs.INET, Protocol: ipvs.TCP, Address: v4, Port: 443, Netmask: all(32)},
		{Family: ipvs.INET, Protocol: ipvs.UDP, Address: v4, Port: 53, Netmask: all(32)},
		{Family: ipvs.INET6, Protocol: ipvs.TCP, Address: v6, Port: 443, Netmask: all(128)},
		{Family: ipvs.INET, FWMark: 7, Netmask: all(32)},
		{Family: ipvs.INET, Protocol: ipvs.TCP, Address: v4, Port: 80, Netmask: netmask.MaskFrom(24, 32),
			Flags: ipvs.ServicePersistent, Timeout: 60},
	} {
		s.Scheduler = "rr"
		if err := c.CreateService(s); err != nil {
			return fmt.Errorf("create %v: %w", s, err)
		}
		if s.Port != 443 {
			continue
		}
		server := ipvs.Destination{Family: s.Family, Address: s.Address.Next(), Port: 8443, Weight: 1}
		if s.Family == ipvs.INET6 {
			server.FwdMethod = ipvs.DirectRoute
		}
		if err := c.CreateDestination(s, server); err != nil {
			return fmt.Errorf("create a server of %v: %w", s, err)
		}
	}
	want := []string{
		"10.96.0.1:443/tcp, mark 0, whole true, natted true", "10.96.0.1:53/udp, mark 0, whole true, natted true",
		"10.96.0.1:80/tcp, mark 0, whole false, natted true", "[fd00:96::1]:443/tcp, mark 0, whole true, natted false",
		"invalid AddrPort/0, mark 7, whole false, natted true",
	}
	for len(want) > 1 {
		servers, err := c.servers()
		if err != nil {
			return err
		}
		var got []string
		for _, s := range servers {
			got = append(got, fmt.Sprintf("%v, mark %d, whole %t, natted %t", s, s.mark, s.whole, s.natted))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		i := slices.IndexFunc(servers, func(s virtualServer) bool { return strings.HasPrefix(want[0], s.String()+",") })
		if err := errors.Join(c.remove(servers[i]), c.remove(servers[i])); err != nil { // the second is no error
			return err
		}
		want = want[1:]
	}
	return nil
}

package otherproxy

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
)

// nest is a message of IPVS about a virtual server, or one of its servers, as the kernel sends it (ip_vs_genl_fill_service,
// ip_vs_genl_fill_dest).
func nest(t *testing.T, kind uint16, fill func(*netlink.AttributeEncoder)) netlink.Message {
	t.Helper()
	inner := netlink.NewAttributeEncoder()
	fill(inner)
	b, err := inner.Encode()
	if err != nil {
		t.Fatal(err)
	}
	outer := netlink.NewAttributeEncoder()
	outer.Bytes(kind, b) // the kernel sets no flag for the nest
	if b, err = outer.Encode(); err != nil {
		t.Fatal(err)
	}
	return netlink.Message{Data: append([]byte{1, ipvsVersion, 0, 0}, b...)}
}

func serverMessage(t *testing.T, family uint16, protocol uint8, to string, netmask uint32) netlink.Message {
	t.Helper()
	addr := netip.MustParseAddrPort(to)
	return nest(t, ipvsCmdService, func(ae *netlink.AttributeEncoder) {
		ae.Uint16(ipvsSvcFamily, family)
		ae.Uint16(ipvsSvcProtocol, uint16(protocol))
		ae.Bytes(ipvsSvcAddr, append(addr.Addr().AsSlice(), make([]byte, 16)...)[:16])
		ae.Bytes(ipvsSvcPort, binary.BigEndian.AppendUint16(nil, addr.Port()))
		ae.String(6, "rr")
		ae.Bytes(7, make([]byte, 8))
		ae.Uint32(8, 0)
		ae.Uint32(ipvsSvcNetmask, netmask)
	})
}

// TestVirtualServer: what the kernel says about virtual servers and their servers is read, and names them to the kernel again.
func TestVirtualServer(t *testing.T) {
	for to, m := range map[string]netlink.Message{
		"10.96.0.10:53/udp":     serverMessage(t, unix.AF_INET, unix.IPPROTO_UDP, "10.96.0.10:53", 1<<32-1),
		"[fd00:96::a]:443/tcp":  serverMessage(t, unix.AF_INET6, unix.IPPROTO_TCP, "[fd00:96::a]:443", 128),
		"192.0.2.1:30080/sctp":  serverMessage(t, unix.AF_INET, unix.IPPROTO_SCTP, "192.0.2.1:30080", 1<<32-1),
		"[fd00:96::b]:8080/tcp": serverMessage(t, unix.AF_INET6, unix.IPPROTO_TCP, "[fd00:96::b]:8080", 128),
	} {
		s, err := parseServer(m)
		if err != nil || s.String() != to || !s.whole || s.mark != 0 || !s.natted {
			t.Errorf("%s: %+v, %v", to, s, err)
		}
		again, err := parseServer(netlink.Message{Data: append([]byte{1, 1, 0, 0}, withNetmask(t, s)...)})
		if err != nil || again.Frontend != s.Frontend {
			t.Errorf("%s named to the kernel: %+v, %v", to, again, err)
		}
	}
	marked, err := parseServer(nest(t, ipvsCmdService, func(ae *netlink.AttributeEncoder) {
		ae.Uint16(ipvsSvcFamily, unix.AF_INET)
		ae.Uint32(ipvsSvcMark, 7)
	}))
	if err != nil || marked.mark != 7 {
		t.Errorf("of a mark: %+v, %v", marked, err)
	}
	s, err := parseServer(serverMessage(t, unix.AF_INET, unix.IPPROTO_TCP, "10.96.0.1:443", 0xffffff))
	if err != nil || s.whole {
		t.Errorf("of a network: %+v, %v", s, err)
	}
	dest := func(forward, active, inactive uint32) netlink.Message {
		return nest(t, ipvsCmdDest, func(ae *netlink.AttributeEncoder) {
			ae.Bytes(1, make([]byte, 16))
			ae.Bytes(2, []byte{0x1f, 0x90})
			ae.Uint32(ipvsDestForward, forward)
			ae.Uint32(4, 1)
			ae.Uint32(ipvsDestActive, active)
			ae.Uint32(ipvsDestInactive, inactive)
			ae.Uint32(9, 100) // what persistence remembers is no connection
		})
	}
	for i, m := range []netlink.Message{dest(0, 2, 3), dest(0, 0, 0), dest(0, 4, 0)} {
		if err := s.addServer(m); err != nil || !s.natted {
			t.Errorf("server %d: %+v, %v", i, s, err)
		}
	}
	if s.connections != 9 {
		t.Errorf("%d connections, want 9", s.connections)
	}
	if err := s.addServer(dest(3, 0, 0)); err != nil || s.natted {
		t.Errorf("a server of direct routing: %+v, %v", s, err)
	}
}

// withNetmask is what names the virtual server, with the netmask that only the kernel sends.
func withNetmask(t *testing.T, s virtualServer) []byte {
	t.Helper()
	b := s.attributes()
	mask := uint32(1<<32 - 1)
	if s.Addr.Addr().Is6() {
		mask = 128
	}
	b = binary.NativeEndian.AppendUint16(b, 8)
	b = binary.NativeEndian.AppendUint16(b, ipvsSvcNetmask)
	b = binary.NativeEndian.AppendUint32(b, mask)
	binary.NativeEndian.PutUint16(b, uint16(len(b))) // the nest is all there is
	return b
}

// TestOfKubeProxy: which virtual servers kube-proxy can have made.
func TestOfKubeProxy(t *testing.T) {
	bound := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2"), netip.MustParseAddr("fd00:96::1")}
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
		"a Service's address": true, "the same of IPv6": true, "a node port": true, "another protocol's port": false, "the other family's port": false,
		"an address that is not bound": false, "an address that is excluded": false, "a mark": false, "a network": false, "direct routing": false,
		"a protocol that Services lack": false, "a Service that has connections": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// FuzzVirtualServer: whatever a message holds, reading it ends without a panic.
func FuzzVirtualServer(f *testing.F) {
	f.Add([]byte{1, 1, 0, 0, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseServer(netlink.Message{Data: data})
		if err != nil {
			return
		}
		_ = s.addServer(netlink.Message{Data: data})
		if s.mark == 0 {
			s.attributes()
		}
	})
}

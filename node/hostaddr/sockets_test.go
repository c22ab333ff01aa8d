package hostaddr_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/node/hostaddr"
	"nftproxy/test/lib/testnet"
)

// TestSockets: the sockets of a network namespace are visited with their addresses, of both families. Those of TCP
// that wait for connections are told from others, and a list that is not there has none.
func TestSockets(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "sockets")
	for _, address := range []string{"127.0.0.1:1234", "[::1]:2345"} {
		l, err := ns.Listen(t.Context(), "tcp", address)
		must(t, err)
		defer l.Close()
	}
	for _, address := range []string{"127.0.0.2:53", "[::1]:54"} {
		c, err := ns.ListenPacket(t.Context(), "udp", address)
		must(t, err)
		defer c.Close()
	}
	got := map[string]bool{}
	must(t, ns.Do(func() error {
		return hostaddr.Sockets("/proc", []string{"tcp", "tcp6", "udp", "udp6", "none"},
			func(local netip.AddrPort, listens bool) { got[local.String()] = listens })
	}))
	want := map[string]bool{"127.0.0.1:1234": true, "[::1]:2345": true, "127.0.0.2:53": false, "[::1]:54": false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

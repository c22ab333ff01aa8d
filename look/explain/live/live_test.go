package live_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/test/lib/testnet"
)

// TestAsk: the client's interface and kind come from routes, and what was not asked for is said.
func TestAsk(t *testing.T) {
	topology := testnet.NewForTest(t, testnet.Config{})
	pod, err := topology.AddPod("pod")
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Node.Do(func() error {
		node, err := live.Look(t.Context(), "nftproxy")
		if err != nil {
			return err
		}
		defer node.Close()
		to := explain.Destination{To: netip.MustParseAddrPort("198.51.100.1:80"), Protocol: 6}
		for _, c := range []struct {
			from, src, input, assumed string
			fromNode                  bool
		}{
			{"", "203.0.113.1", "eth0", "the client is outside of the cluster, with the address 203.0.113.1", false},
			{"node", "192.168.100.1", "", "the node sends from 192.168.100.1", true},
			{"192.168.100.1", "192.168.100.1", "", "", true},
			{pod.Addrs.V4().String(), pod.Addrs.V4().String(), "veth0", "the packet comes in by veth0", false},
			{pod.Addrs.V4().String() + "@eth0", pod.Addrs.V4().String(), "eth0", "", false},
		} {
			from, err := explain.ParseOrigin(c.from)
			if err != nil {
				return err
			}
			q, err := node.Ask(from, to)
			if err != nil {
				return err
			}
			if p := q.Packet; p.Src.Addr().String() != c.src || p.Input != c.input || p.FromNode != c.fromNode ||
				!strings.Contains(strings.Join(q.Assumed, "\n"), c.assumed) || c.assumed == "" && len(q.Assumed) > 0 {
				t.Errorf("from %q: %+v", c.from, q)
			}
		}
		if _, err := node.Ask(explain.Origin{Addr: netip.MustParseAddr("fd00::1")}, to); !errors.Is(err,
			explain.ErrQuestion) {
			t.Errorf("from the other family: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

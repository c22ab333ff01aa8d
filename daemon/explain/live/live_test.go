package live_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"nftproxy/daemon/explain/live"
	"nftproxy/test/testnet"
)

func TestParseDestination(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.0.10:53": "10.96.0.10:53/6", "10.96.0.10:53/udp": "10.96.0.10:53/17", "[fd00:96::a]:53/SCTP": "[fd00:96::a]:53/132",
		"10.96.0.10/icmp": "10.96.0.10:0/1", "fd00::1/icmp": "[fd00::1]:0/58", "[::ffff:10.0.0.1]:80": "10.0.0.1:80/6",
	} {
		to, protocol, err := live.ParseDestination(text)
		if got := fmt.Sprintf("%s/%d", to, protocol); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10.96.0.10", "10.96.0.10:0", "10.96.0.10:70000", "host:80", "10.96.0.10:80/http", "10.96.0.10:80/icmp", "[fe80::1%eth0]:80", "10.96.0.10:80/"} {
		if _, _, err := live.ParseDestination(text); !errors.Is(err, live.ErrQuestion) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestAsk: the client's interface and kind come from routes, and what was not asked for is said.
func TestAsk(t *testing.T) {
	topology := testnet.NewForTest(t, testnet.Config{})
	pod, err := topology.AddPod("pod")
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Node.Do(func() error {
		node, err := live.Look("nftproxy")
		if err != nil {
			return err
		}
		defer node.Close()
		to := netip.MustParseAddrPort("198.51.100.1:80")
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
			q, err := node.Ask(c.from, to, 6)
			if err != nil {
				return err
			}
			if p := q.Packet; p.Src.Addr().String() != c.src || p.Input != c.input || p.FromNode != c.fromNode || !strings.Contains(strings.Join(q.Assumed, "\n"), c.assumed) || c.assumed == "" && len(q.Assumed) > 0 {
				t.Errorf("from %q: %+v", c.from, q)
			}
		}
		for _, from := range []string{"somewhere", "@eth0", "node@eth0", "fd00::1", "fe80::1%eth0"} {
			if _, err := node.Ask(from, to, 6); !errors.Is(err, live.ErrQuestion) {
				t.Errorf("from %q: %v", from, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

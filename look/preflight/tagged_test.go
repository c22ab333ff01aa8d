package preflight

import (
	"strings"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/nft"
	"nftproxy/node/forwarding"
)

// TestTaggedPackets: a bridge is named that sends pods packets with a VLAN's tag which rules do not see. The settings
// are made up: a kernel may lack VLANs of bridges (CONFIG_BRIDGE_VLAN_FILTERING).
func TestTaggedPackets(t *testing.T) {
	none := func() ([]*nft.Contents, error) { return nil, nil }
	both := ip.PerFamily[bool]{true, true}
	for name, c := range map[string]struct {
		tagged, vlan bool
		calls        ip.PerFamily[bool]
		want         Level
		says         string
	}{
		"untagged":       {false, false, both, Green, "is 0; no port"},
		"tagged":         {true, false, both, Yellow, "ports of cni0 send packets"},
		"tagged of IPv6": {true, false, ip.PerFamily[bool]{false, true}, Yellow, "ports of cni0 send packets"},
		"all are seen":   {true, true, both, Green, "is 1"},
		"none is seen":   {true, false, ip.PerFamily[bool]{}, Green, "is 0"}, // told of with the setting for all packets
	} {
		s := &forwarding.Settings{
			Interfaces: []forwarding.Interface{
				{Name: "cni0", Kind: "bridge", Up: true, Addressed: both},
				{Name: "veth1", Kind: "veth", Master: "cni0", Tagged: c.tagged}, {Name: "veth2", Kind: "veth", Master: "cni0"},
			},
			Bridged: &forwarding.Bridged{Calls: c.calls, VLAN: c.vlan},
		}
		for _, f := range bridged(s, none) {
			if f.Probe == "sysctl: net.bridge.bridge-nf-filter-vlan-tagged" &&
				(f.Level != c.want || !strings.Contains(f.Found, c.says)) {
				t.Errorf("%s: %+v, want %s and %q", name, f, c.want, c.says)
			}
		}
		if n := len(bridged(s, none)); n != 4 {
			t.Errorf("%s: %d findings, want 4", name, n)
		}
	}
}

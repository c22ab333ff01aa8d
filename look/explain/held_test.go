package explain_test

import (
	"strings"
	"testing"

	"nftproxy/look/explain"
	"nftproxy/nft/ruleset"
)

// TestHeld: the account of a packet that is held says that it waits for an endpoint, for how long, and who else does.
func TestHeld(t *testing.T) {
	w := worldOf(t, `node node-1
  address 192.168.0.2
  host-address 192.168.0.2
service ns/asleep created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  option no-endpoints hold=30s
  option port-ranges 5000-5009/UDP
  port http tcp 80 node-port 30080
  port - udp ranges=5000-5009
`)
	var asked []ruleset.Place
	w.facts.Held = func(at ruleset.Place) string {
		asked = append(asked, at)
		return "nobody else waits"
	}
	sets := []string{"services", "node-ports", "range-services"}
	for i, to := range []string{"10.96.0.2:80/tcp", "192.168.0.2:30080/tcp", "10.96.0.2:5001/udp"} {
		e := w.ask("veth0 10.244.0.9:1000 -> " + to)
		text := strings.Join(e.Causes, "\n")
		if e.Outcome != explain.Dropped || !strings.Contains(text, "for 30s the client's kernel sends again") ||
			!strings.Contains(text, "now nobody else waits") || !strings.Contains(text, "no endpoint") {
			t.Errorf("%s: %s, since %s", to, e.Outcome, text)
		}
		if len(asked) != i+1 || asked[i].Set != sets[i] {
			t.Errorf("%s: asks about %+v", to, asked)
		}
		if len(e.Remedies) == 0 {
			t.Errorf("%s: no remedy", to)
		}
	}
}

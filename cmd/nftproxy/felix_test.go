package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"nftproxy/daemon/takeover"
)

// TestFelix: check, proxies and cleanup --kube-proxy say which data plane Calico's Felix has, and which
// it has without kube-proxy's nftables tables, by its environment where that tells.
func TestFelix(t *testing.T) {
	for environment, c := range map[string]struct{ level, after string }{
		"":                            {"yellow", "unknown"},
		"FELIX_NFTABLESMODE=Auto":     {"yellow", "iptables"},
		"FELIX_NFTABLESMODE=Enabled":  {"green", "nftables"},
		"FELIX_NFTABLESMODE=Disabled": {"green", "iptables"}, // It was restarted just now, and changes in any case.
	} {
		t.Run(environment, func(t *testing.T) {
			w := newFormerWorld(t)
			w.load("table ip kube-proxy { chain a { }\n}\n table ip calico { chain filter-cali-FORWARD { }\n}\n")
			process := fmt.Sprintf("Felix (PID %d) uses nftables", sleeper(t, w.ns, "calico-felix", environment))
			out, _, _ := runIn(t, w.ns, "check")
			if want := c.level; !strings.Contains(strings.Join(strings.Fields(out), " "), want+" calico: "+process) {
				t.Errorf("check:\n%s\nwant %s", out, want)
			}
			if out := w.outputOf("proxies"); !strings.Contains(out, "Calico: "+process) {
				t.Errorf("proxies:\n%s", out)
			}
			var p takeover.Proxies
			if err := json.Unmarshal([]byte(w.outputOf("proxies", "-o", "json")), &p); err != nil || p.Felix == nil ||
				p.Felix.After != c.after || strings.Join(p.Felix.DataPlanes, " ") != "nftables" {
				t.Errorf("proxies: %+v, %v", p.Felix, err)
			}
			cleanup := []string{"cleanup", "--kube-proxy", "--force"}
			if c.level == "yellow" {
				_, notes, code := runIn(t, w.ns, cleanup...)
				if code != 3 || !strings.Contains(notes, "ip kube-proxy keeps an empty chain: another program may go by the "+
					"table: "+process) {
					t.Errorf("cleanup: exit status %d: %s", code, notes)
				}
				if out := w.outputOf("proxies"); !strings.Contains(out, "ip kube-proxy (nftables, an empty chain)") {
					t.Errorf("proxies after cleanup:\n%s", out)
				}
				cleanup = append(cleanup, "--accept-calico")
			}
			if _, notes, code := runIn(t, w.ns, cleanup...); code != 0 {
				t.Errorf("cleanup: exit status %d: %s", code, notes)
			}
			w.awaitNone("ip kube-proxy")
		})
	}
}

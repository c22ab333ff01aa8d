package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"nftproxy/conntrack"
	"nftproxy/nft/invalidtable"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestInvalidDropper: the rule's counter is kube-proxy's metric, also after a restart. While the kernel is liberal
// there is no rule.
func TestInvalidDropper(t *testing.T) {
	ns, cmd, settings := testnet.NamespaceForTest(t, "invalid"), netfilter.NFTForTest(t), t.TempDir()
	if _, err := invalidtable.Keep(ruleset.DefaultTable, ns.Fd()); err != nil {
		t.Fatal(err)
	}
	list := func() string {
		text, err := cmd.Run(ns, "", "list", "ruleset")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if err := cmd.Load(ns, "flush ruleset\n"+strings.Replace(list(), "packets 0", "packets 7", 1)); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	task := invalidDropper(Config{
		Rules: ruleset.Config{Table: ruleset.DefaultTable}, SysctlFiles: conntrack.Files{Settings: settings},
		DropInvalid: true, Log: slog.New(slog.DiscardHandler),
	}, registry)
	for _, c := range []struct {
		liberal string
		dropped int
		rule    bool
	}{{"", 7, true}, {"0", 7, true}, {"1", 0, false}, {"0", 0, true}} {
		if c.liberal != "" {
			if err := os.WriteFile(filepath.Join(settings, "nf_conntrack_tcp_be_liberal"), []byte(c.liberal+"\n"),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // The task looks once.
		if err := ns.Do(func() error { return task(ctx) }); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`
# HELP kubeproxy_iptables_ct_state_invalid_dropped_packets_total [ALPHA] packets dropped by iptables to work around conntrack problems
# TYPE kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter
kubeproxy_iptables_ct_state_invalid_dropped_packets_total %d
`, c.dropped)
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
			t.Errorf("nf_conntrack_tcp_be_liberal %q: %v", c.liberal, err)
		}
		if has := list() != ""; has != c.rule {
			t.Errorf("nf_conntrack_tcp_be_liberal %q: rule %t, want %t", c.liberal, has, c.rule)
		}
	}
}

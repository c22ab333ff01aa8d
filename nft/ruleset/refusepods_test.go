package ruleset_test

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// TestRefusalAfterChanges: whatever changes of node and Services, the refusal of pods of other nodes is what it is from
// scratch.
func TestRefusalAfterChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	snapshot := func() service.Snapshot {
		text := "node n1\n  address 192.168.0.2\n  host-address 192.168.0.2\n" + pick("", "  host-address 10.1.0.1\n") +
			pick("", "  pod-cidr 10.0.0.0/24\n", "  pod-cidr 10.0.0.0/24\n  pod-cidr 10.0.9.0/24\n",
				"  pod-cidr 10.0.0.0/16\n") + pick("", "  address 192.168.0.3\n")
		if rng.IntN(4) > 0 {
			text += "service default/a created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.1\n  external-policy " + pick("Local",
				"Cluster") + "\n" + pick("", "  option external-failover cluster\n", "  option external-failover pass\n")
			ranges := pick("", "  option port-ranges 8000-9000/TCP\n")
			text += ranges + "  port x tcp 80 node-port 30080\n" + pick("", "    endpoint 10.0.0.1:80 n1 ready serving\n",
				"    endpoint 10.0.1.1:80 n2 ready serving\n")
			if ranges != "" {
				text += "  port ranges tcp ranges=8000-9000\n    endpoint 10.0.1.1:0 n2 ready serving\n"
			}
		}
		s, err := gen.ReadSnapshot(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	refusals := 0
	for _, addresses := range []service.NodePortAddresses{{}, mustAddresses(t, "192.168.0.0/24"),
		mustAddresses(t, "10.1.0.0/16")} {
		for _, uncounted := range []bool{false, true} {
			cfg := ruleset.Config{Table: ruleset.DefaultTable, Uncounted: uncounted}
			cfg.NodePortAddresses = addresses
			cfg.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
			c := ruleset.NewCompiler(cfg)
			for step := range 100 {
				s := snapshot()
				got, want := c.Compile(s).String(), ruleset.Compile(cfg, s).String()
				if got != want {
					t.Fatalf("step %d (-fresh +memoised):\n%s", step, cmp.Diff(want, got))
				}
				if strings.Contains(got, "refuse pods of other nodes") {
					refusals++
				}
			}
		}
	}
	if refusals < 10 {
		t.Errorf("%d programs refuse: the cases are too narrow", refusals)
	}
}

func mustAddresses(t *testing.T, text string) service.NodePortAddresses {
	n, err := service.ParseNodePortAddresses([]string{text})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

package ruleset_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// sharedClusterIP is three Services with one cluster IP. The oldest one has it. The
// second one has a port of its own there, the third one has only a node port left.
const sharedClusterIP = `node node-0
service a/oldest created 2026-01-01T00:00:00Z
 cluster-ip 10.96.0.1
 port http tcp 80
  endpoint 10.0.0.1:8080 node-1 ready serving
service a/second created 2026-01-02T00:00:00Z
 cluster-ip 10.96.0.1
 external-policy Local
 port http tcp 80 node-port 30080
  endpoint 10.0.0.2:8080 node-1 ready serving
 port admin tcp 81
  endpoint 10.0.0.2:8081 node-1 ready serving
service a/third created 2026-01-03T00:00:00Z
 cluster-ip 10.96.0.1
 port http tcp 80 node-port 30090
  endpoint 10.0.0.3:8080 node-1 ready serving
`

func compileShared(t *testing.T) (service.Snapshot, *nft.Program) {
	t.Helper()
	s, err := gen.ReadSnapshot(strings.NewReader(sharedClusterIP))
	if err != nil {
		t.Fatal(err)
	}
	return s, ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, s)
}

// TestReadBackSharedClusterIP: the comments tell which Services have a cluster IP in
// common. A Service that has lost all of its ports there gets an address that no
// packet has.
func TestReadBackSharedClusterIP(t *testing.T) {
	s, p := compileShared(t)
	back := ruleset.ReadBack(p.Model(), ruleset.DefaultTable, s.Node)
	clusterIPs := map[service.Name][]netip.Addr{}
	for name, svc := range back.Services.All() {
		clusterIPs[name] = svc.ClusterIPs
		if len(svc.ExternalIPs) > 0 {
			t.Errorf("%s has external IPs %v", name, svc.ExternalIPs)
		}
	}
	shared := []netip.Addr{netip.MustParseAddr("10.96.0.1")}
	want := map[service.Name][]netip.Addr{"a/oldest": shared, "a/second": shared,
		"a/third": {netip.MustParseAddr("0.0.0.1")}}
	if diff := cmp.Diff(want, clusterIPs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("cluster IPs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(reachable(s), reachable(back)); diff != "" {
		t.Errorf("frontends and endpoints (-want +got):\n%s", diff)
	}
}

// TestUpgradeSharedClusterIP: earlier versions wrote no comment "cluster IP also of".
// Their tables serve the same when read back, and get the comment in one transaction.
func TestUpgradeSharedClusterIP(t *testing.T) {
	s, p := compileShared(t)
	m := p.Model()
	elements := m.Table(p.IPv4.ID()).Sets["services"].Elements
	changed := 0
	for key, e := range elements {
		if text, found := strings.CutPrefix(e.Comment, "cluster IP also of "); found {
			e.Comment = text
			elements[key] = e
			changed++
		}
	}
	if changed != 1 {
		t.Fatalf("%d elements have the comment", changed)
	}
	back := ruleset.ReadBack(m, ruleset.DefaultTable, s.Node)
	if diff := cmp.Diff(targetsOf(reachable(s)), targetsOf(reachable(back))); diff != "" {
		t.Errorf("frontends (-want +got):\n%s", diff)
	}
	batch, _ := nft.Adopt(m, p).Plan(p, time.Time{})
	want := `delete element ip nftproxy services {
	10.96.0.1 . tcp . 81,
}
add element ip nftproxy services {
	10.96.0.1 . tcp . 81 comment "cluster IP also of a/second:admin" : goto endpoints-1,
}
`
	if diff := cmp.Diff(want, batch.String()); diff != "" || len(batch.Transactions()) != 1 {
		t.Errorf("%d transactions (-want +got):\n%s", len(batch.Transactions()), diff)
	}
}

// targetsOf leaves the lines without endpoints.
func targetsOf(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, " list ") })
}

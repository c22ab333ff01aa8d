package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// TestKernelQuarantine: a real kernel refuses two Services of three. The reasons name
// them, and everything else goes in. Corrected ones go in later.
func TestKernelQuarantine(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "quarantine")
	conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: ns.Fd()}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })

	snapshot, err := gen.ReadSnapshot(strings.NewReader(`
node n
service a/one created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  port - tcp 80
    endpoint 10.244.0.1:80 n ready serving
service a/two created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  port - tcp 80
service a/three created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.3
  port - tcp 80
`))
	if err != nil {
		t.Fatal(err)
	}
	cfg := ruleset.Config{Table: ruleset.DefaultTable,
		Settings: service.Settings{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
	good := ruleset.Compile(cfg, snapshot)
	bad := &nft.Program{IPv4: good.IPv4.Clone(), IPv6: good.IPv6}
	for _, name := range []string{"a/one", "a/three"} {
		part := *good.IPv4.Parts.At(name)
		part.Elements = slices.Clone(part.Elements)
		part.Elements[0].Key += "\x00\x00\x00\x00" // longer than the set's key
		bad.IPv4.Parts = bad.IPv4.Parts.Set(name, &part)
	}

	a := newApplier(conn, func() float64 { return 0 })
	s := Sync{Program: bad}
	if err := a.applyProgram(&s); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/one", "a/three"} {
		if s.Quarantined[name] == nil || !strings.Contains(s.Quarantined[name].Error(), name) {
			t.Errorf("%s: quarantined for %v, which does not name it", name, s.Quarantined[name])
		}
	}
	rest := &nft.Program{IPv4: bad.IPv4.Clone(), IPv6: bad.IPv6}
	rest.IPv4.Parts = rest.IPv4.Parts.Delete("a/one").Delete("a/three")
	expectKernel(t, conn, rest)

	s = Sync{Program: good}
	if err := a.applyProgram(&s); err != nil || len(s.Quarantined) > 0 {
		t.Fatalf("the corrected program: %v, quarantined %v", err, s.Quarantined)
	}
	expectKernel(t, conn, good)
}

func expectKernel(t *testing.T, conn *kernel.Conn, want *nft.Program) {
	t.Helper()
	m, err := conn.Read(want)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.String(); got != want.String() {
		t.Errorf("the kernel has\n%s\nwant\n%s", got, want)
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/look/verify"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// verified is a network namespace in which verify runs.
type verified struct {
	*testing.T
	ns    *testnet.Namespace
	cmd   netfilter.NFT
	flags []string
}

func newVerified(t *testing.T, manifests string) *verified {
	return &verified{t, testnet.NamespaceForTest(t, "verify"), netfilter.NFTForTest(t), []string{
		"--nftproxy-manifests", manifests, "--cluster-cidr", "10.244.0.0/16,fd00:244::/56",
	}}
}

// verify runs nftproxy verify as it is.
func (v *verified) verify(args ...string) (stdout, stderr string, code int) {
	v.Helper()
	cmd := exec.CommandContext(v.Context(), "nftproxy", append([]string{"verify"}, args...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "KUBERNETES_") })
	return runCommand(v.T, v.ns, cmd)
}

// want runs verify with the flags of run, and checks its exit code and the lines about
// differences.
func (v *verified) want(what string, code int, lines ...string) string {
	v.Helper()
	out, errs, got := v.verify(append(v.flags, "--hostname-override", "node-1")...)
	var said []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "note: ") || strings.HasPrefix(line, "same: ") {
			continue
		}
		said = append(said, strings.TrimRight(line, "\n"))
	}
	if diff := cmp.Diff(lines, said); got != code || diff != "" {
		v.Errorf("%s: exit code %d, want %d (-want +got):\n%s%s", what, got, code, diff, errs)
	}
	return out
}

// TestVerify: verify finds nothing while all is well, and names what is changed behind the
// proxy's back. It changes nothing.
func TestVerify(t *testing.T) {
	v := newVerified(t, manifest(t, webManifest("", "10.244.0.1", "10.244.0.2", "fd00:244::1")))
	if _, errs, code := v.verify(v.flags...); code != int(statusDifferent) ||
		!strings.Contains(errs, "1 service, from the manifests") {
		t.Errorf("without tables: exit code %d, said %s", code, errs)
	}
	v.want("without tables", 1, "of no single Service",
		"  missing  ip table nftproxy",
		"  missing  ip6 table nftproxy",
		"different: 2 missing, 0 extra, 0 changed")
	r := start(t, v.ns, v.flags...)
	r.awaitSync()
	v.want("of a running proxy", 0)
	like, _, code := v.verify("--like", fmt.Sprint(r.cmd.Process.Pid))
	if code != 0 || !strings.HasPrefix(like, "same: ") {
		t.Errorf("like the running proxy: exit code %d, said %s", code, like)
	}
	other := slices.Clone(v.flags)
	other[3] = "10.245.0.0/16"
	out, _, code := v.verify(append(other, "--hostname-override", "node-1")...)
	for _, says := range []string{
		"ip chain endpoints-2: ip saddr != 10.245.0.0/16", "has run other flags", "nftproxy runs here",
	} {
		if code != 1 || !strings.Contains(out, says) {
			t.Errorf("other flags: exit code %d, %q is not in\n%s", code, says, out)
		}
	}
	r.end()
	v.want("after the proxy's end", 0)

	before, err := v.cmd.Ruleset(v.ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		"delete element ip nftproxy endpoints { 10.96.0.10 . tcp . 80 . 1 }",
		"add element ip6 nftproxy cluster-ips { fd00:96::b comment \"default/other\" }",
		"delete element ip nftproxy services { 10.96.0.10 . tcp . 80 }",
		"add element ip nftproxy services { 10.96.0.10 . tcp . 80 comment \"default/web:80\" : goto refuse }",
		"insert rule ip nftproxy prerouting ip saddr 192.0.2.1 accept",
		"add rule ip6 nftproxy dispatch meta skuid 0 counter drop",
		"add chain ip nftproxy idle",
	} {
		if err := v.cmd.Load(v.ns, script); err != nil {
			t.Fatal(err)
		}
	}
	out = v.want("after edits", 1, "of no single Service",
		"  extra    ip chain prerouting: ip saddr 192.0.2.1/32 accept",
		"  extra    ip6 chain dispatch: (more, which nftproxy does not write)",
		"Service default/other",
		`  extra    ip6 cluster-ips: fd00:96::b comment "default/other"`,
		"Service default/web",
		"  missing  ip endpoints: 10.96.0.10 . tcp . 80 . 1 : 10.244.0.2 . 8080",
		`  changed  ip services: 10.96.0.10 . tcp . 80 comment "default/web:80" : goto refuse`,
		`           it should be: 10.96.0.10 . tcp . 80 comment "default/web:80" : goto endpoints-2`,
		"different: 1 missing, 3 extra, 1 changed")
	if !strings.Contains(out, "no running nftproxy keeps the tables") {
		t.Errorf("nothing says that no proxy runs:\n%s", out)
	}
	v.ofServices()
	v.bounded()
	for _, script := range []string{"delete chain ip nftproxy idle"} {
		if err := v.cmd.Load(v.ns, script); err != nil {
			t.Fatal(err)
		}
	}
	firstSync(t, v.ns, v.flags...)
	v.want("after a repair", 0)
	after, err := v.cmd.Ruleset(v.ns)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sortedLines(before), sortedLines(after)); diff != "" {
		t.Errorf("the tables before the edits and after the repair (-before +after):\n%s", diff)
	}
	v.invalid()
}

// invalid checks the table that drops invalid packets, where nothing else differs.
func (v *verified) invalid() {
	v.Helper()
	const table = "table nftproxy-invalid, which drops packets that belong to no connection"
	without := v.flags
	v.flags = append(slices.Clone(without), "--"+dropInvalidFlag)
	v.want("the flag is new", 1, "of no single Service", "  missing  inet "+table,
		"different: 1 missing, 0 extra, 0 changed")
	firstSync(v.T, v.ns, v.flags...)
	v.want("a proxy has run with the flag", 0)
	if err := v.cmd.Load(v.ns, "flush chain inet nftproxy-invalid forward"); err != nil {
		v.Fatal(err)
	}
	v.want("without its rule", 1, "of no single Service",
		"  changed  inet table nftproxy-invalid, with other chains or rules", "           it should be: "+table,
		"different: 0 missing, 0 extra, 1 changed")
	v.flags = without
	v.want("without the flag", 1, "of no single Service", "  extra    inet "+table,
		"different: 0 missing, 1 extra, 0 changed")
}

// bounded checks --limit and the forms for programs, where 5 objects differ.
func (v *verified) bounded() {
	v.Helper()
	flags := append(slices.Clone(v.flags), "--hostname-override", "node-1")
	out, _, code := v.verify(append(flags, "--limit", "1")...)
	if code != 1 || strings.Count(out, "  extra ")+strings.Count(out, "  missing ")+strings.Count(out,
		"  changed ") != 1 || !strings.Contains(out, "... and 4 more\n") {
		v.Errorf("with --limit 1: exit code %d, said\n%s", code, out)
	}
	var fromJSON, fromYAML verify.Report
	out, _, _ = v.verify(append(flags, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &fromJSON); err != nil {
		v.Fatalf("%v:\n%s", err, out)
	}
	out, _, _ = v.verify(append(flags, "-o", "yaml")...)
	if err := yaml.UnmarshalStrict([]byte(out), &fromYAML); err != nil {
		v.Fatalf("%v:\n%s", err, out)
	}
	if diff := cmp.Diff(fromJSON, fromYAML); diff != "" {
		v.Errorf("JSON and YAML differ:\n%s", diff)
	}
	want := verify.Report{Source: "manifests", Services: 1, Missing: 1, Extra: 3, Changed: 1,
		Idle: []string{"ip chain idle"}}
	got := fromJSON
	got.Differences, got.Notes = nil, nil
	if diff := cmp.Diff(want, got); diff != "" {
		v.Errorf("JSON (-want +got):\n%s", diff)
	}
	first := verify.Difference{Family: "ip", Kind: verify.Rule, Name: "prerouting", Is: verify.Extra,
		Have: "ip saddr 192.0.2.1/32 accept"}
	if len(fromJSON.Differences) != 5 || fromJSON.Differences[0] != first {
		v.Errorf("differences: %+v", fromJSON.Differences)
	}
}

// sortedLines is a listing without counters and handles in an order of its own: nft lists the
// elements of a set in the kernel's order.
func sortedLines(listing string) []string {
	words := strings.FieldsFunc(listing, func(r rune) bool { return r == '\n' || r == ',' })
	for i := range words {
		words[i] = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(words[i]),
			"elements = {")), "}"))
	}
	slices.Sort(words)
	return words
}

// ofServices: the differences of other Services do not count, and those of what Services share do.
func (v *verified) ofServices() {
	v.Helper()
	for name, want := range map[string]string{"web": "different: 1 missing, 2 extra, 1 changed\n",
		"default/other": "different: 0 missing, 3 extra, 0 changed\n"} {
		out, errs, code := v.verify(append(v.flags, "--hostname-override", "node-1", name)...)
		if code != 1 || !strings.HasSuffix(out, want) || strings.Count(out, "\nService ") != 1 {
			v.Errorf("verify %s: exit code %d: %s\n%s, want %s", name, code, errs, out, want)
		}
	}
}

// TestVerifyInFlight: what the proxy writes between the two looks is no difference, and the
// report says so.
func TestVerifyInFlight(t *testing.T) {
	v := newVerified(t, manifest(t, webManifest("", "10.244.0.1")))
	c, err := commandLine(append(slices.Clone(v.flags), "--hostname-override=node-1")).config(nil)
	if err != nil {
		t.Fatal(err)
	}
	var report verify.Report
	looks := 0
	if err := v.ns.Do(func() error {
		var err error
		report, err = verify.Node(t.Context(), sourceOf(c), inspect.Selection{}, false, 100, t.Output(),
			func(context.Context) error {
				looks++
				firstSync(t, v.ns, v.flags...)
				return nil
			})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if looks != 1 || !report.Same || report.InFlight != 2 || !strings.Contains(fmt.Sprint(report.Notes),
		"on their way to the kernel") {
		t.Errorf("after %d further looks: %+v", looks, report)
	}
}

// TestVerifyCannotTell: where the objects or the tables cannot be read, the exit code says so.
func TestVerifyCannotTell(t *testing.T) {
	v := newVerified(t, manifest(t, webManifest("")))
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "give the flags of run"},
		{[]string{"--nftproxy-manifests", "no/such/file"}, "--nftproxy-manifests: \"no/such/file\": no such file"},
		{[]string{"--kubeconfig", broken}, "cannot tell"},
		{[]string{"--like", fmt.Sprint(os.Getpid())}, "is no nftproxy run"},
		{[]string{"--like", fmt.Sprint(os.Getpid()), "--cluster-cidr", "10.0.0.0/8"}, "cannot be combined"},
		{append(v.flags, "-o", "xml"), "want text, wide, json or yaml"},
		{append(v.flags, "--limit", "-1"), "--limit: -1 is negative"},
		{append(v.flags, "--masquerade-bit"), "unknown flag"},
	} {
		if out, errs, code := v.verify(c.args...); code != int(statusUnknown) || out != "" ||
			!strings.Contains(errs, c.says) {
			t.Errorf("verify %q: exit code %d, said\n%s%s", c.args, code, out, errs)
		}
	}
}

// TestFlowsByTable: the kernel's tables and the objects give the same judgment of flows. A
// flow that the present rules make is stale by neither. A flow that is stale by the objects
// is stale by the tables, and belongs to the same Service.
func TestFlowsByTable(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 7))
		cfg, node, services, builder := gen.Cluster(rng)
		builder.SetServiceCIDRs(gen.ServiceCIDRs(rng))
		snapshot := builder.Snapshot()
		kernel := ruleset.Compile(cfg, snapshot).Model()

		objects := conntrack.NewIndex(conntrack.Options{NodePortAddresses: cfg.NodePortAddresses, Pod: cfg.Pod})
		objects.Update(snapshot)
		back := ruleset.ReadBackConfig(kernel, cfg.Table)
		table := conntrack.NewIndex(conntrack.Options{NodePortAddresses: back.NodePortAddresses, Pod: back.Pod})
		// The command knows no Node object either.
		table.Update(ruleset.ReadBack(kernel, cfg.Table, &service.Node{Name: node.Name, HostAddresses: node.HostAddresses}))

		// Without that, the table does not tell endpoints that no longer serve from other programs' targets.
		objects.Presume()
		table.Presume()

		local := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(node.HostAddresses, a) }
		for range 200 {
			p := gen.Packet(rng, node, services)
			if p.Dst.Addr().IsLoopback() && !p.FromNode {
				continue // The kernel takes no such packet from a link.
			}
			for _, r := range strict.Outcomes(kernel, p, local) {
				f := conntrack.Flow{
					Protocol: service.Protocol(p.Protocol), Original: conntrack.Tuple{Src: p.Src, Dst: p.Dst},
					Reply: conntrack.Tuple{Src: p.Dst, Dst: p.Src},
				}
				switch r.Fate {
				case nft.DNATed:
					if f.Reply.Src = r.To; r.To != p.Dst {
						f.Status |= conntrack.DstNAT
					}
				case nft.Untouched:
				default:
					continue // It makes no entry.
				}
				for name, index := range map[string]*conntrack.Index{"objects": objects, "table": table} {
					if reason, stale := index.Stale(f); stale {
						t.Fatalf("seed %d: %v is as the rules make it (%v), but stale by the %s: %s\n%s", seed, f, r, name, reason,
							snapshot)
					}
				}
				seen[string(r.Fate)]++
				if want, got := ownerOf(objects, f), ownerOf(table, f); want != got {
					t.Fatalf("seed %d: %v belongs to %s by the objects, to %s by the table\n%s", seed, f, want, got, snapshot)
				}
			}
			f := anyFlow(rng, p, services)
			reason, stale := objects.Stale(f)
			if !stale {
				continue
			}
			if f.Protocol != service.UDP && f.Status&conntrack.SeenReply != 0 && reason == conntrack.EndpointGone {
				seen["cut"]++
				continue // The Service asks for it, which the table does not tell.
			}
			seen[string(reason)]++
			if _, stale := table.Stale(f); !stale {
				t.Fatalf("seed %d: %v is stale by the objects (%s), but not by the table\n%s", seed, f, reason, snapshot)
			}
		}
	}
	for _, what := range []string{"dnat", "untouched", "endpoint gone", "cut", "service address", "node port",
		"unallocated address", "source not in the ranges", "traffic policy"} {
		if seen[what] == 0 {
			t.Errorf("nothing was %q: %v", what, seen)
		}
	}
}

func ownerOf(x *conntrack.Index, f conntrack.Flow) string {
	s, p, ok := x.Owner(f)
	if !ok {
		return "nobody"
	}
	return s.ID(p)
}

// anyFlow returns a flow that some rules may have made.
func anyFlow(rng *rand.Rand, p nft.Packet, services []*service.Service) conntrack.Flow {
	f := conntrack.Flow{
		Protocol: service.Protocol(p.Protocol), Original: conntrack.Tuple{Src: p.Src, Dst: p.Dst},
		Reply:  conntrack.Tuple{Src: p.Dst, Dst: p.Src},
		Status: []conntrack.Status{0, conntrack.SeenReply, conntrack.SeenReply | conntrack.Assured}[rng.IntN(3)],
	}
	if rng.IntN(3) == 0 || len(services) == 0 {
		return f
	}
	f.Status |= conntrack.DstNAT
	f.Reply.Src = netip.AddrPortFrom(p.Dst.Addr(), 9)
	s := services[rng.IntN(len(services))]
	for e := range s.Ports[0].Endpoints.All() {
		if f.Family().Has(e.Addr.Addr()) && rng.IntN(2) == 0 {
			f.Reply.Src = e.Addr
		}
	}
	return f
}

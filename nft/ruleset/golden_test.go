package ruleset_test

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// TestGolden compiles the snapshot of each file under testdata and compares the program's
// text. Then it sends packets through the program: first the file's connections, whose
// clients the program remembers, then its traces. With -update it writes the program
// into the file, but never the packets' results: people write those.
func TestGolden(t *testing.T) {
	check.Archives(t, "testdata/*.txtar", updateGoldens(), func(t *testing.T, archive *txtar.Archive) {
		snapshot := parseSnapshot(t, section(archive, "snapshot"))
		program := ruleset.Compile(config(t, section(archive, "config")), snapshot)
		model := program.Model()
		for _, line := range nonEmptyLines(section(archive, "connections")) {
			connect(t, model, snapshot.Node, line)
		}
		for _, line := range nonEmptyLines(section(archive, "traces")) {
			checkTrace(t, model, snapshot.Node, line)
		}
		if updateGoldens() {
			setSection(archive, "program.nft", program.String())
		}
		if diff := cmp.Diff(section(archive, "program.nft"), program.String()); diff != "" {
			t.Errorf("program (-want +got):\n%s", diff)
		}
	})
}

func updateGoldens() bool { return flag.Lookup("update").Value.String() == "true" }

func init() { flag.Bool("update", false, "write the compiled programs into the golden files") }

func config(t *testing.T, text string) ruleset.Config {
	t.Helper()
	cfg := ruleset.Config{
		Table: ruleset.DefaultTable, Settings: service.Settings{
			ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/32")},
		},
	}
	for _, line := range nonEmptyLines(text) {
		words := strings.Fields(line)
		var err error
		switch words[0] {
		case "nodeport-addresses":
			cfg.NodePortAddresses, err = service.ParseNodePortAddresses(words[1:])
		case "pod-interface":
			name, prefix := strings.CutSuffix(words[1], "*")
			cfg.PodInterface = service.Interface{Name: name, Prefix: prefix}
		case "no-cluster-cidr":
			cfg.ClusterCIDRs = nil
		case "node-cidr":
			cfg.NodeCIDR = true
		case "flows":
			cfg.Flows, err = service.ParseFlows(words[1])
		case "masquerade-all":
			cfg.MasqueradeAll = true
		default:
			err = fmt.Errorf("unknown setting")
		}
		if err != nil {
			t.Fatalf("config: %s: %v", line, err)
		}
	}
	return cfg
}

func parseSnapshot(t *testing.T, text string) service.Snapshot {
	t.Helper()
	s, err := gen.ReadSnapshot(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkTrace checks one line "PACKET = RESULT | RESULT".
func checkTrace(t *testing.T, m *nft.Model, node *service.Node, line string) {
	t.Helper()
	packet, want, ok := strings.Cut(line, " = ")
	if !ok {
		t.Fatalf("trace %q has no result", line)
	}
	p, err := gen.ParsePacket(packet)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range strict.Outcomes(m, p, localTo(node)) {
		got = append(got, r.String())
	}
	if joined := strings.Join(got, " | "); joined != want {
		t.Errorf("%s:\nwant %s\n got %s", packet, want, joined)
		for _, step := range m.Trace(p, nft.Host{Local: localTo(node), Random: func(uint32) uint32 { return 0 }}).Path {
			t.Log(step)
		}
	}
}

// connect checks one line "NUMBER PACKET = RESULT". The packet gets the random index
// NUMBER, modulo the size of the range.
func connect(t *testing.T, m *nft.Model, node *service.Node, line string) {
	t.Helper()
	number, rest, _ := strings.Cut(line, " ")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		t.Fatalf("connection %q: %v", line, err)
	}
	packet, want, ok := strings.Cut(rest, " = ")
	if !ok {
		t.Fatalf("connection %q has no result", line)
	}
	p, err := gen.ParsePacket(packet)
	if err != nil {
		t.Fatal(err)
	}
	r := m.Trace(p, nft.Host{Local: localTo(node), Random: func(mod uint32) uint32 { return uint32(n) % mod }})
	if got := r.String(); got != want {
		t.Errorf("connection %s:\nwant %s\n got %s", line, want, got)
	}
	strict.Learn(m, r)
}

func localTo(node *service.Node) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(node.HostAddresses, a) }
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func setSection(a *txtar.Archive, name, text string) {
	for i := range a.Files {
		if a.Files[i].Name == name {
			a.Files[i].Data = []byte(text)
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
}

func nonEmptyLines(s string) []string {
	return slices.DeleteFunc(strings.Split(s, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
}

package inspect_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/snapshots"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/gen"
)

var update = flag.Bool("update", false, "write the rows into the files under testdata")

// TestDraining reads the flows of each file under testdata as conntrack would give them, and
// compares the endpoints with their counts.
func TestDraining(t *testing.T) {
	check.Archives(t, "testdata/*.txtar", *update, func(t *testing.T, archive *txtar.Archive) {
		section := func(name string) *txtar.File {
			i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name })
			if i < 0 {
				t.Fatalf("no section %s", name)
			}
			return &archive.Files[i]
		}
		snapshot, err := gen.ReadSnapshot(strings.NewReader(string(section("services").Data)))
		if err != nil {
			t.Fatal(err)
		}
		tables := tablesOf(ruleset.Config{Table: ruleset.DefaultTable}, snapshot)
		connections := count(tables)
		for line := range strings.Lines(string(section("flows").Data)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				connections.Add(parseFlow(t, line))
			}
		}
		var b strings.Builder
		for _, row := range tables.EndpointRows(inspect.Selection{}, connections) {
			local := "unknown"
			if row.Local != nil {
				local = fmt.Sprint(*row.Local)
			}
			fmt.Fprintf(&b, "%s/%s:%s %s -> %s: %s, local %s, lists %s, %d connections, %d closing\n", row.Namespace,
				row.Service, row.PortName,
				inspect.PortText(row.PortName, row.Protocol, row.Port), row.Endpoint, row.State, local,
				strings.Join(row.Lists, "+"), *row.Connections, *row.Closing)
		}
		golden := section("endpoints.txt")
		if *update {
			golden.Data = []byte(b.String())
		}
		if diff := cmp.Diff(string(golden.Data), b.String()); diff != "" {
			t.Errorf("endpoints (-want +got):\n%s", diff)
		}
		if got := fmt.Sprintf("%d\n", connections.Orphans); got != string(section("orphans").Data) {
			t.Errorf("%s orphans, want %s", got, section("orphans").Data)
		}
	})
}

func tablesOf(cfg ruleset.Config, s service.Snapshot) *inspect.Tables {
	return inspect.NewTables(ruleset.Compile(cfg, s).Model(), cfg.Table, &service.Node{Name: "this node",
		HostAddresses: s.Node.HostAddresses})
}

func count(tables *inspect.Tables) *inspect.Connections {
	all, _ := service.ParseNodePortAddresses([]string{"all"})
	index := conntrack.NewIndex(conntrack.Options{NodePortAddresses: all})
	index.Update(tables.Snapshot)
	return inspect.NewConnections(index)
}

// parseFlow reads "PROTOCOL CLIENT -> ADDRESS = ENDPOINT [STATE]". "-" stands for no
// endpoint: no rule translated the flow.
func parseFlow(t *testing.T, line string) conntrack.Flow {
	t.Helper()
	var protocol, client, address, endpoint, state string
	if n, _ := fmt.Sscanf(line, "%s %s -> %s = %s %s", &protocol, &client, &address, &endpoint, &state); n < 4 {
		t.Fatalf("flow %q: want PROTOCOL CLIENT -> ADDRESS = ENDPOINT [STATE]", line)
	}
	p, err := service.ParseProtocol(protocol)
	if err != nil {
		t.Fatalf("flow %q: %v", line, err)
	}
	f := conntrack.Flow{
		Protocol: p, Status: conntrack.SeenReply | conntrack.DstNAT,
		Original: conntrack.Tuple{Src: netip.MustParseAddrPort(client), Dst: netip.MustParseAddrPort(address)},
	}
	f.Reply = conntrack.Tuple{Src: f.Original.Dst, Dst: f.Original.Src}
	if endpoint == "-" {
		f.Status &^= conntrack.DstNAT
	} else {
		f.Reply.Src = netip.MustParseAddrPort(endpoint)
	}
	for s := conntrack.TCPSynSent; s <= conntrack.TCPSynSent2; s++ {
		if s.String() == state {
			f.TCPState = s
		}
	}
	if (state == "") != (f.TCPState == 0) {
		t.Fatalf("flow %q: unknown state", line)
	}
	return f
}

// TestRowsOfRandomClusters: the endpoints in the rows are those that the model chooses for
// new connections, the numbers of the services' rows are theirs, and each flow is counted
// where it leads.
func TestRowsOfRandomClusters(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 14))
		cfg, _ := gen.Config(rng)
		node := gen.Node(rng)
		builder := snapshots.NewBuilder(node)
		for _, s := range gen.Services(rng, &node) {
			builder.Set(s)
		}
		snapshot := builder.Snapshot()
		tables := tablesOf(cfg, snapshot)
		want, got := map[string]bool{}, map[string]bool{}
		for name, s := range snapshot.Services.All() {
			for i := range s.Ports {
				for _, a := range chosen(snapshot, s, &s.Ports[i]) {
					want[fmt.Sprintf("%s %s %s", name, s.Ports[i].Protocol, a)] = true
				}
			}
		}
		total, shares := map[string]int{}, map[string]float64{}
		for _, row := range tables.EndpointRows(inspect.Selection{}, nil) {
			got[fmt.Sprintf("%s/%s %s %s", row.Namespace, row.Service, row.Protocol, row.Endpoint)] = true
			total[row.Namespace+"/"+row.Service]++
			seen[strings.Join(row.Lists, "+")]++
			for i, list := range row.Lists {
				shares[fmt.Sprintf("%s/%s %s/%d/%s %s %s", row.Namespace, row.Service, row.Protocol, row.Port, row.PortName,
					ip.Of(row.Endpoint.Addr()), list)] += row.Shares[i]
			}
			if row.State != inspect.Active || row.Connections != nil || row.Local == nil {
				t.Errorf("seed %d: without flows: %+v", seed, row)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: endpoints (-by the model +rows):\n%s\n%s", seed, diff, snapshot)
		}
		for list, sum := range shares {
			if sum < 0.999 || sum > 1.001 {
				t.Errorf("seed %d: the shares of %s add up to %g", seed, list, sum)
			}
		}
		for _, row := range tables.ServiceRows(inspect.Selection{}) {
			if n := total[row.Namespace+"/"+row.Name]; n != row.Endpoints {
				t.Errorf("seed %d: %s/%s has %d endpoints, and %d rows of them", seed, row.Namespace, row.Name, row.Endpoints, n)
			}
		}
	}
	for _, lists := range []string{"internal", "external", "internal+external", "internal+external+external-local",
		"external+external-local"} {
		if seen[lists] == 0 {
			t.Errorf("no endpoint was in the lists %s: %v", lists, seen)
		}
	}
}

// chosen returns the endpoints that some frontend of the port uses.
func chosen(snapshot service.Snapshot, s *service.Service, p *service.Port) []netip.AddrPort {
	var all []netip.AddrPort
	for _, family := range ip.Families() {
		if !s.InFamily(family) {
			continue
		}
		c := share.Choose(s, p, snapshot.Node, family)
		has := func(claim service.Claim) bool { return !snapshot.Conflicts.At(s.Name).Has(claim) }
		internal, external := false, p.NodePort != 0 && has(service.NodePortClaim(family, p))
		for _, a := range s.Addresses() {
			if !family.Has(a) || !has(service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}) {
				continue
			}
			if slices.Contains(s.ClusterIPs, a) {
				internal = true
			} else {
				external = true
			}
		}
		if internal && s.InternalPolicy == service.Cluster || external {
			all = slices.AppendSeq(all, c.Cluster.All())
		}
		if internal && s.InternalPolicy == service.Local || external && s.ExternalPolicy == service.Local {
			all = slices.AppendSeq(all, c.Local.All())
		}
	}
	return all
}

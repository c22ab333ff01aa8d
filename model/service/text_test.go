package service_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/test/gen"
)

// TestTextForm: the file reads as the form prints, comments on conflicts
// included.
func TestTextForm(t *testing.T) {
	text, err := os.ReadFile("testdata/snapshot.txt")
	if err != nil {
		t.Fatal(err)
	}
	s, err := gen.ReadSnapshot(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(text), s.String()); diff != "" {
		t.Fatalf("(-file +printed):\n%s", diff)
	}
	web := s.Services.At("default/web")
	if web == nil || !strings.Contains(string(text), web.String()) {
		t.Fatalf("a service's own text is not part of the snapshot's:\n%s", web)
	}
}

// TestParseIsLenient: order, indentation, blank lines, upper case and
// duplicates do not matter.
func TestParseIsLenient(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(`
service default/b created 2026-01-01T00:00:00+02:00
cluster-ip 10.96.0.2
port - TCP 80
  # the terminating one loses
  endpoint 10.0.0.2:80 - terminating
  endpoint 10.0.0.1:80 - ready
  endpoint 10.0.0.2:80 - ready

service default/a created 2026-01-01T00:00:00Z
node n
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `node n
service default/a created 2026-01-01T00:00:00Z
service default/b created 2025-12-31T22:00:00Z
  cluster-ip 10.96.0.2
  port - tcp 80
    endpoint 10.0.0.1:80 - ready
    endpoint 10.0.0.2:80 - ready
`
	if diff := gocmp.Diff(want, s.String()); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	const svc = "service default/web created 2026-01-01T00:00:00Z\n"
	for _, test := range []struct{ text, want string }{
		{"nodes x", `line 1: "nodes" before the first service`},
		{svc + "nodes x", `line 2: unknown keyword "nodes"`},
		{"node", "line 1: want: node NAME"},
		{"service default/web", "line 1: want: service NAMESPACE/NAME created TIME"},
		{"service default/web created yesterday", `line 1: parsing time "yesterday"`},
		{"service default/web created 0000-01-01T00:00:00+01:00", "line 1: time"},
		{"cluster-ip 10.0.0.1", `line 1: "cluster-ip" before the first service`},
		{svc + "\n# comment\ncluster-ip 10.0.0", "line 4: ParseAddr"},
		{svc + "cluster-ip 10.0.0.1 10.0.0.2", "line 2: want one address, have 2 words"},
		{svc + "port http tcp", "line 2: want: port NAME PROTOCOL NUMBER"},
		{svc + "port http tcp 80 30080", "line 2: want: port NAME PROTOCOL NUMBER"},
		{svc + "port http icmp 80", `line 2: unknown protocol "icmp"`},
		{svc + "port http tcp 0", "line 2: port 0"},
		{svc + "port http tcp 65536", "line 2: strconv"},
		{svc + "port http tcp 80 node-port x", "line 2: strconv"},
		{"pod-cidr 10.0.0.0", "line 1: netip.ParsePrefix"},
		{"pod-cidr 10.0.0.0/24 10.0.1.0/24", "line 1: want one CIDR, have 2 words"},
		{"service-cidr 10.0.0.1/24", "line 1: 10.0.0.1/24 has bits behind its length"},
		{"eligible yes", "line 1: want: eligible"},
		{"address-pending yes", "line 1: want: address-pending"},
		{svc + "source-range", "line 2: want one CIDR, have 0 words"},
		{svc + "source-range nobody", "line 2: netip.ParsePrefix"},
		{svc + "affinity", "line 2: want: affinity TIMEOUT"},
		{svc + "affinity 10", "line 2: time: missing unit"},
		{svc + "affinity 0s", "line 2: time-out 0s is not a positive number of whole seconds"},
		{svc + "affinity 1500ms", "line 2: time-out 1500ms is not a positive number of whole seconds"},
		{svc + "health-check-node-port", "line 2: want: health-check-node-port NUMBER"},
		{svc + "health-check-node-port 0", "line 2: port 0"},
		{svc + "endpoint 10.0.0.1:80 n", "line 2: endpoint before the first port of default/web"},
		{svc + "option external-failover", "line 2: want: option KEY VALUE"},
		{svc + "option external-failover perhaps", "line 2: not drop, pass or cluster; drop is in force"},
		{svc + "option failover pass", "line 2: unknown key"},
		{svc + "port http tcp 80\nendpoint 10.0.0.1:80", "line 3: want: endpoint ADDRESS:PORT NODE"},
		{svc + "port http tcp 80\nendpoint 10.0.0.1 n", "line 3: not an ip:port"},
		{svc + "port http tcp 80\nendpoint 10.0.0.1:80 n red", `line 3: unknown condition "red"`},
	} {
		_, err := gen.ReadSnapshot(strings.NewReader(test.text))
		if err == nil || !strings.Contains(err.Error(), "parse snapshot: "+test.want) {
			t.Errorf("%q:\n got %v\nwant ... %s ...", test.text, err, test.want)
		}
	}
}

// FuzzParse: what Parse accepts, String prints in a form that gives the same
// again.
func FuzzParse(f *testing.F) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		f.Add(gen.Snapshot(rng, gen.Everything()).String())
	}
	f.Add("node -\nservice a created 0001-01-01T00:00:00Z\ncluster-ip ::ffff:1.2.3.4\nexternal-ip fe80::1%eth0\n")
	f.Add("service a created 9999-12-31T23:59:59-01:00\nservice b created 2026-01-01T00:00:00.123456789Z\n")
	f.Add("pod-cidr ::ffff:1.2.3.0/120\nservice a created 2026-01-01T00:00:00Z\nsource-range none\nsource-range " +
		"::/0\nsource-range fd00::/8\naffinity 1.5h\n")
	f.Add("service a created 2026-01-01T00:00:00Z\nport p tcp 1\nendpoint [::]:0 x ready\nendpoint [::]:0 y ready\n")
	f.Fuzz(func(t *testing.T, text string) {
		want, err := gen.ReadSnapshot(strings.NewReader(text))
		if err != nil {
			return
		}
		got, err := gen.ReadSnapshot(strings.NewReader(want.String()))
		if err != nil {
			t.Fatalf("%v, of what was printed:\n%s", err, want)
		}
		if diff := gocmp.Diff(contentsOf(want), contentsOf(got), byValue); diff != "" {
			t.Fatalf("(-first +second):\n%s\n%s", diff, want)
		}
	})
}

// contents is what the text form has of a snapshot, as plain maps, for comparing by value.
type contents struct {
	Node             service.Node
	Services, Others map[service.Name]*service.Service
	CIDRs            map[string]netip.Prefix
	Conflicts        map[service.Name][]service.Conflict
}

func contentsOf(s service.Snapshot) contents {
	c := contents{*s.Node, maps.Collect(s.Services.All()), maps.Collect(s.Others.All()),
		maps.Collect(s.ServiceCIDRs.All()), map[service.Name][]service.Conflict{}}
	for name, conflicts := range s.Conflicts.All() {
		c.Conflicts[name] = slices.Collect(conflicts.All())
	}
	return c
}

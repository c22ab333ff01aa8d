package explain_test

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/look/basechain"
	"nftproxy/look/explain"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/node/otherproxy"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// cluster is what the tests explain.
const cluster = `node node-1
  zone zone-a
  address 192.168.0.2
  host-address 192.168.0.2
  host-address 10.96.0.53
service-cidr 10.96.0.0/16
service ns/dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.53
  port - udp 53
    endpoint 10.244.0.5:53 node-1 ready serving
service ns/hinted created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving for-zones=zone-a
    endpoint 10.244.1.5:80 node-2 ready serving for-zones=zone-b
    endpoint 10.244.1.6:80 node-2
service ns/draining created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.3
  port http tcp 80
    endpoint 10.244.1.5:80 node-2 serving terminating
    endpoint 10.244.1.6:80 node-2 terminating
service ns/inside created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.4
  internal-policy Local
  external-policy Local
  health-check-node-port 30099
  port http tcp 80 node-port 30080
    endpoint 10.244.1.5:80 node-2 ready serving
service ns/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.6
  affinity 10800s
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
    endpoint 10.244.1.5:80 node-2 ready serving
service ns/three created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.7
  external-ip 192.168.0.2
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
    endpoint 10.244.0.6:80 node-1 ready serving
    endpoint 10.244.1.5:80 node-2 ready serving
service ns/unnamed created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.8
  internal-policy Local
  external-ip 198.51.100.8
  port http tcp 80
    endpoint 10.244.0.7:80 - ready serving
service ns/passing created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.9
  external-ip 198.51.100.19
  external-policy Local
  option external-failover pass
  port http tcp 80
    endpoint 10.244.1.5:80 node-2 ready serving
service ns/failing-over created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  external-ip 198.51.100.20
  external-policy Local
  option external-failover cluster
  port http tcp 80
    endpoint 10.244.1.5:80 node-2 ready serving
service ns/by-client created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.11
  option balance client
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
    endpoint 10.244.1.5:80 node-2 ready serving
service ns/by-flow created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.12
  option balance flow
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
    endpoint 10.244.1.5:80 node-2 ready serving
service ns/canary created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.13
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving weight=90
    endpoint 10.244.1.5:80 node-2 ready serving weight=10
`

// world is a cluster and its tables.
type world struct {
	*testing.T
	snapshot service.Snapshot
	facts    explain.Facts
}

func newWorld(t *testing.T) *world { return worldOf(t, cluster) }

func worldOf(t *testing.T, cluster string) *world {
	t.Helper()
	s, err := gen.ReadSnapshot(strings.NewReader(cluster))
	if err != nil {
		t.Fatal(err)
	}
	cfg := ruleset.Config{Table: "nftproxy", Settings: service.Settings{
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	}}
	return &world{t, s, explain.Facts{
		Tables: ruleset.Compile(cfg, s).Model(), Table: "nftproxy",
		Local: func(a netip.Addr) bool { return slices.Contains(s.Node.HostAddresses, a) },
	}}
}

func (w *world) table() *nft.Contents {
	return w.facts.Tables.Table(nft.TableID{Family: nft.IPv4, Name: "nftproxy"})
}

// ask explains a packet in the form of gen.ParsePacket.
func (w *world) ask(packet string) explain.Explanation {
	w.Helper()
	p, err := gen.ParsePacket(packet)
	if err != nil {
		w.Fatal(err)
	}
	e, err := explain.Explain(w.Context(), explain.Question{Packet: p, From: "somewhere"}, &w.facts)
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// says checks the outcome and texts of an explanation.
func (w *world) says(packet string, outcome explain.Outcome, texts ...string) {
	w.Helper()
	e := w.ask(packet)
	text := e.Text(true)
	if e.Outcome != outcome {
		w.Errorf("%s: %s, want %s:\n%s", packet, e.Outcome, outcome, text)
	}
	for _, want := range texts {
		if !strings.Contains(text, want) {
			w.Errorf("%s: the text lacks %q:\n%s", packet, want, text)
		}
	}
}

// TestDraws: the text says how the rules choose among endpoints, and how likely each one is.
func TestDraws(t *testing.T) {
	w := newWorld(t)
	const pod = "veth0 10.244.0.9:0 -> "
	w.says(pod+"10.96.0.13:80/tcp", explain.Endpoint, "it goes to one of 2 endpoints, at random, by their weights, and "+
		"keeps its source address",
		"10.244.0.5:80  90 %", "10.244.1.5:80  10 %", "it goes to 10.244.0.5:80 or 10.244.1.5:80, at random, by their "+
			"weights")
	w.says(pod+"10.96.0.12:80/tcp", explain.Endpoint, "it goes to one of 2 endpoints, by a hash of the client's address "+
		"and port, and keeps",
		"it goes to 10.244.0.5:80 or 10.244.1.5:80, by a hash of the client's address and port")
	w.says("veth0 10.244.0.9:1000 -> 10.96.0.12:80/tcp", explain.Endpoint, "it goes to 10.244.",
		":80, by a hash of the client's address and port, and keeps")
	w.says(pod+"10.96.0.11:80/tcp", explain.Endpoint, "it goes to 10.244.",
		":80, by a hash of the client's address, and keeps", "100 %")
	w.says(pod+"10.96.0.7:80/tcp", explain.Endpoint, "it goes to one of 3 endpoints, at random, and keeps")
}

// TestGrowing: with and without objects, the causes name the endpoints that have a part of their weight, among those
// that the packet may go to.
func TestGrowing(t *testing.T) {
	w := newWorld(t)
	since := time.Date(2026, 11, 26, 12, 3, 7, 0, time.UTC)
	adjusted := service.NewAdjusted([]service.Adjustment{
		{PortEndpoint: service.PortEndpoint{Protocol: service.TCP, Port: 80, Addr: netip.MustParseAddrPort("10.244.1.5:80")},
			Share: service.Quarter, Since: since},
		{PortEndpoint: service.PortEndpoint{Protocol: service.TCP, Port: 80, Addr: netip.MustParseAddrPort("10.244.1.99:80")},
			Share: service.Half, Since: since},
	})
	w.facts.Adjustments = w.facts.Adjustments.Set("ns/three", adjusted)
	const want = "endpoint 10.244.1.5:80 is growing since 12:03:07: 1/4 of its weight"
	w.says("veth0 10.244.0.9:0 -> 10.96.0.7:80/tcp", explain.Endpoint, want)
	w.facts.Objects, w.facts.Source = &w.snapshot, "the objects"
	w.says("veth0 10.244.0.9:0 -> 10.96.0.7:80/tcp", explain.Endpoint, want)
	for _, packet := range []string{"10.96.0.7:80/tcp", "10.96.0.6:80/tcp"} {
		if e := w.ask("veth0 10.244.0.9:0 -> " + packet); strings.Count(e.Text(true), "growing") != strings.Count(packet,
			".7:") {
			t.Errorf("%s: %s", packet, e.Text(true))
		}
	}
}

// TestCauses: by the objects, the causes name conditions, policies and hints.
func TestCauses(t *testing.T) {
	w := newWorld(t)
	w.facts.Objects, w.facts.Source = &w.snapshot, "the objects"
	pod := "veth0 10.244.0.9:1000 -> "
	w.says(pod+"10.96.0.2:80/tcp", explain.Endpoint, "it goes to 10.244.0.5:80, and keeps its source address",
		"topology hints of the EndpointSlices leave 1 of 2 ready endpoints for the zone zone-a of this node",
		"no new connections go to 1 other endpoint of the Service")
	w.says(pod+"10.96.0.3:80/tcp", explain.Endpoint, "no endpoint of Service ns/draining is ready",
		"terminating, and still serves, on node node-2")
	w.says(pod+"10.96.0.4:80/tcp", explain.Dropped,
		"Service ns/inside:http: internalTrafficPolicy is Local and no endpoint serves on this node",
		"one endpoint is on another node", "set internalTrafficPolicy to Cluster")
	w.says("eth0 203.0.113.1:1000 -> 192.168.0.2:30080/tcp", explain.Dropped,
		"Service ns/inside:http: externalTrafficPolicy is Local and no endpoint serves on this node")
	w.says("eth0 203.0.113.1:1000 -> 192.168.0.2:30099/tcp", explain.Untouched,
		"the port is the healthCheckNodePort of Service ns/inside")
	w.says("eth0 203.0.113.1:1000 -> 192.168.0.2:30100/tcp", explain.Untouched, "no Service has the node port 30100/tcp")
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.9:80/tcp", explain.Untouched, "198.51.100.9 is no address of a Service "+
		"with the port 80/tcp")
	w.says(pod+"10.96.0.53:54/udp", explain.Untouched, "also an address of this node, which keeps the ports that the "+
		"Service does not have")
	w.says(pod+"10.96.0.2:0/icmp", explain.Refused, "they do not answer ping", "refused by ICMP port unreachable")
	w.says("eth0 203.0.113.1:1000 -> 192.168.0.2:80/tcp", explain.Endpoint,
		"it goes to one of 3 endpoints, at random, masqueraded", "33.3 %")
	w.says("veth0 10.244.0.5:1000 -> 10.96.0.7:80/tcp", explain.Endpoint, "masqueraded for 1 of them",
		"the pod reaches itself through the Service", "Otherwise (33.3 %):")
	w.says(pod+"10.96.0.8:80/tcp", explain.Dropped, "1 endpoint without nodeName in the EndpointSlice: no node counts "+
		"such an endpoint as its own")
	w.says("veth0 10.244.1.5:1000 -> 10.96.0.6:80/tcp", explain.Endpoint,
		"the endpoint 10.244.1.5:80 is the client itself, and the packet keeps its source",
		"the EndpointSlice has to name this node for the endpoint")
	w.says("veth0 10.244.0.7:1000 -> 198.51.100.8:80/tcp", explain.Endpoint, "ready, on an unknown node")
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.19:80/tcp", explain.Untouched, "it is left to routing, untranslated",
		"Service ns/passing:http: no endpoint serves on this node, and external-failover is pass")
	w.says("node 192.168.0.2:1000 -> 198.51.100.19:80/tcp", explain.Endpoint, "it goes to 10.244.1.5:80, masqueraded")
	w.says("eth0 203.0.113.1:1000 -> 198.51.100.20:80/tcp", explain.Endpoint, "it goes to 10.244.1.5:80, masqueraded",
		"Service ns/failing-over:http: external-failover is cluster, and no endpoint serves on this node")
}

// TestWithoutTable: without a table the cause is that.
func TestWithoutTable(t *testing.T) {
	w := newWorld(t)
	w.facts.Tables = nft.NewModel()
	w.says("veth0 10.244.0.9:1000 -> 10.96.0.2:80/tcp", explain.Untouched, "the kernel has no table ip nftproxy")
}

// TestAffinity: a remembered client goes to its endpoint, and the explanation says for how long.
func TestAffinity(t *testing.T) {
	w := newWorld(t)
	const packet = "veth0 10.244.0.9:1000 -> 10.96.0.6:80/tcp"
	w.says(packet, explain.Endpoint, "one of 2 endpoints", "does not remember the client 10.244.0.9",
		"remembers the client for 3h0m0s")
	p, err := gen.ParsePacket(packet)
	if err != nil {
		t.Fatal(err)
	}
	strict.Learn(w.facts.Tables, w.facts.Tables.Trace(p, nft.Host{Local: w.facts.Local, Random: func(n uint32) uint32 {
		return n - 1
	}}))
	w.facts.Expires = func(string, nft.Value) time.Duration { return 90 * time.Minute }
	w.says(packet, explain.Endpoint, "it goes to 10.244.1.5:80, which is remembered for the client",
		"remembers the client for 1h30m0s, unless it connects again")
	if a := w.ask(packet).Affinity; a == nil || a.Endpoint != "10.244.1.5:80" || a.ExpiresSeconds != 5400 {
		t.Errorf("affinity %+v", a)
	}
}

// TestChangedByOthers: what another process has changed is named, and never guessed at.
func TestChangedByOthers(t *testing.T) {
	const packet = "veth0 10.244.0.9:1000 -> 10.96.0.7:80/tcp"
	insert := func(w *world, chain string, r nft.Rule) {
		c := w.table().Chains[chain]
		w.table().Chains[chain] = &nft.Chain{Name: c.Name, Hook: c.Hook, Rules: slices.Insert(slices.Clone(c.Rules), 0, r)}
	}
	w := newWorld(t)
	insert(w, "endpoints-3", nft.Rule{nft.Unknown{}})
	w.says(packet, explain.Undecided, "nftproxy cannot tell what becomes of it",
		"rule 1 of chain endpoints-3 is not nftproxy's")

	w = newWorld(t)
	insert(w, "postrouting", nft.Rule{nft.MatchProto{Protocol: 6}, nft.Masquerade{}})
	w.says(packet, explain.Endpoint, "masqueraded by chain postrouting, rule 1: the rule is not nftproxy's",
		"another process has changed nftproxy's table")

	w = newWorld(t)
	for key := range w.table().Sets["endpoints"].Elements {
		if at, i := key.SplitIndex(); i == 1 && strings.HasPrefix(string(at), string([]byte{10, 96, 0, 7})) {
			delete(w.table().Sets["endpoints"].Elements, key)
		}
	}
	w.says(packet, explain.Endpoint, "10.244.0.5:80  66.7 %", "another process has removed elements",
		"Otherwise (33.3 %):")
	w.facts.Objects, w.facts.Source = &w.snapshot, "the objects"
	w.says(packet, explain.Endpoint, "the tables differ from the objects: the packet should go to 10.244.0.5:80, "+
		"10.244.0.6:80, 10.244.1.5:80")

	w = newWorld(t)
	maps := w.table().Sets["endpoints"].Elements
	for key := range maps {
		delete(maps, key)
	}
	w.says(packet, explain.Dropped, "the map has none of the endpoints that this chain expects",
		"another process has removed elements")
}

// TestForeignCounters: a counter that another process has put into a rule, at whatever place, changes no word
// of the explanation but the rule's text.
func TestForeignCounters(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(cluster + `service ns/restricted created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.8
  load-balancer-ip 198.51.100.8
  source-range 203.0.113.0/24
  port http tcp 80
    endpoint 10.244.0.5:80 node-1 ready serving
service ns/local created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.9
  external-ip 198.51.100.19
  external-policy Local
  port http tcp 80 node-port 30081
    endpoint 10.244.0.5:80 node-1 ready serving
service ns/none created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  port http tcp 80
`))
	if err != nil {
		t.Fatal(err)
	}
	packets := []string{
		"veth0 10.244.0.9:1000 -> 10.96.0.2:80/tcp", "veth0 10.244.0.9:1000 -> 10.96.0.2:81/tcp",
		"veth0 10.244.0.9:1000 -> 10.96.0.2:0/icmp", "veth0 10.244.0.9:1000 -> 10.96.200.1:80/tcp",
		"veth0 10.244.0.9:1000 -> 10.96.0.53:54/udp", "veth0 10.244.0.9:1000 -> 10.96.0.4:80/tcp",
		"veth0 10.244.0.9:1000 -> 10.96.0.6:80/tcp", "veth0 10.244.0.5:1000 -> 10.96.0.7:80/tcp",
		"eth0 192.0.2.1:1000 -> 10.96.0.7:80/tcp", "node 192.168.0.2:1000 -> 10.96.0.7:80/tcp",
		"node 192.168.0.2:1000 -> 198.51.100.9:80/tcp", "veth0 10.244.0.9:1000 -> 198.51.100.9:80/tcp",
		"eth0 192.0.2.1:1000 -> 198.51.100.9:80/tcp", "eth0 192.0.2.1:1000 -> 198.51.100.8:80/tcp",
		"eth0 203.0.113.1:1000 -> 198.51.100.8:80/tcp", "eth0 203.0.113.1:1000 -> 192.168.0.2:30080/tcp",
		"eth0 203.0.113.1:1000 -> 192.168.0.2:30081/tcp", "eth0 203.0.113.1:1000 -> 192.168.0.2:30100/tcp",
		"eth0 203.0.113.1:1000 -> 198.51.100.77:80/tcp", "veth0 10.244.0.9:1000 -> 10.96.0.10:80/tcp",
	}
	for name, settings := range map[string]service.Settings{
		"by address":   {ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		"by interface": {PodInterface: service.Interface{Name: "veth", Prefix: true}},
		"all":          {MasqueradeAll: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.facts.Tables = ruleset.Compile(ruleset.Config{Table: "nftproxy", Settings: settings}, s).Model()
			text := func(e explain.Explanation) string {
				return strings.NewReplacer(" counter", "", "counter ", "").Replace(e.Text(true))
			}
			meets := map[string]map[string]string{} // the text by chain and packet
			for _, packet := range packets {
				e := w.ask(packet)
				for _, step := range slices.Concat(e.Steps, slices.Concat(branchSteps(&e)...)) {
					if meets[step.Chain] == nil {
						meets[step.Chain] = map[string]string{}
					}
					meets[step.Chain][packet] = text(e)
				}
			}
			if len(meets) < 10 {
				t.Errorf("the packets meet %d chains only", len(meets))
			}
			for chain, wanted := range meets {
				c := w.table().Chains[chain]
				for i, r := range c.Rules {
					for at := range len(r.Body()) + 1 { // the kernel has the comment beside the statements
						rules := slices.Clone(c.Rules)
						rules[i] = slices.Insert(slices.Clone(r), at, nft.Statement(nft.Counter{}))
						w.table().Chains[chain] = &nft.Chain{Name: c.Name, Hook: c.Hook, Rules: rules}
						for packet, want := range wanted {
							if got := text(w.ask(packet)); got != want {
								t.Fatalf("%q in chain %s:\n%s\nwant\n%s", rules[i].Text(nft.IPv4), chain, got, want)
							}
						}
					}
				}
				w.table().Chains[chain] = c
			}
		})
	}
}

func branchSteps(e *explain.Explanation) (all [][]explain.Step) {
	for _, o := range e.Otherwise {
		all = append(all, o.Steps)
	}
	return all
}

// TestUnknownAffinityMap: a map of clients that cannot be read leaves the outcome undecided.
func TestUnknownAffinityMap(t *testing.T) {
	w := newWorld(t)
	for name, set := range w.table().Sets {
		if set.Set.Dynamic {
			delete(w.table().Sets, name)
		}
	}
	w.says("veth0 10.244.0.9:1000 -> 10.96.0.6:80/tcp", explain.Undecided, "nftproxy cannot tell what becomes of it")
}

// TestHostileNames: no control character of a comment or chain reaches the text.
func TestHostileNames(t *testing.T) {
	w := newWorld(t)
	for _, set := range w.table().Sets {
		for key, e := range set.Elements {
			e.Comment = "ns/\x1b[31mred\u202e\n:\x07p\u2066\u2069\u200e\u200f\u2028"
			set.Elements[key] = e
		}
	}
	w.facts.Way = func(netip.Addr) string { return "by eth\u2066\x1b0" }
	w.snapshot.Node.Name = "elsewhere"
	w.facts.Objects, w.facts.Source = &w.snapshot, "objects\u202e\u200f"
	for _, packet := range []string{"veth0 10.244.0.9:1000 -> 10.96.0.7:80/tcp",
		"veth0 10.244.0.9:1000 -> 10.96.0.7:81/tcp"} {
		e := w.ask(packet)
		if text := e.Text(true); regexp.MustCompile(`[^\n\x20-\x7e]`).MatchString(text) ||
			!strings.Contains(text, "ns/?[31mred??") {
			t.Errorf("%s: %q", packet, text)
		}
	}
}

// TestJSON: the JSON has the names that the help promises, and lists where it says so.
func TestJSON(t *testing.T) {
	w := newWorld(t)
	b, err := json.Marshal(w.ask("veth0 10.244.0.9:1000 -> 10.96.0.7:81/tcp"))
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]any
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"packet", "outcome", "summary", "service", "port"} {
		if e[name] == nil {
			t.Errorf("no %s in %s", name, b)
		}
	}
	for _, name := range []string{"results", "endpoints", "steps", "otherwise", "causes", "remedies", "others", "notes",
		"assumed", "elsewhere"} {
		if _, list := e[name].([]any); !list {
			t.Errorf("%s is no list in %s", name, b)
		}
	}
	if e["affinity"] != nil || e["outcome"] != "refused" {
		t.Errorf("%s", b)
	}
}

// TestPortNames: where the EndpointSlices have endpoints for a port of another name or protocol, this is the cause, and
// not the selector.
func TestPortNames(t *testing.T) {
	for name, c := range map[string]struct {
		slice service.SlicePort
		texts []string
	}{
		"none in the slice": {service.SlicePort{Protocol: service.TCP},
			[]string{`the Service's port is "http" (tcp), the EndpointSlices have one without a name (tcp)`}},
		"another name": {service.SlicePort{Name: "web", Protocol: service.TCP},
			[]string{`the EndpointSlices have "web" (tcp)`}},
		"another case": {service.SlicePort{Name: "HTTP", Protocol: service.TCP},
			[]string{`"HTTP"`, "the names differ in upper and lower case"}},
		"another protocol": {service.SlicePort{Name: "http", Protocol: service.UDP},
			[]string{`"http" (udp)`, "the name is the same, the protocol is not"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := gen.ReadSnapshot(strings.NewReader("node node-1\nservice ns/web created 2026-01-01T00:00:00Z\n  " +
				"cluster-ip 10.96.0.9\n  port http tcp 80\n"))
			if err != nil {
				t.Fatal(err)
			}
			w := &world{t, s, explain.Facts{Tables: ruleset.Compile(ruleset.Config{Table: "nftproxy"}, s).Model(),
				Table: "nftproxy", Local: func(netip.Addr) bool { return false }}}
			web, _ := s.Services.Get("ns/web")
			web = web.Clone()
			web.OtherPorts = []service.SlicePort{c.slice}
			s.Services = s.Services.Set("ns/web", web)
			w.facts.Objects, w.facts.Source = &s, "manifests"
			w.says("10.244.0.9:40000 -> 10.96.0.9:80/tcp", explain.Refused,
				append(c.texts, "other names or protocols than the port of the Service",
					"give their port the name and protocol")...)
			e := w.ask("10.244.0.9:40000 -> 10.96.0.9:80/tcp")
			if text := e.Text(true); strings.Contains(text, "selector") || strings.Contains(text, "targetPort") {
				t.Errorf("the text blames the selector:\n%s", text)
			}
		})
	}
}

// TestInvalidDropped: the chain of --nftproxy-drop-invalid drops no first packet, so it is not named. One of another
// nftproxy is: nobody knows what its table has become.
func TestInvalidDropped(t *testing.T) {
	for table, named := range map[string]bool{"nftproxy-invalid": false, "other-invalid": true} {
		w := newWorld(t)
		w.facts.Chains = []basechain.Chain{{
			Family: "inet", Table: table, Name: "forward", Type: "filter", Hook: "forward",
			Rules: otherproxy.Effects{Drops: true},
		}}
		if e := w.ask("veth0 10.244.0.9:1000 -> 10.96.0.2:80/tcp"); (len(e.Others) == 1) != named {
			t.Errorf("%s: named %t, want %t", table, !named, named)
		}
	}
}

// TestMarkingChains: a chain that sets marks is named if it may see the address from before the translation. One that
// comes later is not: it goes by the endpoint's address, or is not called.
func TestMarkingChains(t *testing.T) {
	const pod, node = "veth0 10.244.0.9:1000 -> 10.96.0.2:80/tcp", "node 192.168.0.2:1000 -> 10.96.0.2:80/tcp"
	const early, perhaps = "it sees the addresses from before nftproxy's translation", "it has nftproxy's priority"
	for name, c := range map[string]struct {
		chain    basechain.Chain
		from     string
		says     string
		harmless bool
	}{
		"earlier, nat": {basechain.Chain{Type: "nat", Hook: "prerouting", Priority: -101,
			Rules: otherproxy.Effects{MarksConnections: true}}, pod, early, true},
		"earlier, filter": {basechain.Chain{Type: "filter", Hook: "prerouting", Priority: -150,
			Rules: otherproxy.Effects{Marks: true}}, pod, early, true},
		"the same priority": {basechain.Chain{Type: "nat", Hook: "prerouting", Priority: -100,
			Rules: otherproxy.Effects{MarksConnections: true}}, pod, perhaps, true},
		"later": {basechain.Chain{Type: "nat", Hook: "prerouting", Priority: -90,
			Rules: otherproxy.Effects{MarksConnections: true}}, pod, "", true},
		"after the routing": {basechain.Chain{Type: "filter", Hook: "forward", Priority: -150,
			Rules: otherproxy.Effects{Marks: true}}, pod, "", true},
		"no marks": {basechain.Chain{Type: "nat", Hook: "prerouting", Priority: -101}, pod, "", true},
		"output": {basechain.Chain{Type: "route", Hook: "output", Priority: -150,
			Rules: otherproxy.Effects{Marks: true}}, node, early, true},
		"drops by the address": {basechain.Chain{Type: "filter", Hook: "prerouting", Priority: -150,
			Rules: otherproxy.Effects{Drops: true}}, pod, early, false},
		"drops later": {basechain.Chain{Type: "filter", Hook: "forward", Rules: otherproxy.Effects{Drops: true}}, pod,
			"packets", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.chain.Family, c.chain.Table, c.chain.Name = "ip", "other", "chain"
			w.facts.Chains = []basechain.Chain{c.chain}
			e := w.ask(c.from)
			switch {
			case c.chain.Harmless() != c.harmless:
				t.Errorf("harmless: %t", !c.harmless)
			case c.says == "" && len(e.Others) != 0, c.says != "" && (len(e.Others) != 1 || !strings.Contains(e.Text(true),
				c.says)):
				t.Errorf("want %q:\n%s", c.says, e.Text(true))
			case name == "drops later" && strings.Contains(e.Text(true), "from before"):
				t.Errorf("it sees the translated address:\n%s", e.Text(true))
			}
		})
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// flows is a node with pods and flows between them. No proxy runs on it.
type flows struct {
	*testing.T
	*testnet.Topology
	client, one, two *testnet.Pod
}

func newFlows(t *testing.T) *flows {
	f := &flows{T: t, Topology: testnet.NewForTest(t, testnet.Config{})}
	for name, pod := range map[string]**testnet.Pod{"client": &f.client, "one": &f.one, "two": &f.two} {
		var err error
		if *pod, err = f.AddPod(name); err != nil {
			t.Fatal(err)
		}
		for _, a := range (*pod).Addrs {
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				if _, err := (*pod).NS.Serve(proto, netip.AddrPortFrom(a, 8080), name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return f
}

// services returns the text of three Services: shop/cart on one pod, shop/other on another,
// and shop/late without endpoints.
func (f *flows) services(cart, other *testnet.Pod) string {
	return fmt.Sprintf(`node node
  address %s
  address %s
service-cidr 10.96.0.0/16
service shop/cart created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  port dns udp 53 node-port 30053
    endpoint %s node ready serving
    endpoint %s node ready serving
  port http tcp 80
    endpoint %[3]s node ready serving
service shop/other created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.11
  port - udp 53
    endpoint %[5]s node ready serving
service shop/late created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.12
  port - udp 53
`, f.NodeAddrs.V4(), f.NodeAddrs.V6(), at(cart.Addrs.V4()), at(cart.Addrs.V6()), at(other.Addrs.V4()))
}

func at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 8080) }

// rules writes the Services' program to the kernel. No process owns the tables.
func (f *flows) rules(services string) {
	f.Helper()
	s, err := gen.ReadSnapshot(strings.NewReader(services))
	if err != nil {
		f.Fatal(err)
	}
	p := ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable,
		Settings: service.Settings{ClusterCIDRs: f.ClusterCIDRs}}, s)
	if err := f.Node.Do(func() error {
		conn, err := kernel.Open(kernel.Config{})
		if err != nil {
			return err
		}
		defer conn.Close()
		m, err := conn.Read(p)
		if err != nil {
			return err
		}
		batch, _ := nft.Adopt(m, p).Plan(p, time.Unix(0, 0))
		return conn.Apply(batch)
	}); err != nil {
		f.Fatal(err)
	}
}

// ask sends a datagram from the address src and returns the name in the answer.
func (f *flows) ask(from *testnet.Namespace, src, dst string) string {
	f.Helper()
	a, err := from.AskFrom(f.Context(), testnet.UDP, netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst),
		time.Minute)
	if err != nil || a.Outcome != testnet.Answered {
		f.Fatalf("ask %s: %+v, %v", dst, a, err)
	}
	return a.ID
}

// unanswered sends a datagram that gets no answer, and waits until it has passed the
// node.
func (f *flows) unanswered(src, dst string) {
	f.Helper()
	conn, err := f.client.NS.DialFrom(f.Context(), "udp", src, dst)
	if err != nil {
		f.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("anybody?")); err != nil {
		f.Fatal(err)
	}
	// A later packet does not overtake it.
	a, err := f.client.NS.Ask(f.Context(), testnet.ICMP, netip.AddrPortFrom(f.NodeAddrs.V4(), 0), time.Minute)
	if err != nil || a.Outcome != testnet.Answered {
		f.Fatalf("ask the node: %+v, %v", a, err)
	}
}

func (f *flows) dial(dst string) net.Conn {
	f.Helper()
	conn, err := f.client.NS.DialFrom(f.Context(), "tcp", at(f.client.Addrs.V4()).Addr().String()+":4080", dst)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { conn.Close() })
	return conn
}

// command runs nftproxy conntrack on the node.
func (f *flows) command(args ...string) (stdout, stderr string, code int) {
	f.Helper()
	return runIn(f.T, f.Node, append([]string{"conntrack"}, args...)...)
}

// rows runs a command that must succeed, and returns a line for each flow in its JSON.
func (f *flows) rows(args ...string) []string {
	f.Helper()
	out, errs, code := f.command(append(args, "-o", "json")...)
	if code != 0 {
		f.Fatalf("nftproxy conntrack %s: exit code %d:\n%s", strings.Join(args, " "), code, errs)
	}
	var result struct {
		Flows []struct {
			Protocol, Client, Service, Port, Address, Endpoint, State, Reason string

			ExpiresSeconds int
			Stale          bool
		}
	}
	d := json.NewDecoder(strings.NewReader(out))
	if err := d.Decode(&result); err != nil {
		f.Fatalf("%v:\n%s", err, out)
	}
	lines := []string{}
	for _, r := range result.Flows {
		if r.ExpiresSeconds <= 0 || r.Stale != (r.Reason != "") {
			f.Errorf("inconsistent: %+v", r)
		}
		line := fmt.Sprintf("%s %s -> %s:%s %s -> %s %s", r.Protocol, r.Client, r.Service, r.Port, r.Address, r.Endpoint,
			r.State)
		if r.Stale {
			line += ": " + r.Reason
		}
		lines = append(lines, line)
	}
	return lines
}

func (f *flows) want(what string, got []string, want ...string) {
	f.Helper()
	replace := strings.NewReplacer(
		"CLIENT6", f.client.Addrs.V6().String(), "CLIENT", f.client.Addrs.V4().String(), "OUTSIDE",
		f.OutsideAddrs.V4().String(),
		"NODE", f.NodeAddrs.V4().String(), "ONE6", f.one.Addrs.V6().String(), "ONE", f.one.Addrs.V4().String(),
		"TWO6", f.two.Addrs.V6().String(), "TWO", f.two.Addrs.V4().String(),
	)
	for i := range want {
		want[i] = replace.Replace(want[i])
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		f.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestConntrackCommand: list shows flows with their Services, and as stale once the rules
// lead elsewhere. clean removes the stale ones, so that the next packet goes right.
func TestConntrackCommand(t *testing.T) {
	f := newFlows(t)
	client4, client6 := f.client.Addrs.V4().String(), "["+f.client.Addrs.V6().String()+"]"
	late := client4 + ":4012"
	f.rules("node node\n")
	f.unanswered(late, "10.96.0.12:53")
	f.unanswered(client4+":4013", "10.96.0.99:53") // an address of the ServiceCIDR that no Service has
	f.rules(f.services(f.one, f.two))
	for _, flow := range [][2]string{{client4 + ":4010", "10.96.0.10:53"}, {client6 + ":4010", "[fd00:96::a]:53"}} {
		if got := f.ask(f.client.NS, flow[0], flow[1]); got != "one" {
			t.Fatalf("%s: %s answered", flow[1], got)
		}
	}
	f.ask(f.client.NS, client4+":4011", "10.96.0.11:53")
	f.ask(f.Outside, f.OutsideAddrs.V4().String()+":4030", f.NodeAddrs.V4().String()+":30053")
	f.ask(f.client.NS, client4+":4099", f.two.Addrs.V4().String()+":8080") // not to a Service
	conn := f.dial("10.96.0.10:80")

	f.want("flows of the services", f.rows("list"),
		"udp CLIENT:4013 -> : 10.96.0.99:53 ->  unreplied: unallocated address",
		"udp CLIENT:4010 -> shop/cart:dns 10.96.0.10:53 -> ONE:8080 replied",
		"udp OUTSIDE:4030 -> shop/cart:dns NODE:30053 -> ONE:8080 replied",
		"udp [CLIENT6]:4010 -> shop/cart:dns [fd00:96::a]:53 -> [ONE6]:8080 replied",
		"tcp CLIENT:4080 -> shop/cart:http 10.96.0.10:80 -> ONE:8080 established",
		"udp CLIENT:4012 -> shop/late:53 10.96.0.12:53 ->  unreplied: service address",
		"udp CLIENT:4011 -> shop/other:53 10.96.0.11:53 -> TWO:8080 replied",
	)
	f.want("of one service", f.rows("list", "--service", "shop/other"), "udp CLIENT:4011 -> shop/other:53 10.96.0.11:53 "+
		"-> TWO:8080 replied")
	f.want("of one protocol", f.rows("list", "--protocol", "TCP"), "tcp CLIENT:4080 -> shop/cart:http 10.96.0.10:80 -> "+
		"ONE:8080 established")

	f.rules(f.services(f.two, f.two))
	stale := []string{
		"udp CLIENT:4013 -> : 10.96.0.99:53 ->  unreplied: unallocated address",
		"udp CLIENT:4010 -> shop/cart:dns 10.96.0.10:53 -> ONE:8080 replied: endpoint gone",
		"udp OUTSIDE:4030 -> shop/cart:dns NODE:30053 -> ONE:8080 replied: endpoint gone",
		"udp [CLIENT6]:4010 -> shop/cart:dns [fd00:96::a]:53 -> [ONE6]:8080 replied: endpoint gone",
		"udp CLIENT:4012 -> shop/late:53 10.96.0.12:53 ->  unreplied: service address",
	}
	f.want("once the endpoint is another", f.rows("list", "--stale"), slices.Clone(stale)...)
	f.want("connections, if asked for", f.rows("list", "--stale", "--protocol", "tcp",
		"--nftproxy-conntrack-clean-established", "tcp"),
		"tcp CLIENT:4080 -> shop/cart:http 10.96.0.10:80 -> ONE:8080 established: endpoint gone")
	f.want("dry run", f.rows("clean", "--dry-run"), slices.Clone(stale)...)
	f.want("after the dry run", f.rows("list", "--stale"), slices.Clone(stale)...)
	f.want("cleaned of one service", f.rows("clean", "--service", "shop/cart", "--protocol", "udp"),
		slices.Clone(stale[1:4])...)
	for _, flow := range [][2]string{{client4 + ":4010", "10.96.0.10:53"}, {client6 + ":4010", "[fd00:96::a]:53"}} {
		if got := f.ask(f.client.NS, flow[0], flow[1]); got != "two" {
			t.Errorf("%s: %s answered after clean, want two", flow[1], got)
		}
	}
	out, errs, code := f.command("clean")
	if code != 0 || strings.Count(out, "\n") != 3 || !strings.Contains(errs, "removed 2 flows\n") {
		t.Errorf("clean: exit code %d, said\n%s%s", code, out, errs)
	}
	f.want("nothing is left to clean", f.rows("clean"))
	kept := "tcp CLIENT:4080 -> shop/cart:http 10.96.0.10:80 -> ONE:8080 established"
	f.want("what is valid was left alone", f.rows("list"),
		"udp CLIENT:4010 -> shop/cart:dns 10.96.0.10:53 -> TWO:8080 replied",
		"udp [CLIENT6]:4010 -> shop/cart:dns [fd00:96::a]:53 -> [TWO6]:8080 replied",
		kept, "udp CLIENT:4011 -> shop/other:53 10.96.0.11:53 -> TWO:8080 replied")
	if _, err := conn.Write([]byte("still there?\n")); err != nil {
		t.Error(err)
	}

	if _, errs, code := f.command("clean", "--all-service-flows"); code != 2 || !strings.Contains(errs, "--yes") {
		t.Errorf("clean of everything without --yes: exit code %d, said %s", code, errs)
	}
	f.want("valid flows of one service", f.rows("clean", "--all-service-flows", "--service", "shop/other"),
		"udp CLIENT:4011 -> shop/other:53 10.96.0.11:53 -> TWO:8080 replied")
	f.want("of all", f.rows("clean", "--all-service-flows", "--yes"),
		"udp CLIENT:4010 -> shop/cart:dns 10.96.0.10:53 -> TWO:8080 replied",
		"udp [CLIENT6]:4010 -> shop/cart:dns [fd00:96::a]:53 -> [TWO6]:8080 replied", kept)
	f.want("none is left", f.rows("list"))
}

// TestConntrackManifests: the manifests decide. A Service in the rules that is not in the
// manifests is gone.
func TestConntrackManifests(t *testing.T) {
	f := newFlows(t)
	client := f.client.Addrs.V4().String()
	f.rules(f.services(f.one, f.two))
	f.ask(f.client.NS, client+":4010", "10.96.0.10:53")
	f.ask(f.client.NS, client+":4011", "10.96.0.11:53")
	f.ask(f.Outside, f.OutsideAddrs.V4().String()+":4030", f.NodeAddrs.V4().String()+":30053")
	f.want("as in the table", f.rows("list", "--stale"))
	path := manifest(t, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: %s}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: cart}
spec: {type: NodePort, clusterIPs: [10.96.0.10], ports: [{name: domain, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: cart, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: domain, port: 8080, protocol: UDP}]
endpoints: [{addresses: ["%s"]}]
`, f.NodeAddrs.V4(), f.two.Addrs.V4()))
	flags := []string{"--nftproxy-manifests", path, "--hostname-override", "node-1"}
	want := []string{
		"udp CLIENT:4011 -> : 10.96.0.11:53 -> TWO:8080 replied: service gone",
		"udp OUTSIDE:4030 -> : NODE:30053 -> ONE:8080 replied: service gone",
		"udp CLIENT:4010 -> shop/cart:domain 10.96.0.10:53 -> ONE:8080 replied: endpoint gone",
	}
	f.want("by manifests", f.rows(append([]string{"list"}, flags...)...), slices.Clone(want)...)
	f.want("cleaned", f.rows(append([]string{"clean"}, flags...)...), slices.Clone(want)...)
	f.want("none is left", f.rows(append([]string{"list"}, flags...)...))
	_, errs, code := f.command(append([]string{"list", "--service", "shop/other"}, flags...)...)
	for _, says := range []string{"1 service, from the manifests at " + path, "not in the manifests at " + path +
		`: service "shop/other"`} {
		if code != 2 || !strings.Contains(errs, says) {
			t.Errorf("list says nothing of %q:\n%s", says, errs)
		}
	}
}

// TestConntrackText: list prints a table for people, from a real conntrack table.
func TestConntrackText(t *testing.T) {
	f := newFlows(t)
	if err := f.Node.Sysctl("net.netfilter.nf_conntrack_timestamp", "1"); err != nil {
		t.Fatal(err)
	}
	f.rules(f.services(f.one, f.two))
	f.ask(f.client.NS, f.client.Addrs.V4().String()+":4010", "10.96.0.10:53")
	out, _, code := f.command("list")
	pattern := regexp.MustCompile(`^PROTOCOL +CLIENT +SERVICE +ADDRESS +ENDPOINT +STATE +AGE +EXPIRES +STALE\n` +
		`udp +[0-9.]+:4010 +shop/cart:dns +10\.96\.0\.10:53 +[0-9.]+:8080 +replied +[0-9]+s +[0-9]+s +-\n$`)
	if code != 0 || !pattern.MatchString(out) {
		t.Errorf("list: exit code %d:\n%s", code, out)
	}
}

// TestConntrackNoSource: without tables in the kernel, the error says what to do.
func TestConntrackNoSource(t *testing.T) {
	f := &flows{T: t, Topology: &testnet.Topology{Node: testnet.NamespaceForTest(t, "empty")}}
	for _, command := range []string{"list", "clean"} {
		out, errs, code := f.command(command)
		if code != 1 || out != "" || !strings.Contains(errs, "start nftproxy run, or give --kubeconfig or "+
			"--nftproxy-manifests") {
			t.Errorf("%s: exit code %d, said\n%s%s", command, code, out, errs)
		}
	}
	out, _, code := f.command("sysctl")
	if code != 0 || !strings.Contains(out, "entries are in use") {
		t.Errorf("sysctl: exit code %d, said\n%s", code, out)
	}
}

// TestConntrackGolden: what people and programs read, as it stands in
// testdata/conntrack.
func TestConntrackGolden(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(`node node-1
  address 192.168.0.2
  host-address 192.168.0.2
service-cidr 10.96.0.0/16
service kube-system/kube-dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  port dns udp 53
    endpoint 10.244.1.5:53 node-1 ready serving
    endpoint [fd00:244:1::5]:53 node-2 ready serving
service shop/cart created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.20
  port - tcp 80 node-port 30080
    endpoint 10.244.2.9:8080 node-2 ready serving
`))
	if err != nil {
		t.Fatal(err)
	}
	index := conntrack.NewIndex(conntrack.Options{})
	index.Update(s)
	index.Presume()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tuple := func(src, dst string) conntrack.Tuple {
		return conntrack.Tuple{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst)}
	}
	flows := []conntrack.Flow{
		{
			Protocol: service.UDP, Original: tuple("10.244.1.7:40001", "10.96.0.10:53"),
			Reply:  tuple("10.244.1.5:53", "10.244.1.7:40001"),
			Status: conntrack.DstNAT | conntrack.SeenReply, Timeout: 25 * time.Second, Start: now.Add(-7 * time.Second),
		},
		{
			Protocol: service.UDP, Original: tuple("10.244.1.7:40002", "10.96.0.10:53"),
			Reply:  tuple("10.244.1.4:53", "10.244.1.7:40002"),
			Status: conntrack.DstNAT | conntrack.SeenReply | conntrack.Assured, Timeout: 110 * time.Second,
			Start: now.Add(-50 * time.Hour),
		},
		{
			Protocol: service.UDP, Original: tuple("[fd00:244:1::7]:40001", "[fd00:96::a]:53"),
			Reply:  tuple("[fd00:244:1::5]:53", "[fd00:244:1::7]:40001"),
			Status: conntrack.DstNAT, Timeout: 30 * time.Second,
		},
		{
			Protocol: service.TCP, Original: tuple("203.0.113.9:51000", "192.168.0.2:30080"), Reply: tuple("10.244.2.9:8080",
				"192.168.0.2:51000"),
			Status:   conntrack.DstNAT | conntrack.SrcNAT | conntrack.SeenReply | conntrack.Assured,
			TCPState: conntrack.TCPEstablished, Timeout: 24 * time.Hour,
		},
		{
			Protocol: service.UDP, Original: tuple("10.244.1.7:40003", "10.96.0.99:53"),
			Reply:   tuple("10.96.0.99:53", "10.244.1.7:40003"),
			Timeout: 30 * time.Second,
		},
		{
			Protocol: 1, Original: tuple("10.244.1.7:77", "10.96.0.98:2048"), Reply: tuple("10.96.0.98:77", "10.244.1.7:0"),
			Timeout: 30 * time.Second,
		},
	}
	rows := []inspect.FlowRow{}
	for _, f := range flows {
		if r, ok := inspect.NewFlowRow(f, index, now); ok {
			rows = append(rows, r)
		}
	}
	one, limit := 5, 262144
	settings := sysctlList{Entries: &one, Limit: &limit, Settings: []settingRow{
		{Name: "net.netfilter.nf_conntrack_max", Current: "262144", Wanted: "131072", AtLeast: true},
		{Name: "net.netfilter.nf_conntrack_tcp_timeout_established", Current: "432000", Wanted: "86400", Differs: true},
		{Name: "net.netfilter.nf_conntrack_udp_timeout", Current: "30"},
		{Name: "net.netfilter.nf_conntrack_udp_timeout_stream", Wanted: "180",
			Error: "read net.netfilter.nf_conntrack_udp_timeout_stream: permission denied"},
	}}
	asJSON := func(b *bytes.Buffer, document any) error { return outputJSON.print(b, document, nil) }
	for name, write := range map[string]func(*bytes.Buffer) error{
		"list.txt":    func(b *bytes.Buffer) error { return writeFlows(b, rows) },
		"list.json":   func(b *bytes.Buffer) error { return asJSON(b, flowList{Source: "table", Flows: rows}) },
		"clean.json":  func(b *bytes.Buffer) error { return asJSON(b, cleanResult{Source: "table", Flows: rows[:0]}) },
		"sysctl.txt":  func(b *bytes.Buffer) error { return settings.write(b) },
		"sysctl.json": func(b *bytes.Buffer) error { return asJSON(b, settings) },
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := write(&got); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile("testdata/conntrack/" + name)
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got:\n%s\nall of it:\n%s", diff, got.String())
			}
		})
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"nftproxy/look/inspect"
	"nftproxy/look/preflight"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// loadServices writes the program of Services, in the text form of a snapshot, to the
// kernel of a namespace. No process owns the tables.
func loadServices(t *testing.T, ns *testnet.Namespace, services string) {
	t.Helper()
	s, err := gen.ReadSnapshot(strings.NewReader(services))
	if err != nil {
		t.Fatal(err)
	}
	loadSnapshot(t, ns, s)
}

func loadSnapshot(t *testing.T, ns *testnet.Namespace, s service.Snapshot) {
	t.Helper()
	clusterCIDRs, err := parseClusterCIDR("10.244.0.0/16,fd00:244::/56")
	if err != nil {
		t.Fatal(err)
	}
	p := ruleset.Compile(ruleset.Config{
		Table: ruleset.DefaultTable, Settings: service.Settings{ClusterCIDRs: clusterCIDRs},
	}, s)
	conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: ns.Fd()}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	m, err := conn.Read(p)
	if err != nil {
		t.Fatal(err)
	}
	batch, _ := nft.Adopt(m, p).Plan(p, time.Unix(0, 0))
	if err := conn.Apply(batch); err != nil {
		t.Fatal(err)
	}
}

// TestGet runs the commands of each file under testdata/get on a real kernel that has the
// file's Services, and compares what people and programs read. A section "$ COMMAND" has
// what nftproxy COMMAND prints: first to stdout, then to stderr behind "! ", then the exit
// status if it is not 0. With -update it writes these sections.
func TestGet(t *testing.T) {
	check.Archives(t, "testdata/get/*.txtar", *update, func(t *testing.T, archive *txtar.Archive) {
		ns := testnet.NamespaceForTest(t, "get")
		ran := 0
		for i := range archive.Files {
			section := &archive.Files[i]
			command, is := strings.CutPrefix(section.Name, "$ ")
			if !is {
				loadServices(t, ns, string(section.Data))
				continue
			}
			ran++
			got := transcript(t, ns, strings.Fields(command)...)
			if *update {
				section.Data = []byte(got)
			}
			if diff := cmp.Diff(string(section.Data), got); diff != "" {
				t.Errorf("nftproxy %s (-want +got):\n%s", command, diff)
			}
		}
		if ran == 0 {
			t.Error("the file has no command")
		}
	})
}

// transcript runs a command and returns what it prints, and its exit status.
func transcript(t *testing.T, ns *testnet.Namespace, args ...string) string {
	t.Helper()
	stdout, stderr, code := runIn(t, ns, args...)
	var b strings.Builder
	b.WriteString(stdout)
	for line := range strings.Lines(stderr) {
		b.WriteString("! " + line)
	}
	if code != 0 {
		b.WriteString("exit status " + string(rune('0'+code)) + "\n")
	}
	return b.String()
}

// TestGetBesideTheProxy: a running proxy owns its tables, and get reads them all the same.
func TestGetBesideTheProxy(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "owned")
	r := start(t, ns, "--nftproxy-manifests", manifest(t, webManifest("", "10.244.1.5", "fd00:244::5")))
	r.awaitSync()
	for _, resource := range []string{"services", "endpoints", "chains"} {
		if stdout, stderr, code := runIn(t, ns, "get", resource); code != 0 || strings.Count(stdout, "\n") < 2 ||
			stderr != "" {
			t.Errorf("get %s: exit code %d, printed\n%s%s", resource, code, stdout, stderr)
		}
	}
	r.end()
}

// getJSON runs a command of get that must succeed, and decodes what it prints.
func getJSON[T any](f *flows, args ...string) (list T) {
	f.Helper()
	out, errs, code := runIn(f.T, f.Node, append(append([]string{"get"}, args...), "-o", "json")...)
	if code != 0 {
		f.Fatalf("nftproxy get %s: exit code %d:\n%s", strings.Join(args, " "), code, errs)
	}
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		f.Fatalf("%v:\n%s", err, out)
	}
	return list
}

// endpoints returns a line for each row of get endpoints.
func endpoints(f *flows, args ...string) []string {
	f.Helper()
	lines := []string{}
	for _, r := range getJSON[endpointList](f, append([]string{"endpoints"}, args...)...).Endpoints {
		local := "unknown"
		if r.Local != nil {
			local = fmt.Sprint(*r.Local)
		}
		lines = append(lines, fmt.Sprintf("%s/%s %s -> %s %s, local %s, %d connections",
			r.Namespace, r.Service, inspect.PortText(r.PortName, r.Protocol, r.Port), r.Endpoint, r.State, local,
			*r.Connections))
	}
	return lines
}

// TestGetDraining: an endpoint that has left the rules is shown with its connections, from
// pods and by a node port, until they are closed.
func TestGetDraining(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two))
	conn := f.dial("10.96.0.10:80")
	f.ask(f.Outside, f.OutsideAddrs.V4().String()+":4030", f.NodeAddrs.V4().String()+":30053")
	f.want("active", endpoints(f, "shop/cart", "--address", "10.96.0.10"),
		"shop/cart 80/tcp -> ONE:8080 active, local true, 1 connections",
		"shop/cart 53/udp -> ONE:8080 active, local true, 1 connections", "shop/cart 53/udp -> [ONE6]:8080 active, local "+
			"true, 0 connections")
	f.want("nothing drains", endpoints(f, "--draining"))

	f.rules(f.services(f.two, f.two))
	f.want("draining", endpoints(f, "--draining"),
		"shop/cart 80/tcp -> ONE:8080 draining, local unknown, 1 connections", "shop/cart 53/udp -> ONE:8080 draining, "+
			"local unknown, 1 connections")
	f.want("by its address", endpoints(f, "--address", f.one.Addrs.V4().String(), "--port", "8080"),
		"shop/cart 80/tcp -> ONE:8080 draining, local unknown, 1 connections", "shop/cart 53/udp -> ONE:8080 draining, "+
			"local unknown, 1 connections")
	out, _, _ := runIn(t, f.Node, "get", "endpoints", "cart", "--port", "80", "--no-headers")
	if !strings.Contains(strings.Join(strings.Fields(out), " ")+" ", f.one.Addrs.V4().String()+":8080 - draining 1 ") {
		t.Errorf("get endpoints:\n%s", out)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for len(endpoints(f, "--draining", "--port", "80")) > 0 { // until the server has closed too
		if time.Now().After(deadline) {
			t.Fatalf("closed, and still %s", endpoints(f, "--draining", "--port", "80"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestGetAffinity: the kernel's remembered clients are shown with their endpoint and the
// time that is left, in bounded number.
func TestGetAffinity(t *testing.T) {
	f := newFlows(t)
	f.rules(fmt.Sprintf(`node node
  address %s
service shop/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  affinity 7200s
  port dns udp 53
    endpoint %s node ready serving
    endpoint %s node ready serving
`, f.NodeAddrs.V4(), at(f.one.Addrs.V4()), at(f.one.Addrs.V6())))
	f.ask(f.client.NS, f.client.Addrs.V4().String()+":4010", "10.96.0.10:53")
	f.ask(f.two.NS, f.two.Addrs.V4().String()+":4010", "10.96.0.10:53")
	f.ask(f.client.NS, "["+f.client.Addrs.V6().String()+"]:4010", "[fd00:96::a]:53")
	clients := func(args ...string) []string {
		t.Helper()
		lines := []string{}
		for _, c := range getJSON[clientList](f, append([]string{"affinity"}, args...)...).Clients {
			if c.ExpiresSeconds < 7000 || c.ExpiresSeconds > 7200 {
				t.Errorf("it expires in %d s: %+v", c.ExpiresSeconds, c)
			}
			lines = append(lines, fmt.Sprintf("%s/%s:%s %s -> %s, list %s, of %d s, stale %v", c.Namespace, c.Service,
				c.PortName, c.Client, c.Endpoint, c.List, c.TimeoutSeconds, c.Stale))
		}
		return lines
	}
	one := "shop/sticky:dns CLIENT -> ONE:8080, list cluster, of 7200 s, stale false"
	two := "shop/sticky:dns TWO -> ONE:8080, list cluster, of 7200 s, stale false"
	const six = "shop/sticky:dns CLIENT6 -> [ONE6]:8080, list cluster, of 7200 s, stale false"
	if f.client.Addrs.V4().Compare(f.two.Addrs.V4()) > 0 {
		one, two = two, one // sorted by address
	}
	f.want("all", clients(), one, two, six)
	f.want("of a client", clients("--address", f.client.Addrs.V6().String()), six)
	f.want("of an endpoint", clients("--address", f.one.Addrs.V4().String(), "--port", "8080"), one, two)
	f.want("of the Service by its address", clients("--address", "10.96.0.10"), one, two, six)
	f.want("of another port", clients("--port", "54"))
	if list := getJSON[clientList](f, "affinity", "--limit", "1"); len(list.Clients) != 1 || !list.Truncated {
		t.Errorf("--limit 1: %+v", list)
	}
	out, errs, code := runIn(t, f.Node, "get", "affinity", "--limit", "2")
	if head, _, _ := strings.Cut(out, "\n"); code != 0 || strings.Join(strings.Fields(head),
		" ") != "NAMESPACE SERVICE PORT CLIENT ENDPOINT EXPIRES" || strings.Count(out, "\n") != 3 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if diff := cmp.Diff("nftproxy: only the first 2 clients are shown; --limit 0 shows all\n", errs); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// TestCompletion: a shell completes resources, outputs, and the names of namespaces,
// Services and chains of the kernel's tables. Names that a shell could take for something
// else are left out.
func TestCompletion(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "complete")
	complete := func(args ...string) []string {
		t.Helper()
		out, errs, code := runIn(t, ns, append([]string{"__complete"}, args...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, errs)
		}
		words := []string{}
		for line := range strings.Lines(out) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
				words = append(words, word)
			}
		}
		return words
	}
	check := func(args []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(append([]string{}, want...), complete(args...)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", args, diff)
		}
	}
	check([]string{"get", "services", ""})
	loadServices(t, ns, exampleServices+`service x$(reboot)/y created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.30
  port - tcp 80
`)
	check([]string{"get", ""}, "affinity", "chains", "endpoints", "services")
	check([]string{"get", "services", ""}, "kube-system/kube-dns", "shop/cart")
	check([]string{"get", "endpoints", "shop/"}, "shop/cart")
	check([]string{"get", "affinity", "-n", "shop", ""}, "cart")
	check([]string{"get", "services", "shop/cart", ""}, "kube-system/kube-dns")
	check([]string{"get", "services", "--namespace", ""}, "kube-system", "shop")
	check([]string{"get", "services", "-o", ""}, "text", "wide", "json", "yaml")
	check([]string{"get", "chains", "ref"}, "refuse")
	for _, command := range [][]string{{"top"}, {"conntrack", "list"}, {"conntrack", "clean"}} {
		check(append(command, "--service", "shop"), "shop/cart")
	}
	for _, command := range []string{"top", "conntrack clean", "verify", "status", "explain", "trace"} {
		check(append(strings.Fields(command), "shop"), "shop/cart")
		check(append(strings.Fields(command), "-n", "shop", "ca"), "cart")
	}
	check([]string{"top", "-n", ""}, "kube-system", "shop")
	for command, flags := range map[string]map[string][]string{
		"proxies": {"await": {"nftproxy", "kube-proxy"}}, "explain": {"from": {"node"}},
		"conntrack list": {"protocol": {"tcp", "udp", "sctp"}},
		"run": {
			"nftproxy-balance": {"random", "client", "flow"}, "nftproxy-eject": {"off", "report", "on"},
			"nftproxy-counters": {"none", "tables", "metrics"}, "nftproxy-conntrack-clean-established": {"tcp", "sctp"},
			"nodeport-addresses": {"primary", "all", "localhost"}, "version": {"true", "false", "raw"},
			"detect-local-mode": {"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"},
			"proxy-mode":        {"iptables", "ipvs", "nftables"},
		},
	} {
		for flag, values := range flags {
			check(append(strings.Fields(command), "--"+flag+"="), values...)
		}
	}
	if out, _, code := runIn(t, ns, "completion", "bash"); code != 0 || !strings.Contains(out, "__start_nftproxy") {
		t.Errorf("completion bash: exit code %d, %d bytes", code, len(out))
	}
}

// TestGetHostileNames: names in tables that another process wrote do not reach a terminal
// with control characters.
func TestGetHostileNames(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "hostile")
	loadServices(t, ns, "node node-1\nservice evil\x1b[2J/a\x07b created 2026-01-01T00:00:00Z\n  cluster-ip "+
		"10.96.0.30\n  port - tcp 80\n    endpoint 10.244.1.5:80 node-1 ready serving\n")
	for _, args := range [][]string{{"services"}, {"services", "-o", "wide"}, {"services", "-o", "json"},
		{"services", "-o", "yaml"}, {"endpoints"}, {"endpoints", "\x1b[2J"}} {
		out, errs, _ := runIn(t, ns, append([]string{"get"}, args...)...)
		if all := out + errs; strings.ContainsAny(all, "\x1b\x07") || !strings.Contains(strings.ToLower(all), "x1b") &&
			!strings.Contains(all, `\u001b`) && !strings.Contains(all, `\e`) {
			t.Errorf("get %q prints %q", args, all)
		}
	}
	if a := netip.MustParseAddr("10.96.0.30"); !strings.Contains(transcript(t, ns, "get", "services"), a.String()) {
		t.Error("the Service is not shown")
	}
}

// printedRow is a row of a table for tests.
type printedRow struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
	// The numbers are of the kinds that JSON cannot tell apart.
	Whole    int64   `json:"whole,omitempty"`
	Fraction float64 `json:"fraction,omitempty"`
}

func printed(t *testing.T, o printOptions, rows ...printedRow) string {
	t.Helper()
	columns := []column[printedRow]{
		{header: "NAME", text: func(r *printedRow) string { return r.Name }},
		{header: "DETAIL", wide: true, text: func(r *printedRow) string { return r.Detail }},
	}
	var b bytes.Buffer
	if err := printRows(&b, o, columns, rows, map[string]any{"rows": rows}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPrintRows: one list of rows in each output.
func TestPrintRows(t *testing.T) {
	rows := []printedRow{{Name: "a", Detail: "first", Whole: 1_000_000_000_001, Fraction: 0.5}, {Name: "longer"}}
	for _, test := range []struct {
		o    printOptions
		want string
	}{
		{printOptions{output: outputText}, "NAME\na\nlonger\n"},
		{printOptions{output: outputWide}, "NAME     DETAIL\na        first\nlonger   -\n"},
		{printOptions{output: outputWide, noHeaders: true}, "a        first\nlonger   -\n"},
		{printOptions{output: outputYAML}, "rows:\n- detail: first\n  fraction: 0.5\n  name: a\n  whole: 1000000000001\n- " +
			"detail: \"\"\n  name: longer\n"},
		{printOptions{output: outputJSON}, "{\n  \"rows\": [\n    {\n      \"name\": \"a\",\n      \"detail\": " +
			"\"first\",\n      \"whole\": 1000000000001,\n      \"fraction\": 0.5\n    },\n    {\n      \"name\": " +
			"\"longer\",\n      \"detail\": \"\"\n    }\n  ]\n}\n"},
	} {
		if diff := cmp.Diff(test.want, printed(t, test.o, rows...)); diff != "" {
			t.Errorf("-o %s (-want +got):\n%s", test.o.output, diff)
		}
	}
	if got := printed(t, printOptions{output: outputWide}); got != "" {
		t.Errorf("a table without rows is %q", got)
	}
}

// TestPrintHostileNames: no name from a table or an API server moves a terminal's cursor,
// changes its colours, or begins a new cell or line. Programs still read it unchanged.
func TestPrintHostileNames(t *testing.T) {
	hostile := "a\x1b[31mb\tc\nd\u009b2Je\u202egnp.exe\xfff\x7f\ufffd\\x1bö"
	for _, o := range []output{outputText, outputWide, outputJSON, outputYAML} {
		text := printed(t, printOptions{output: o, noHeaders: true}, printedRow{Name: hostile, Detail: hostile})
		for _, r := range text {
			// The library leaves marks of direction in YAML as they are.
			if r != '\n' && unicode.IsControl(r) || o != outputYAML && r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("-o %s prints %q:\n%q", o, r, text)
			}
		}
		var list struct{ Rows []printedRow }
		want := strings.ToValidUTF8(hostile, "\ufffd")
		switch o {
		case outputJSON:
			if err := json.Unmarshal([]byte(text), &list); err != nil || list.Rows[0].Name != want {
				t.Errorf("JSON comes back as %+v, %v", list, err)
			}
		case outputYAML:
			if err := yaml.Unmarshal([]byte(text), &list); err != nil || list.Rows[0].Name != want {
				t.Errorf("YAML comes back as %+v, %v", list, err)
			}
		default:
			if want := `a\x1b[31mb\tc\nd\u009b2Je\u202egnp.exe\xfff\x7f` + "\ufffd" + `\x1bö`; !strings.HasPrefix(text, want) ||
				strings.Count(text, "\n") != 1 {
				t.Errorf("-o %s: %q, want %q", o, text, want)
			}
		}
	}
}

func findings() []preflight.Finding {
	return []preflight.Finding{
		{Probe: "rights", Level: preflight.Green, Found: "CAP_NET_ADMIN"},
		{Probe: "ports: health", Level: preflight.Yellow, Found: "0.0.0.0:10256 is in use", Do: "choose another address"},
		{Probe: "kernel: Services of IPv4", Level: preflight.Red, Found: "no such file or directory",
			Do: "use another kernel"},
	}
}

// TestCheckOutput: what check prints for people and for programs, and its exit status.
func TestCheckOutput(t *testing.T) {
	for _, c := range []struct {
		findings []preflight.Finding
		output   output
		file     string
		want     error
	}{
		{findings(), outputText, "testdata/check/red.txt", statusRed},
		{findings(), outputJSON, "testdata/check/red.json", statusRed},
		{findings()[:2], outputText, "testdata/check/yellow.txt", statusYellow},
		{findings()[:1], outputText, "testdata/check/green.txt", nil},
	} {
		var out bytes.Buffer
		if err := writeCheck(&out, c.findings, c.output); !errors.Is(err, c.want) {
			t.Errorf("%s: exit status %v, want %v", c.file, err, c.want)
		}
		want, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.file, diff)
		}
	}
}

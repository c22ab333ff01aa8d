package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"nftproxy/test/lib/testnet"
)

// withFlag returns the commands that have a flag, without "nftproxy " before.
func withFlag(cmd *cobra.Command, flag string) (paths []string) {
	if cmd.Flags().Lookup(flag) != nil {
		paths = append(paths, strings.TrimPrefix(cmd.CommandPath(), "nftproxy "))
	}
	for _, sub := range cmd.Commands() {
		paths = append(paths, withFlag(sub, flag)...)
	}
	return paths
}

// TestOutputWords: all commands with --output take the same words, and complete them.
func TestOutputWords(t *testing.T) {
	words := []string{"text", "wide", "json", "yaml"}
	paths := withFlag(newCommand(), outputFlag)
	if len(paths) < 14 {
		t.Errorf("only %q have --output", paths)
	}
	for _, path := range paths {
		for _, bad := range []string{"", "name", "JSON ", "jsn", "json,yaml"} {
			var out, errs bytes.Buffer
			code := execute(t.Context(), append(strings.Fields(path), "-o", bad), &out, &errs)
			if code != 2 || !strings.Contains(errs.String(), fmt.Sprintf("--output: %q: ", bad)) ||
				!strings.Contains(errs.String(), "want text, wide, json or yaml\n") {
				t.Errorf("%s -o %q: exit status %d: %s%s", path, bad, code, &out, &errs)
			}
		}
		var out bytes.Buffer
		if code := execute(t.Context(), append(append([]string{"__complete"}, strings.Fields(path)...), "-o", ""), &out,
			io.Discard); code != 0 || !strings.HasPrefix(out.String(), strings.Join(words, "\n")+"\n:") {
			t.Errorf("%s -o completes to %q, exit status %d", path, &out, code)
		}
	}
}

// twoWebs are Services of the same name in two namespaces; one of them has two ports.
const twoWebs = refusingManifest + `---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: test}
spec:
  clusterIP: 10.96.0.12
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: shop}
spec:
  clusterIP: 10.96.0.13
  clusterIPs: [10.96.0.13, "fd00:96::d"]
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
  - {name: web, port: 80, protocol: TCP}
`

// served is a node with a running proxy and the Services of twoWebs.
type served struct {
	*testing.T
	ns       *testnet.Namespace
	manifest string
}

// servedStatus is where the node's metrics server is, and servedFlows the flag by which it follows connections.
const (
	servedStatus = "127.0.0.1:10249"
	servedFlows  = "--nftproxy-flows=1/16"
)

func newServed(t *testing.T) *served {
	s := &served{T: t, ns: testnet.NamespaceForTest(t, "same"), manifest: manifest(t, twoWebs)}
	if lo, err := s.ns.Handle().LinkByName("lo"); err != nil {
		t.Fatal(err)
	} else if err := s.ns.Handle().LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	r := start(t, s.ns, "--nftproxy-manifests", s.manifest, "--hostname-override", "node-1", "--metrics-bind-address",
		servedStatus, servedFlows)
	r.awaitSyncAndServer(servedStatus)
	t.Cleanup(r.end)
	return s
}

// lines has, for each command with --output, a command line that needs no other thing than a served node. trace is
// apart: it waits for packets.
func (s *served) lines() map[string][]string {
	from := []string{"--from", "203.0.113.9"}
	objects := []string{"--nftproxy-manifests", s.manifest, "--hostname-override", "node-1", servedFlows}
	return map[string][]string{
		"version": nil, "get services": nil, "get endpoints": nil, "get chains": nil, "get affinity": nil, "check": nil,
		"conntrack list": nil, "conntrack clean": {"--dry-run"}, "conntrack sysctl": nil, "proxies": nil,
		"top": {"--interval", "100ms"}, "verify": objects, "status": {"--address", servedStatus},
		"flows":   {"--address", servedStatus},
		"explain": append([]string{"10.96.0.10:80"}, from...),
	}
}

// shape is a document with the same text for all numbers, which differ from one run to the next.
func shape(document any) any {
	switch d := document.(type) {
	case map[string]any:
		for k := range d {
			d[k] = shape(d[k])
		}
	case []any:
		for i := range d {
			d[i] = shape(d[i])
		}
	case float64:
		return "a number"
	case string:
		return regexp.MustCompile(`[0-9]+`).ReplaceAllString(d, "N")
	}
	return document
}

// TestOutputs: what each command prints as JSON and as YAML is the same document, and wide is text where there are no
// more columns.
func TestOutputs(t *testing.T) {
	s := newServed(t)
	lines := s.lines()
	want := slices.DeleteFunc(withFlag(newCommand(), outputFlag), func(path string) bool { return path == "trace" })
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(maps.Keys(lines))); diff != "" {
		t.Fatalf("commands with --output (-there +tested):\n%s", diff)
	}
	for path, args := range lines {
		line := append(strings.Fields(path), args...)
		run := func(o output) string {
			out, errs, code := runIn(t, s.ns, append(slices.Clone(line), "-o", string(o))...)
			if code != 0 && !(path == "check" && code < 3) && !(path == "explain" && code == 1) {
				t.Errorf("%s -o %s: exit status %d: %s", path, o, code, errs)
			}
			return out
		}
		var fromJSON, fromYAML any
		if err := json.Unmarshal([]byte(run(outputJSON)), &fromJSON); err != nil || fromJSON == nil {
			t.Errorf("%s -o json: %v", path, err)
		}
		text := run(outputYAML)
		if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil || strings.HasPrefix(text, "{") {
			t.Errorf("%s -o yaml: %v", path, err)
		}
		if diff := cmp.Diff(shape(fromJSON), shape(fromYAML)); diff != "" {
			t.Errorf("%s: YAML is not as JSON (-json +yaml):\n%s", path, diff)
		}
		plain, wide := run(outputText), run(outputWide)
		if heads := firstLines(plain, wide); plain == "" != (wide == "") || !strings.HasPrefix(path, "get ") && heads[0] !=
			heads[1] {
			t.Errorf("%s: text begins with %q, and wide with %q", path, heads[0], heads[1])
		}
	}
}

func firstLines(texts ...string) (lines []string) {
	for _, text := range texts {
		line, _, _ := strings.Cut(text, "\n")
		lines = append(lines, line)
	}
	return lines
}

// TestTraceOutputs: a trace of a Service by its name prints a document for each packet, as JSON on a line, as YAML
// behind a line of its own.
func TestTraceOutputs(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two))
	client := f.client.Addrs.V4().String()
	port := 4100
	traced := func(args ...string) string {
		r := f.trace(append([]string{"--packets", "2", "--timeout", "2m", "--from", client}, args...)...)
		for range 2 {
			port++
			a, err := f.client.NS.AskFrom(t.Context(), testnet.TCP, netip.MustParseAddrPort(fmt.Sprintf("%s:%d", client, port)),
				netip.MustParseAddrPort("10.96.0.10:80"), time.Minute)
			if err != nil || a.Outcome != testnet.Answered {
				t.Fatalf("%+v, %v", a, err)
			}
		}
		out, errs, code := r.end()
		if code != 0 {
			t.Fatalf("exit status %d: %s", code, errs)
		}
		return out
	}
	var fromJSON, fromYAML []any
	for line := range strings.Lines(traced("-o", "json", "cart:http", "-n", "shop")) {
		var document any
		if err := json.Unmarshal([]byte(line), &document); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		fromJSON = append(fromJSON, document)
	}
	d := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(traced("-o", "yaml", "shop/cart:80/tcp")), 100)
	for {
		var document any
		if err := d.Decode(&document); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		fromYAML = append(fromYAML, document)
	}
	if len(fromJSON) != 2 || len(fromYAML) != 2 {
		t.Fatalf("%d documents as JSON, %d as YAML", len(fromJSON), len(fromYAML))
	}
	keys := func(document any) []string { return slices.Sorted(maps.Keys(document.(map[string]any))) }
	for i := range fromJSON {
		if diff := cmp.Diff(keys(fromJSON[i]), keys(fromYAML[i])); diff != "" {
			t.Errorf("YAML is not as JSON (-json +yaml):\n%s", diff)
		}
		if got := fromYAML[i].(map[string]any)["service"]; got != "shop/cart" {
			t.Errorf("traced %v", got)
		}
	}
}

// TestServiceNames: all commands about Services take them in the same forms, and say what is wrong with a name.
func TestServiceNames(t *testing.T) {
	s := newServed(t)
	about := map[string]string{"explain": ":http", "trace": ":http"} // what follows a name
	lines := s.lines()
	lines["explain"], lines["trace"] = []string{"--from", "203.0.113.9"}, []string{"--timeout", "1s"}
	for _, path := range withFlag(newCommand(), "namespace") {
		if path == "get chains" {
			continue // Its names are those of chains.
		}
		args, known := lines[path]
		if !known {
			t.Errorf("%s is not tested", path)
		}
		run := func(name string, more ...string) (string, string, int) {
			line := slices.Concat(strings.Fields(path), args, []string{"-o", "json"}, more, []string{name + about[path]})
			return runIn(t, s.ns, line...)
		}
		first, errs, code := run("shop/web")
		wantCode := map[string]int{"trace": 1}[path] // No packet comes.
		if code != wantCode || path != "trace" && !strings.Contains(first, "web") && !empty(first) {
			t.Errorf("%s shop/web: exit status %d: %s\n%s", path, code, errs, first)
		}
		if strings.Contains(first, `"test/web"`) || strings.Contains(first, `"empty"`) {
			t.Errorf("%s shop/web prints others:\n%s", path, first)
		}
		for _, form := range [][]string{{"web", "-n", "shop"}, {"svc/web", "-n", "shop"}, {"service/shop/web"},
			{"shop/web", "-n", "shop"}} {
			again, errs, code := run(form[0], form[1:]...)
			var a, b any
			_, _ = json.Unmarshal([]byte(first), &a), json.Unmarshal([]byte(again), &b) // They are compared.
			if diff := cmp.Diff(shape(a), shape(b)); diff != "" || code != wantCode {
				t.Errorf("%s %q: exit status %d: %s\n%s", path, form, code, errs, diff)
			}
		}
		for bad, want := range map[string]string{
			"shop/wbe": `service "shop/wbe" (did you mean shop/web?)`, "nobody/web": `service "nobody/web"`,
			"absent": `"absent"`, "shop/": "is no name of a Service", "shop/web/x": "is no name of a Service",
			"Web": "is no name of a Service", "we\x1b[31mb": "is no name of a Service", "a..b": "is no name of a Service",
			"": "is no name of a Service", "shop/" + strings.Repeat("w", 64): "is no name of a Service",
		} {
			if path == "conntrack clean" && bad == "absent" {
				want = "want NAMESPACE/NAME, or -n NAMESPACE"
			}
			_, errs, code := run(bad)
			if code != 2 || !strings.Contains(errs, want) || strings.Contains(errs, "\x1b") {
				t.Errorf("%s %q: exit status %d: %q, want %q", path, bad, code, errs, want)
			}
		}
		if _, errs, code := run("shop/web", "-n", "test"); code != 2 ||
			!strings.Contains(errs, `"shop/web" is not in the namespace "test"`) {
			t.Errorf("%s shop/web -n test: exit status %d: %s", path, code, errs)
		}
		if _, errs, code := run("web", "-n", "no/space"); code != 2 || !strings.Contains(errs, "no name of a namespace") {
			t.Errorf("%s web -n no/space: exit status %d: %s", path, code, errs)
		}
	}
}

// empty says whether a document has nothing but empty lists.
func empty(document string) bool { return strings.Contains(document, "[]") }

// TestExplainService: explain and trace find a Service's address in the tables, and explain in the objects, too; where
// the name is that of several Services or ports, they list them.
func TestExplainService(t *testing.T) {
	s := newServed(t)
	objects := []string{"--nftproxy-manifests", s.manifest, "--hostname-override", "node-1"}
	for _, source := range [][]string{nil, objects} {
		for line, want := range map[string]string{
			"web:80 -n shop":                  `"destination": "10.96.0.10:80/`,
			"shop/web":                        `"destination": "10.96.0.10:80/`,
			"dns:53/udp -n shop":              `"destination": "10.96.0.13:53/udp`,
			"shop/dns:dns-tcp":                `"protocol": "tcp"`,
			"empty":                           `"destination": "10.96.0.11:80/`,
			"shop/dns:web --from=2001:db8::9": `"destination": "[fd00:96::d]:80/`,
			"web:http":                        "several Services have that name: shop/web, test/web: add -n NAMESPACE",
			"shop/dns":                        "dns 53/udp, dns-tcp 53/tcp, web 80/tcp: name one",
			"shop/dns:53":                     `2 of them are "53"`,
			"shop/dns:54":                     `0 of them are "54"`,
			"shop/web:http/udp":               `0 of them are "http"`,
			"shop/web:http/x":                 "want tcp, udp or sctp",
			"shop/web:":                       "the name or number of a port after the colon",
			"shop/web:80 --from=2001:db8::9":  "no cluster IP of the client's family: [10.96.0.10]",
			"10.96.0.300:80":                  "want ADDR:PORT",
		} {
			args := slices.Concat([]string{"explain", "-o", "json"}, source, strings.Fields(line))
			if !strings.Contains(line, "--from") {
				args = append(args, "--from", "203.0.113.9")
			}
			out, errs, code := runIn(t, s.ns, args...)
			found := strings.HasPrefix(want, `"`)
			if !strings.Contains(out+errs, want) || found == (code == 2) {
				t.Errorf("explain %s %q: exit status %d: %s\n%.300s, want %s", line, source, code, errs, out, want)
			}
		}
	}
}

// TestUntilStdinCloses: a command that goes on ends when its standard input does, and only if that is asked for.
func TestUntilStdinCloses(t *testing.T) {
	s := newServed(t)
	for _, line := range []string{"trace --timeout 1h 10.96.0.10:80", "top --interval 1h"} {
		for _, asked := range []bool{true, false} {
			args := strings.Fields(line)
			if asked {
				args = append(args, "--until-stdin-closes")
			}
			cmd := exec.CommandContext(t.Context(), "nftproxy", args...)
			stdin, err := cmd.StdinPipe()
			if err == nil {
				err = s.ns.Start(cmd)
			}
			if err == nil {
				err = stdin.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			patience := time.Minute
			if !asked {
				patience = 2 * time.Second
			}
			select {
			case <-ended:
				if !asked {
					t.Errorf("%s ended by itself", line)
				}
			case <-time.After(patience):
				if asked {
					t.Errorf("%s went on", line)
				}
				_ = cmd.Process.Kill()
				<-ended
			}
		}
	}
}

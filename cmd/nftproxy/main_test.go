package main

import (
	"bytes"
	"context"
	"encoding"
	"errors"
	"maps"
	"net"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"nftproxy": main, testServer: serveAt})
}

// TestScripts runs the commands as a person would, and checks their output and exit code.
// They run in the test's own namespace and must not change the machine's settings.
func TestScripts(t *testing.T) {
	before := conntrack.Sysctls{}.Plan(conntrack.Files{})
	t.Cleanup(func() {
		same := cmp.Comparer(func(a, b error) bool { return (a == nil) == (b == nil) })
		if diff := cmp.Diff(before, conntrack.Sysctls{}.Plan(conntrack.Files{}), same); diff != "" {
			t.Errorf("the machine's settings have changed (-before +after):\n%s", diff)
		}
	})
	testscript.Run(t, testscript.Params{Dir: "testdata/script", UpdateScripts: false})
}

// example is one line of a command's help.
type example struct {
	cmd  *cobra.Command
	line string
	args []string
}

// examples returns the examples in the help of a command and of those below it.
func examples(t *testing.T, cmd *cobra.Command) []example {
	t.Helper()
	var all []example
	for line := range strings.Lines(cmd.Example) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		// Two blanks begin the words about an example.
		call, _, _ := strings.Cut(line, "  ")
		call = strings.TrimPrefix(call, "kubectl -n kube-system exec POD -- /")
		call = strings.TrimPrefix(call, "sudo ")
		words := strings.Fields(call)
		if len(words) == 0 || words[0] != "nftproxy" {
			t.Errorf("%s: the example %q is no command of nftproxy", cmd.CommandPath(), line)
			continue
		}
		all = append(all, example{cmd, line, words[1:]})
	}
	for _, sub := range cmd.Commands() {
		all = append(all, examples(t, sub)...)
	}
	return all
}

// TestExamplesParse: every example in the help of every command is a command line that
// nftproxy takes.
func TestExamplesParse(t *testing.T) {
	all := examples(t, newCommand())
	for _, e := range all {
		root := newCommand()
		cmd, rest, err := root.Find(e.args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		switch {
		case err != nil:
			t.Errorf("%s: %q: %v", e.cmd.CommandPath(), e.line, err)
		case !cmd.Runnable():
			t.Errorf("%s: %q runs nothing", e.cmd.CommandPath(), e.line)
		}
	}
	if len(all) < 20 {
		t.Errorf("only %d examples were found", len(all))
	}
}

// TestCommandsHaveHelp: every command says what it does, in lines that fit a terminal, and
// those with flags or arguments give examples.
func TestCommandsHaveHelp(t *testing.T) {
	without := []string{"nftproxy", "nftproxy version", "nftproxy wait"}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no short help", cmd.CommandPath())
		}
		if strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the short help ends with a full stop", cmd.CommandPath())
		}
		if cmd.Example == "" && !slices.Contains(without, cmd.CommandPath()) {
			t.Errorf("%s has no examples", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if len(line) > 101 {
				t.Errorf("%s: a line of the help has %d characters: %q", cmd.CommandPath(), len(line)-1, line)
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newCommand())
}

// harmless are the commands whose examples run in a namespace with a small program: they
// change nothing, or nothing beyond the namespace, and end by themselves.
func harmless() []string {
	return []string{
		"nftproxy get", "nftproxy get services", "nftproxy get endpoints", "nftproxy get chains", "nftproxy get affinity",
		"nftproxy conntrack", "nftproxy conntrack list", "nftproxy conntrack clean", "nftproxy conntrack sysctl",
		"nftproxy explain",
	}
}

// TestExamplesRun: the examples of commands that do no harm succeed on a node with the
// Services that they name.
func TestExamplesRun(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "examples")
	loadServices(t, ns, exampleServices)
	const loopback = 1
	services := &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)}
	if err := ns.Handle().RouteAdd(&netlink.Route{LinkIndex: loopback, Dst: services}); err != nil {
		t.Fatal(err) // without a route to it a node reaches no cluster IP
	}
	ran := map[string]bool{}
	for _, e := range examples(t, newCommand()) {
		cmd, _, err := newCommand().Find(e.args)
		if err != nil || !slices.Contains(harmless(), cmd.CommandPath()) || strings.Contains(e.line, "--kubeconfig") {
			continue
		}
		ran[cmd.CommandPath()] = true
		stdout, stderr, code := runIn(t, ns, e.args...)
		if code != 0 || stdout == "" && !strings.Contains(stderr, "found\n") && !strings.Contains(stderr, "flows") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", e.line, code, stdout, stderr)
		}
	}
	for _, path := range harmless() {
		if !ran[path] && path != "nftproxy get" && path != "nftproxy conntrack" {
			t.Errorf("no example of %s ran", path)
		}
	}
}

// runIn runs nftproxy in a namespace.
func runIn(t *testing.T, ns *testnet.Namespace, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runCommand(t, ns, exec.CommandContext(t.Context(), "nftproxy", args...))
}

func runCommand(t *testing.T, ns *testnet.Namespace, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	exit := (*exec.ExitError)(nil)
	if err := ns.Run(cmd); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// exampleServices has what the examples name.
const exampleServices = `node node-1
  host-address 192.168.0.2
  address 192.168.0.2
service-cidr 10.96.0.0/16
service kube-system/kube-dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  port dns udp 53
    endpoint 10.244.1.5:53 node-1 ready serving
    endpoint [fd00:244:1::5]:53 node-1 ready serving
    endpoint 10.244.2.5:53 node-2 ready serving
  port dns-tcp tcp 53
    endpoint 10.244.1.5:53 node-1 ready serving
    endpoint 10.244.2.5:53 node-2 ready serving
service shop/cart created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.20
  affinity 10800s
  port http tcp 80 node-port 30080
    endpoint 10.244.2.9:8080 node-2 ready serving
`

// goTalk says whether a text has words that only people who write Go understand.
func goTalk(text string) bool {
	return regexp.MustCompile(`\b(netip|strconv|net|time|url|fmt|pflag|csv|json)\.[A-Z]|ParseAddr|invalid syntax|parse ` +
		`error|invalid argument|missing unit|0x[0-9a-f]+`).MatchString(text)
}

// badTexts has, for each flag that is a text, bad values with words that the error
// says; none for one that takes any text.
func badTexts() map[string]map[string]string {
	address := map[string]string{
		"nonsense": `"nonsense" is not ADDRESS:PORT`, "127.0.0.1:http": `the port "http" is not in 0 to 65535`,
		"127.0.0.1:65536": "not in 0 to 65535", "::1]:80": "is not ADDRESS:PORT",
	}
	return map[string]map[string]string{
		"cluster-cidr": {
			"10.0.0.0": `"10.0.0.0" is not a range: it has no /LENGTH`, "10.0.0.0/33": `the length "33" is not in 0 to 32`,
			"pods": `"pods" is not an IP address`,
			"1.0.0.0/8,3.0.0.0/8,5.0.0.0/8,7.0.0.0/8,9.0.0.0/8,11.0.0.0/8,13.0.0.0/8,15.0.0.0/8," +
				"17.0.0.0/8": "at most 8 CIDRs of each family",
		},
		"nftproxy-no-masquerade-cidrs": {
			"10.0.0.0": `"10.0.0.0" is not a range: it has no /LENGTH`, "pods": `"pods" is not an IP address`,
			"1.0.0.0/8,3.0.0.0/8,5.0.0.0/8,7.0.0.0/8,9.0.0.0/8,11.0.0.0/8,13.0.0.0/8,15.0.0.0/8," +
				"17.0.0.0/8": "want at most 8 of each family",
		},
		"nodeport-addresses": {"10.0.0.0": "it has no /LENGTH", "all,10.0.0.0/8,all": `"all" stands twice`,
			"some": "none of primary, all and localhost", `"10.0.0.0/8`: "not a list separated by commas",
			"primray":             `"primray": did you mean primary? want primary, all, localhost or ADDRESS/LENGTH`,
			"primary,localhots":   `"localhots": did you mean localhost?`,
			"10.0.0.0/8,Al":       `"Al": did you mean all?`,
			"Primary,192.0.2.0/8": `"Primary": did you mean primary?`},
		"detect-local-mode": {"Guess": `"Guess": want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix`,
			"ClusterCIDRs": "did you mean ClusterCIDR?"},
		"hostname-override": {
			" ": "empty node name", "${NODE_NAME}": `"${NODE_NAME}" is a variable that nothing has replaced`,
			"$(NODE_NAME)": "needs an env with that name", "$NODE_NAME": "a variable",
			"{{ node }}": "a variable", "node_1": `"node_1" is not the name of a Node`,
			"node-1,node-2": "is not the name of a Node",
		},
		"kubeconfig":         {"no-such-file": `"no-such-file": no such file or directory`},
		"nftproxy-manifests": {"no-such-directory": `"no-such-directory": no such file or directory`},
		"master": {":::": `":::" is not the address of an API server`,
			"https://:x y": "is not the address of an API server"},
		"nftproxy-table": {"": "is not a valid table name", "a b": `"a b" is not a valid table name`,
			strings.Repeat("t", 64): "1 to 63"},
		"healthz-bind-address": address, "metrics-bind-address": address, "nftproxy-probe-bind-address": address,
		"nftproxy-counters": {"all": `"all": want none, tables or metrics`, "metric": "did you mean metrics?",
			"": "want none, tables or metrics"},
		"nftproxy-metrics-tls-cert-file": {"no-such-file": `"no-such-file": --nftproxy-metrics-tls-private-key-file ` +
			`is empty: want both files or none`},
		"nftproxy-metrics-tls-private-key-file": {"no-such-file": "--nftproxy-metrics-tls-cert-file is empty"},
		"nftproxy-healthz-tls-cert-file":        {"no-such-file": "--nftproxy-healthz-tls-private-key-file is empty"},
		"nftproxy-healthz-tls-private-key-file": {"no-such-file": "--nftproxy-healthz-tls-cert-file is empty"},
		"nftproxy-flows":                        {"1/3": "not off, 1/1, or 1/N", "on": `"on": not off`, "": `"": not off`},
		"nftproxy-balance": {"hash": `"hash": want random, client or flow`, "cleint": "did you mean client?",
			"": "want random, client or flow", "least-connections": "want random, client or flow"},
		"nftproxy-eject": {"yes": `"yes": want off, report or on`, "onn": `"onn": did you mean on? want off, report or on`,
			"": "want off, report or on"},
		"nftproxy-startup-taint": {"a b": `"a b" is not the key of a taint`, "x/": "is not the key of a taint"},
		"nftproxy-protected-node-ports": {"ssh": `"ssh": want a port, 1 to 65535`, "0": "want a port",
			"22,70000": `"70000"`},
		"nftproxy-service-proxy-name": {"a b": `"a b" is not the value of a label`,
			"-": "is not the value of a label"},
		"nftproxy-conntrack-clean-established": {"udp": `"udp": want tcp or sctp`, "sctpp": "did you mean sctp?"},
		"nftproxy-dns-udp-timeouts": {"5s": `"5s": neither off nor two times: not UNREPLIED,REPLIED`,
			"7s,15s": "with UNREPLIED of 5s", "": "neither off"},
		"nftproxy-conntrack-sysctl-dir": {},
		"config":                        {"no-such-file": `open no-such-file: no such file`},
		"write-config-to":               {"no-such-directory/file": "no such file"},
		"feature-gates":                 {"WinDSR": `"WinDSR": want NAME=true or NAME=false`},
		"logging-format": {"yaml": `"yaml": want text or json`,
			"JSON": `"JSON": did you mean json? want text or json`},
		"version": {"maybe": `"maybe": want true, false or raw`},
		"proxy-mode": {"userspace": `"userspace": want iptables, ipvs, nftables or nothing`,
			"iptable": "did you mean iptables?"},
		"bind-address":  {"node-1": `"node-1" is not an IP address`},
		"oom-score-adj": {"low": `"low": want -1000 to 1000`, "1001": "want -1000 to 1000"},
		// These have no effect, whatever they say.
		"ipvs-exclude-cidrs": {}, "ipvs-scheduler": {}, "kube-api-content-type": {}, "show-hidden-metrics-for-version": {},
		"vmodule":                   {},
		"log-json-info-buffer-size": {}, "log-text-info-buffer-size": {},
		// by --detect-local-mode; see testdata/script/usage.txtar
		"pod-bridge-interface": {}, "pod-interface-name-prefix": {},
	}
}

// TestFlagErrors gives every flag of run, and of the commands that have others, bad
// values: the command ends with 2, and one line names the flag and says in words
// what is wrong.
func TestFlagErrors(t *testing.T) {
	var commands []*cobra.Command
	var collect func(*cobra.Command)
	collect = func(c *cobra.Command) {
		commands = append(commands, c)
		for _, sub := range c.Commands() {
			collect(sub)
		}
	}
	collect(newCommand())
	texts := badTexts()
	for _, c := range commands {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			var bad map[string]string
			switch kind := f.Value.Type(); kind {
			case "int":
				bad = map[string]string{"many": "is not a whole number", "": "is not a whole number",
					"99999999999999999999": "is too large a number"}
			case "uint16":
				bad = map[string]string{"many": "is not a number of 0 to 65535", "-1": "is not a number of 0 to 65535",
					"70000": "is too large a number"}
			case "float32":
				bad = map[string]string{"many": "is not a number"}
			case "duration":
				bad = map[string]string{"10": "is not a duration, such as 30s", "soon": "is not a duration, such as 30s"}
			case "bool":
				bad = map[string]string{"perhaps": "is neither true nor false"}
			case "string", "stringSlice":
				known := false
				if bad, known = texts[f.Name]; c.Name() == "run" && !known {
					t.Errorf("--%s: what is a bad value of it?", f.Name)
				}
			default:
				t.Errorf("--%s is a %s: what is a bad value of that?", f.Name, kind)
			}
			if kind := f.Value.Type(); c.Name() != "run" && strings.HasPrefix(kind, "string") {
				return // Those that run has too are checked there, the others in testdata/script.
			}
			for value, words := range bad {
				wantFlagError(t, strings.Fields(c.CommandPath())[1:], f.Name, value, words)
			}
		})
	}
}

func wantFlagError(t *testing.T, command []string, flag, value, words string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args := append(command, "--"+flag+"="+value)
	// One that is taken all the same is to do nothing to the machine.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	harmless := slices.Clone(args)
	if command[0] == "run" {
		harmless = append([]string{"run", "--nftproxy-conntrack-sysctl-dir=" + t.TempDir()}, args[1:]...)
	}
	code := execute(ended, harmless, &stdout, &stderr)
	text := stderr.String()
	if code != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, "--"+flag+": ") ||
		!strings.Contains(text, words) || goTalk(text) {
		t.Errorf("nftproxy %s ends with %d and says %q; want 2, and words with %q", strings.Join(args, " "), code, text,
			words)
	}
}

// TestWait: the command ends with its context, as by SIGTERM, and not before.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const until = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), until)
		defer cancel()
		began := time.Now()
		var out bytes.Buffer
		if code := execute(ctx, []string{"wait"}, &out, &out); code != 0 || out.Len() > 0 || time.Since(began) != until {
			t.Errorf("wait ends after %v with %d and says %q; want %v, 0 and nothing", time.Since(began), code, out.String(),
				until)
		}
	})
}

// described are what the help of a command has to name: the columns of its table, those that -o wide adds, and the
// type of its JSON.
type described struct {
	usual, wide []string
	list        any
}

// describe leaves out the columns that say which Service a row is about.
func describe[R any](columns []column[R], list any) described {
	d := described{list: list}
	for _, c := range columns {
		switch {
		case slices.Contains([]string{"NAMESPACE", "NAME", "SERVICE"}, c.header):
		case c.wide:
			d.wide = append(d.wide, c.header)
		default:
			d.usual = append(d.usual, c.header)
		}
	}
	return d
}

// TestGetHelp: the help of each command of get explains just the columns that the command prints, in their order, and
// names each field of its JSON.
func TestGetHelp(t *testing.T) {
	commands := map[string]described{
		"services":  describe(serviceColumns(), serviceList{}),
		"endpoints": describe(endpointColumns(), endpointList{}),
		"chains":    describe(chainColumns(), chainList{}),
		"affinity":  describe(clientColumns(), clientList{}),
	}
	explained := regexp.MustCompile(`(?m)^  ([A-Z][A-Z()-]+) `)
	capitals := regexp.MustCompile(`\b[A-Z][A-Z-]+\b`)
	for _, cmd := range newGetCommand().Commands() {
		want, known := commands[cmd.Name()]
		if !known {
			t.Errorf("get %s: this test does not know its columns", cmd.Name())
			continue
		}
		table, rest, _ := strings.Cut(cmd.Long, "\n-o wide adds ")
		wide, _, _ := strings.Cut(rest, "\n\n")
		_, fields, found := strings.Cut(rest, "\n-o json and -o yaml print ")
		if !found {
			t.Errorf("get %s: the help lacks -o wide or -o json", cmd.Name())
		}
		var usual []string
		for _, match := range explained.FindAllStringSubmatch(table, -1) {
			usual = append(usual, match[1])
		}
		if diff := cmp.Diff(want.usual, usual); diff != "" {
			t.Errorf("get %s: the columns (-printed +explained):\n%s", cmd.Name(), diff)
		}
		added := slices.DeleteFunc(capitals.FindAllString(wide, -1), func(word string) bool {
			return word == "TCP" || word == "IP"
		})
		if diff := cmp.Diff(want.wide, added); diff != "" {
			t.Errorf("get %s: the columns of -o wide (-printed +explained):\n%s", cmd.Name(), diff)
		}
		for _, name := range jsonNames(reflect.TypeOf(want.list)) {
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(fields) {
				t.Errorf("get %s: the help does not name the JSON field %s", cmd.Name(), name)
			}
		}
	}
}

// TestGetHelpNamesOptions: the help of get services names each annotation that its column OPTIONS can have, and no
// other.
func TestGetHelpNamesOptions(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(`node n
  address 192.168.0.2
service a/asks created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  external-ip 198.51.100.1
  external-policy Local
  option balance client
  option external-failover pass
  option source-ranges 203.0.113.0/24
  option flows 1/64
  option tcp-established-timeout 2h
  option udp-timeouts 30s,10m
  port t tcp 80 node-port 30080
    endpoint 10.0.0.1:80 other ready serving
    endpoint 10.0.0.2:80 other ready serving
  port u udp 80
    endpoint 10.0.0.1:80 other ready serving
service a/ranges created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  option port-ranges 100-200/TCP
  port ranges tcp ranges=100-200
    endpoint 10.0.0.1:0 other ready serving
service a/asleep created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.3
  option no-endpoints hold
  port t tcp 80
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	back := ruleset.ReadBack(ruleset.Compile(ruleset.Config{Table: "t",
		Settings: service.Settings{Flows: 16}}, s).Model(), "t", s.Node)
	for name := range s.Services.All() {
		for key := range back.Services.At(name).Options.All() {
			want[key] = true
		}
	}
	cmd, _, err := newGetCommand().Find([]string{"services"})
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(cmd.Long, "as far as the tables do it: ")
	list, _, _ = strings.Cut(list, ")")
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), strings.FieldsFunc(list, func(r rune) bool {
		return strings.ContainsRune(", \n", r)
	})); diff != "" {
		t.Errorf("get services: the options (-printed +explained):\n%s", diff)
	}
}

// TestConntrackListHelp: the help of conntrack list names each field of its JSON.
func TestConntrackListHelp(t *testing.T) {
	cmd, _, err := newConntrackCommand().Find([]string{"list"})
	if err != nil {
		t.Fatal(err)
	}
	_, fields, _ := strings.Cut(cmd.Long, "\n-o json and -o yaml print ")
	for _, name := range jsonNames(reflect.TypeOf(inspect.FlowRow{})) {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(fields) {
			t.Errorf("conntrack list: the help does not name the JSON field %s", name)
		}
	}
}

// jsonNames lists the names of the fields that a value of the type has in JSON, and those of the values in it.
func jsonNames(of reflect.Type) []string {
	switch of.Kind() {
	case reflect.Slice, reflect.Pointer:
		return jsonNames(of.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	if of.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return nil
	}
	var names []string
	for _, field := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
			names = append(names, jsonNames(field.Type)...)
		}
	}
	return names
}

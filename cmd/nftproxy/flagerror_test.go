package main

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// goTalk says whether a text has words that only people who write Go understand.
func goTalk(text string) bool {
	return regexp.MustCompile(`\b(netip|strconv|net|time|url|fmt|pflag|csv|json)\.[A-Z]|ParseAddr|invalid syntax|parse error|invalid argument|missing unit|0x[0-9a-f]+`).MatchString(text)
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
			"pods": `"pods" is not an IP address`, "1.0.0.0/8,3.0.0.0/8,5.0.0.0/8,7.0.0.0/8,9.0.0.0/8,11.0.0.0/8,13.0.0.0/8,15.0.0.0/8,17.0.0.0/8": "at most 8 CIDRs of each family",
		},
		"nodeport-addresses": {"10.0.0.0": "it has no /LENGTH", "all,10.0.0.0/8,all": `"all" stands twice`, "some": "none of primary, localhost and all", `"10.0.0.0/8`: "not a list separated by commas"},
		"detect-local-mode":  {"Guess": `"Guess": want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix`},
		"hostname-override": {
			" ": "empty node name", "${NODE_NAME}": `"${NODE_NAME}" is a variable that nothing has replaced`, "$(NODE_NAME)": "needs an env with that name", "$NODE_NAME": "a variable",
			"{{ node }}": "a variable", "node_1": `"node_1" is not the name of a Node`, "node-1,node-2": "is not the name of a Node",
		},
		"kubeconfig":           {"no-such-file": `"no-such-file": no such file or directory`},
		"nftproxy-manifests":   {"no-such-directory": `"no-such-directory": no such file or directory`},
		"master":               {":::": `":::" is not the address of an API server`, "https://:x y": "is not the address of an API server"},
		"nftproxy-table":       {"": "is not a valid table name", "a b": `"a b" is not a valid table name`, strings.Repeat("t", 64): "1 to 63"},
		"healthz-bind-address": address, "metrics-bind-address": address, "nftproxy-probe-bind-address": address,
		"nftproxy-counters":                    {"all": `"all": want none, tables or metrics`, "": "want none, tables or metrics"},
		"nftproxy-startup-taint":               {"a b": `"a b" is not the key of a taint`, "x/": "is not the key of a taint"},
		"nftproxy-protected-node-ports":        {"ssh": `"ssh": want a port, 1 to 65535`, "0": "want a port", "22,70000": `"70000"`},
		"nftproxy-service-proxy-name":          {"a b": `"a b" is not the value of a label`, "-": "is not the value of a label"},
		"nftproxy-conntrack-clean-established": {"udp": `"udp": want tcp or sctp`},
		"nftproxy-conntrack-sysctl-dir":        {},
		"config":                               {"no-such-file": `open no-such-file: no such file`},
		"write-config-to":                      {"no-such-directory/file": "no such file"},
		"feature-gates":                        {"WinDSR": `"WinDSR": want NAME=true or NAME=false`},
		"version":                              {"maybe": `"maybe": want true, false or raw`},
		"proxy-mode":                           {"userspace": `"userspace": want iptables, ipvs, nftables or nothing`},
		"bind-address":                         {"node-1": `"node-1" is not an IP address`},
		"oom-score-adj":                        {"low": `"low": want -1000 to 1000`, "1001": "want -1000 to 1000"},
		// These have no effect, whatever they say.
		"ipvs-exclude-cidrs": {}, "ipvs-scheduler": {}, "kube-api-content-type": {}, "show-hidden-metrics-for-version": {}, "vmodule": {},
		"logging-format": {}, "log-json-info-buffer-size": {}, "log-text-info-buffer-size": {},
		"pod-bridge-interface": {}, "pod-interface-name-prefix": {}, // by --detect-local-mode; see testdata/script/usage.txtar
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
				bad = map[string]string{"many": "is not a whole number", "": "is not a whole number", "99999999999999999999": "is too large a number"}
			case "uint16":
				bad = map[string]string{"many": "is not a number of 0 to 65535", "-1": "is not a number of 0 to 65535", "70000": "is too large a number"}
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
	if code != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, "--"+flag+": ") || !strings.Contains(text, words) || goTalk(text) {
		t.Errorf("nftproxy %s ends with %d and says %q; want 2, and words with %q", strings.Join(args, " "), code, text, words)
	}
}

package main

import (
	"bytes"
	"errors"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"nftproxy/test/lib/testnet"
)

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
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "nftproxy", args...)
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

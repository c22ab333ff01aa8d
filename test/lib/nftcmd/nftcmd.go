// Package nftcmd promises to run the nft command in any network namespace, for tests and
// benchmarks. Where the command is missing, it installs nft, if that is permitted.
//
// The proxy itself never runs nft, and does not import this package.
package nftcmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"nftproxy/test/lib/aptget"
)

// Variable is an environment variable that names another nft to use.
const Variable = "NFT"

// ErrMissing says that nft is missing and cannot be installed.
var ErrMissing = errors.New("no nft command")

// Command is an nft command.
type Command struct{ path string }

// Namespace is a network namespace that can run a command.
type Namespace interface {
	Run(*exec.Cmd) error
}

// TB has the methods of testing.TB that ForTest needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// ForTest returns the nft command. Where SKIP_PRIVILEGED is set in the environment, it
// skips the test. Without a command it skips the test too, or fails it if CI or
// REQUIRE_PRIVILEGED is set.
func ForTest(t TB) Command {
	t.Helper()
	if os.Getenv("SKIP_PRIVILEGED") != "" {
		t.Skipf("SKIP_PRIVILEGED is set: needs nft, and a kernel to load rules into")
	}
	c, err := Find()
	switch {
	case err == nil:
	case os.Getenv("CI") == "" && os.Getenv("REQUIRE_PRIVILEGED") == "":
		t.Skipf("%v", err)
	default:
		t.Fatalf("%v", err)
	}
	return c
}

// Find returns the command that the variable NFT names. Otherwise it looks for nft in the
// PATH, and otherwise installs it by apt-get. The error matches ErrMissing.
func Find() (Command, error) {
	if path := os.Getenv(Variable); path != "" {
		return Command{path}, nil
	}
	path, err := aptget.Command("nft", "nftables")
	if err != nil {
		return Command{}, fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return Command{path}, nil
}

// At is the command at a path.
func At(path string) Command { return Command{path} }

// Path is the command's path.
func (c Command) Path() string { return c.path }

// Run runs nft in the namespace and returns its standard output. The error has its
// standard error output.
func (c Command) Run(ns Namespace, stdin string, args ...string) (string, error) {
	var out, complaints bytes.Buffer
	cmd := exec.Command(c.path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &complaints
	if err := ns.Run(cmd); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", cmd, err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// Load executes an nft script in one transaction.
func (c Command) Load(ns Namespace, script string) error {
	_, err := c.Run(ns, script, "-f", "-")
	return err
}

// Ruleset lists all tables of the namespace.
func (c Command) Ruleset(ns Namespace) (string, error) {
	return c.Run(ns, "", "list", "ruleset")
}

// Package nftcmd runs the nft command for tests, in any network namespace, and
// installs it where it is missing and that is permitted.
//
// The proxy itself never runs nft: only tests and benchmarks import this.
package nftcmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"nftproxy/internal/aptget"
)

// Variable is an environment variable that names another nft to use.
const Variable = "NFT"

// ErrMissing says that there is no nft and that it could not be installed.
var ErrMissing = errors.New("no nft command")

// Command is an nft command.
type Command struct{ path string }

// Namespace is where a command can be run.
type Namespace interface {
	Run(*exec.Cmd) error
}

// TB is the part of testing.TB that ForTest needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// ForTest returns the nft command. Without it the test is skipped, or fails if
// CI or REQUIRE_PRIVILEGED is set in the environment.
func ForTest(t TB) Command {
	t.Helper()
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

// Find returns the command that the variable NFT names, or the nft of the path,
// or one that it has just installed by apt-get. The error matches ErrMissing.
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

// Path is where the command is.
func (c Command) Path() string { return c.path }

// Run runs nft in the namespace and returns what it prints. The error has what
// it complains about.
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

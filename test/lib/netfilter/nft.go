package netfilter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"nftproxy/test/lib/aptget"
)

// nftVariable is an environment variable that names another nft to use.
const nftVariable = "NFT"

// ErrNoNFT says that nft is missing and cannot be installed.
var ErrNoNFT = errors.New("no nft command")

// NFT is an nft command, which the proxy never runs.
type NFT struct{ path string }

// Namespace is a network namespace that can run a command.
type Namespace interface {
	Run(*exec.Cmd) error
}

// TB has the methods of testing.TB that NFTForTest needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// NFTForTest returns the nft command. Where SKIP_PRIVILEGED is set in the environment, it
// skips the test. Without a command it skips the test too, or fails it if CI or
// REQUIRE_PRIVILEGED is set.
func NFTForTest(t TB) NFT {
	t.Helper()
	if os.Getenv("SKIP_PRIVILEGED") != "" {
		t.Skipf("SKIP_PRIVILEGED is set: needs nft, and a kernel to load rules into")
	}
	c, err := FindNFT()
	switch {
	case err == nil:
	case os.Getenv("CI") == "" && os.Getenv("REQUIRE_PRIVILEGED") == "":
		t.Skipf("%v", err)
	default:
		t.Fatalf("%v", err)
	}
	return c
}

// FindNFT returns the command that the variable NFT names. Otherwise it looks for nft in the
// PATH, and otherwise installs it by apt-get. The error matches ErrNoNFT.
func FindNFT() (NFT, error) {
	if path := os.Getenv(nftVariable); path != "" {
		return NFT{path}, nil
	}
	path, err := aptget.Command("nft", "nftables")
	if err != nil {
		return NFT{}, fmt.Errorf("%w: %w", ErrNoNFT, err)
	}
	return NFT{path}, nil
}

// NFTAt is the command at a path.
func NFTAt(path string) NFT { return NFT{path} }

// Path is the command's path.
func (c NFT) Path() string { return c.path }

// Run runs nft in the namespace and returns its standard output. The error has its
// standard error output.
func (c NFT) Run(ns Namespace, stdin string, args ...string) (string, error) {
	var out, complaints bytes.Buffer
	cmd := exec.Command(c.path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &complaints
	if err := ns.Run(cmd); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", cmd, err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// Load executes an nft script in one transaction.
func (c NFT) Load(ns Namespace, script string) error {
	_, err := c.Run(ns, script, "-f", "-")
	return err
}

// Ruleset lists all tables of the namespace.
func (c NFT) Ruleset(ns Namespace) (string, error) {
	return c.Run(ns, "", "list", "ruleset")
}

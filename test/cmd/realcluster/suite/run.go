package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Options say how tests run.
type Options struct {
	// Tools is the folder with the programs of Provide.
	Tools string
	// Kubeconfig is that of the cluster's administrator.
	Kubeconfig string
	// Reports takes the report of each test as JSON and as JUnit's XML.
	Reports string
	// Focus is a regular expression for the names of the tests to run; "" is all.
	Focus string
	// Processes is how many tests run at a time.
	Processes int
	// Nodes is how many nodes the cluster has: tests that need more skip themselves.
	Nodes int
	// Has is what the cluster has beside the service proxy.
	Has Additions
}

// attempts is how often a test may fail, less one: Kubernetes' own CI runs the tests
// with --flake-attempts=2.
const attempts = 2

// Run runs the tests and writes how they went. run runs a command where the nodes
// of the cluster can be reached. The error says that a test failed.
func Run(ctx context.Context, o Options, run func(context.Context, []string) error, out io.Writer) error {
	if err := os.MkdirAll(o.Reports, 0o755); err != nil {
		return err
	}
	path := filepath.Join(o.Reports, "report.json")
	// An earlier report must not pass for that of this run.
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	failed := run(ctx, command(o, path))
	if exit := new(exec.ExitError); failed != nil && !errors.As(failed, &exit) {
		return failed
	}
	results, err := readReport(path, o.Has)
	if err != nil {
		return errors.Join(failed, err)
	}
	fmt.Fprint(out, results.text())
	if n := len(results.failed); n > 0 {
		return fmt.Errorf("%d tests of %s failed; %s has the log of each", n, sig, path)
	}
	if results.passed == 0 {
		return errors.Join(errors.New("no test passed"), failed)
	}
	if failed != nil {
		return fmt.Errorf("no test failed, and yet: %w", failed)
	}
	return nil
}

func command(o Options, report string) []string {
	args := []string{
		filepath.Join(o.Tools, ginkgoTool), "run", "--no-color", "--succinct", "--silence-skips",
		"--procs=" + strconv.Itoa(o.Processes), "--flake-attempts=" + strconv.Itoa(attempts), "--timeout=8h",
		"--output-dir=" + filepath.Dir(report), "--json-report=" + filepath.Base(report), "--junit-report=junit.xml",
		"--label-filter=" + labelFilter(o.Has),
	}
	for _, name := range skippedNames(o.Has) {
		args = append(args, "--skip="+name)
	}
	if o.Focus != "" {
		args = append(args, "--focus="+o.Focus)
	}
	return append(args, filepath.Join(o.Tools, suiteTool), "--",
		"--provider=skeleton", "--kubeconfig="+o.Kubeconfig, "--kubectl-path="+filepath.Join(o.Tools, "kubectl"),
		"--num-nodes="+strconv.Itoa(o.Nodes), "--e2e-output-dir="+filepath.Dir(report), "--dump-logs-on-failure=true")
}

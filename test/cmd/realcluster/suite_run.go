package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
)

// suiteOptions say how tests run.
type suiteOptions struct {
	// tools is the folder with the programs of provideSuite.
	tools string
	// kubeconfig is that of the cluster's administrator.
	kubeconfig string
	// reports takes the report of each test as JSON and as JUnit's XML.
	reports string
	// focus is a regular expression for the names of the tests to run; "" is all.
	focus string
	// processes is how many tests run at a time.
	processes int
	// nodes is how many nodes the cluster has: tests that need more skip themselves.
	nodes int
	// has is what the cluster has beside the service proxy.
	has suiteAdditions
}

// attempts is how often a test may fail, less one: Kubernetes' own CI runs the tests
// with --flake-attempts=2.
const attempts = 2

// newSuiteCommand makes the command e2e.
func newSuiteCommand(dir *string) *cobra.Command {
	o := suiteOptions{tools: toolsDir()}
	cmd := &cobra.Command{
		Use: "e2e", Short: "Run Kubernetes' own tests of sig-network on a cluster of up --e2e", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.tools, err = filepath.Abs(o.tools); err != nil {
				return err
			}
			o.kubeconfig, o.reports = adminKubeconfig(*dir), filepath.Join(*dir, "e2e")
			if o.nodes, err = countNodes(cmd.Context(), *dir); err != nil {
				return err
			}
			if o.has, err = whatItHas(cmd.Context(), *dir); err != nil {
				return err
			}
			return runSuite(cmd.Context(), *dir, o, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&o.focus, "focus", "", "regular `expression` for the names of the tests to run")
	cmd.Flags().IntVar(&o.processes, "procs", 6, "`number` of tests at a time")
	return cmd
}

// runSuite runs the tests, where the nodes of the cluster can be reached, and writes how they
// went. The error says that a test failed.
func runSuite(ctx context.Context, dir string, o suiteOptions, out io.Writer) error {
	if err := os.MkdirAll(o.reports, 0o755); err != nil {
		return err
	}
	path := filepath.Join(o.reports, "report.json")
	// An earlier report must not pass for that of this run.
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	failed := outside(ctx, dir, suiteCommand(o, path))
	if exit := new(exec.ExitError); failed != nil && !errors.As(failed, &exit) {
		return failed
	}
	results, err := readReport(path, o.has)
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

func suiteCommand(o suiteOptions, report string) []string {
	args := []string{
		filepath.Join(o.tools, ginkgoTool), "run", "--no-color", "--succinct", "--silence-skips",
		"--procs=" + strconv.Itoa(o.processes), "--flake-attempts=" + strconv.Itoa(attempts), "--timeout=8h",
		"--output-dir=" + filepath.Dir(report), "--json-report=" + filepath.Base(report), "--junit-report=junit.xml",
		"--label-filter=" + labelFilter(o.has),
	}
	for _, name := range skippedNames(o.has) {
		args = append(args, "--skip="+name)
	}
	if o.focus != "" {
		args = append(args, "--focus="+o.focus)
	}
	return append(args, filepath.Join(o.tools, suiteTool), "--",
		"--provider=skeleton", "--kubeconfig="+o.kubeconfig, "--kubectl-path="+filepath.Join(o.tools, "kubectl"),
		"--num-nodes="+strconv.Itoa(o.nodes), "--e2e-output-dir="+filepath.Dir(report), "--dump-logs-on-failure=true")
}

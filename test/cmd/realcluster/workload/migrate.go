package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/lib/controlplane"
)

// pagePath is the page with the steps, from the root of the repository, which is
// the working directory.
const pagePath = "docs/migrate.md"

// migration is one way there and back.
type migration struct {
	*Web
	page page
	load *Load
	// loyal are the clients of session affinity.
	loyal []*loyalClient
}

// step is one line of the result.
type step struct {
	name string
	// section is the beginning of the title of its section; "" for what the page
	// does not say.
	section string
	// run returns what it has seen, in a few words.
	run func(context.Context, *migration, *section) (string, error)
}

func steps() []step {
	return []step{
		{"the check of each node", "Before", checkNodes},
		{"an overlay with the placeholder is refused", "", placeholder},
		{"an address that does not answer is reported", "", wrongAddress},
		{"nftproxy beside kube-proxy", "Step 1", beside},
		{"a clean-up while nftproxy runs", "Step 6", cleanTooEarly},
		{"one Service only", "Optional", oneService},
		{"kube-proxy off", "Step 2", stopKubeProxy},
		{"kube-proxy's left-overs removed", "Step 3", removeKubeProxyRules},
		{"a changed ConfigMap reaches the pods", "", changeConfiguration},
		{"going back: kube-proxy serves beside nftproxy", "Step 4", startKubeProxy},
		{"going back: nftproxy deleted", "Step 5", deleteNftproxy},
		{"going back: nftproxy's left-overs removed", "Step 6", removeOurRules},
	}
}

// stepTimeout bounds each step. A kubelet looks at a ConfigMap about every minute.
const stepTimeout = 30 * time.Minute

// Migrate takes all steps in turn, and writes a line for each. It ends at the first that
// fails, since the others rest on it. A request that fails in a step fails the step.
func Migrate(ctx context.Context, c *cluster.Cluster, out io.Writer) (err error) {
	p, err := readPage(pagePath)
	if err != nil {
		return err
	}
	web, err := Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	t := &migration{Web: web, page: p}
	if t.load, err = web.AllLoad(ctx, func(l *Load) error { return t.addFlows(ctx, l) }); err != nil {
		return err
	}
	failed := t.all(ctx, out)
	seen, err := t.load.End()
	if err != nil {
		return errors.Join(failed, err)
	}
	fmt.Fprintf(out, "under load: %s\n", seen)
	return failed
}

func (t *migration) all(ctx context.Context, out io.Writer) error {
	for _, s := range steps() {
		began := time.Now()
		before, lostBefore := t.load.Seen()
		seen, err := t.take(ctx, s)
		requests, lost := t.load.Seen()
		if err == nil && lost > lostBefore {
			err = fmt.Errorf("%s; %d of %d requests failed", seen, lost-lostBefore, requests-before)
		}
		if err == nil {
			err = t.staysLoyal()
		}
		if err != nil {
			return fmt.Errorf("FAIL  %s: %w (%v)", s.name, err, time.Since(began).Round(100*time.Millisecond))
		}
		fmt.Fprintf(out, "pass  %s: %s; 0 of %d requests failed (%v)\n", s.name, seen, requests-before,
			time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}

func (t *migration) take(ctx context.Context, s step) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if s.section == "" {
		return s.run(ctx, t, nil)
	}
	section, err := t.page.section(s.section)
	if err != nil {
		return "", err
	}
	return s.run(ctx, t, section)
}

// shell runs a script of the page where an operator would: outside of the nodes, in
// the root of the repository.
func (t *migration) shell(ctx context.Context, script string) (string, error) {
	dir, _ := controlplane.ToolsDir()
	tools, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-e", "-c", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+t.Plane.AdminKubeconfig(), "PATH="+tools+":"+os.Getenv("PATH"))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := t.Outside.Run(cmd); err != nil {
		return out.String(), fmt.Errorf("%s\n%w: %s", script, err, out.String())
	}
	return out.String(), nil
}

// shells runs scripts in turn, and returns what all of them wrote.
func (t *migration) shells(ctx context.Context, scripts ...string) (string, error) {
	var all strings.Builder
	for _, s := range scripts {
		out, err := t.shell(ctx, s)
		all.WriteString(out)
		if err != nil {
			return all.String(), err
		}
	}
	return all.String(), nil
}

// onNode runs a script on a node, as a person there would. An exit status is an
// error only if it is not among those that are expected.
func (t *migration) onNode(ctx context.Context, node, script string, expected ...int) (string, error) {
	cmd, err := t.Shell(ctx, node, script)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		for _, status := range expected {
			if exit.ExitCode() == status {
				return string(out), nil
			}
		}
	}
	if err != nil {
		return string(out), fmt.Errorf("on %s: %s\n%w: %s", node, script, err, out)
	}
	return string(out), nil
}

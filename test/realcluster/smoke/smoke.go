// Package smoke tries a real cluster: whether Services work as users and
// operators see them, while pods, nodes and the proxy itself come and go.
//
// It changes nothing of the cluster that it does not change back, and leaves
// nothing in it.
package smoke

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"nftproxy/test/realcluster/bringup"
	"nftproxy/test/realcluster/workload"
)

// fixture is what all tests use.
type fixture struct{ *workload.Web }

// test is one line of the result.
type test struct {
	name string
	// run returns what it has seen, in a few words.
	run func(context.Context, *fixture) (string, error)
}

func tests() []test {
	return []test{
		{"services by name", byName},
		{"cluster IPs of both families", clusterIPs},
		{"node ports of each node from outside", nodePorts},
		{"externalTrafficPolicy Local", localPolicy},
		{"rolling update of a Deployment under load", updateDeployment},
		{"rolling update of the DaemonSet nftproxy under load", updateProxy},
		{"drain of a node under load", drainNode},
		{"a node joins, and leaves", joinNode},
	}
}

// timeout bounds each test: pods end after 15 s or more, one after the other.
const timeout = 5 * time.Minute

// Run runs all tests in turn and writes a line for each. The error says how many
// failed.
func Run(ctx context.Context, c *bringup.Cluster, out io.Writer) (err error) {
	web, err := workload.Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	f := &fixture{web}
	failed := 0
	for _, t := range tests() {
		began := time.Now()
		seen, err := t.runFor(ctx, f)
		verdict := "pass"
		if err != nil {
			failed++
			verdict, seen = "FAIL", err.Error()
		}
		fmt.Fprintf(out, "%s  %s: %s (%v)\n", verdict, t.name, seen, time.Since(began).Round(100*time.Millisecond))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d smoke tests failed", failed, len(tests()))
	}
	fmt.Fprintf(out, "%d smoke tests passed\n", len(tests()))
	return nil
}

func (t test) runFor(ctx context.Context, f *fixture) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return t.run(ctx, f)
}

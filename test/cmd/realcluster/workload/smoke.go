package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"nftproxy/test/cmd/realcluster/cluster"
)

// fixture is what all tests use.
type fixture struct{ *Web }

// test is one line of the result.
type test struct {
	name string
	// run returns what it has seen, in a few words.
	run func(context.Context, *fixture) (string, error)
}

// tests are all, in order. policies says that the cluster enforces NetworkPolicies.
func tests(policies bool) []test {
	all := []test{
		{"services by name", byName},
		{"cluster IPs of both families", clusterIPs},
		{"node ports of each node from outside", nodePorts},
		{"kubectl nftproxy", askCluster},
		{"kubectl nftproxy trace and top", askStreams},
		{"kubectl nftproxy flows and map", askFlows},
		{"kubectl nftproxy of a conflict", askConflict},
		{"kubectl nftproxy status of a node that is ill", askIll},
		{"externalTrafficPolicy Local", localPolicy},
		{"externalTrafficPolicy Local for pods", localPolicyForPods},
		{"rolling update of a Deployment under load", updateDeployment},
		{"rolling update of the DaemonSet nftproxy under load", updateProxy},
		{"drain of a node under load", drainNode},
		{"a node joins, and leaves", joinNode},
	}
	if policies {
		all = append([]test{{"NetworkPolicies", enforcePolicy}}, all...)
	}
	return all
}

// Smoke tries the Services of a cluster as users and operators see them, while pods, nodes and the proxy come and go.
// It runs all tests in turn and writes a line for each. The error says how many failed.
func Smoke(ctx context.Context, c *cluster.Cluster, out io.Writer) (err error) {
	web, err := Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	f := &fixture{web}
	failed := 0
	all := tests(len(c.Policies()) > 0)
	for _, t := range all {
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
		return fmt.Errorf("%d of %d smoke tests failed", failed, len(all))
	}
	fmt.Fprintf(out, "%d smoke tests passed\n", len(all))
	return nil
}

func (t test) runFor(ctx context.Context, f *fixture) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return t.run(ctx, f)
}

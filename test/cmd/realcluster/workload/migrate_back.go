package workload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// startKubeProxy: the page's command waits until kube-proxy has its rules.
func startKubeProxy(ctx context.Context, t *migration, s *section) (string, error) {
	if _, err := t.shell(ctx, s.do[0]); err != nil {
		return "", err
	}
	if len(s.check) != 1 {
		return "", fmt.Errorf("the page has %d commands that wait for kube-proxy, not one", len(s.check))
	}
	out, err := t.shell(ctx, s.check[0])
	if err != nil {
		return "", err
	}
	const want = "kube-proxy has rules for every frontend of nftproxy"
	if n := strings.Count(out, want); n != len(t.Nodes()) {
		return "", fmt.Errorf("%d of %d pods say %q:\n%s", n, len(t.Nodes()), want, out)
	}
	return "kube-proxy has all rules on each node", nil
}

// deleteNftproxy: no object of nftproxy is left, and kube-proxy takes its ports.
func deleteNftproxy(ctx context.Context, t *migration, s *section) (string, error) {
	if _, err := t.shells(ctx, s.do...); err != nil {
		return "", err
	}
	if err := t.awaitNoPods(ctx, "app.kubernetes.io/name="+nftproxy); err != nil {
		return "", err
	}
	if err := t.nothingLeft(ctx); err != nil {
		return "", err
	}
	return "no object left, kube-proxy has the health port", t.awaitHealthServer(ctx, kubeProxy)
}

// nothingLeft looks for objects with nftproxy in their names. Events stay for an hour.
func (t *migration) nothingLeft(ctx context.Context) error {
	out, err := t.shell(ctx, `for kind in $(kubectl api-resources --verbs=list -o name); do
  case $kind in events*) continue ;; esac
  kubectl get $kind -A -o name
done`)
	if err != nil {
		return err
	}
	var left []string
	objects := 0
	for name := range strings.FieldsSeq(out) {
		objects++
		if strings.Contains(name, nftproxy) {
			left = append(left, name)
		}
	}
	if objects == 0 {
		return errors.New("the cluster seems to have no objects")
	}
	if len(left) > 0 {
		return fmt.Errorf("left in the cluster: %s", strings.Join(left, ", "))
	}
	return nil
}

// removeOurRules: the command for one node cleans it, the DaemonSet cleans the others,
// and nothing is left.
func removeOurRules(ctx context.Context, t *migration, s *section) (string, error) {
	// The second command is for one node.
	if _, err := t.onNode(ctx, t.Nodes()[0], s.do[1]); err != nil {
		return "", err
	}
	if _, err := t.shell(ctx, s.do[0]); err != nil {
		return "", err
	}
	if err := t.awaitNoPods(ctx, "app.kubernetes.io/name=nftproxy-cleanup"); err != nil {
		return "", err
	}
	for _, node := range t.Nodes() {
		out, err := t.onNode(ctx, node, "nft list tables")
		if err != nil {
			return "", err
		}
		if strings.Contains(out, nftproxy) {
			return "", fmt.Errorf("%s has tables: %s", node, out)
		}
	}
	return "no table of nftproxy on any node, no object left", t.nothingLeft(ctx)
}

// lookPeriod is the time between two looks of again.
const lookPeriod = 500 * time.Millisecond

// again repeats a look until it finds no error.
func again(ctx context.Context, look func() error) error {
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

package workload

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"nftproxy/test/cmd/realcluster/bringup"
)

//go:embed manifests/policy.yaml
var policyManifest string

// enforcePolicy: a NetworkPolicy that lets nobody in closes the pods to a pod that asks the Service, and one that lets in the client
// pods and the nodes' network opens them. The second one stays in force for the tests that follow.
func enforcePolicy(ctx context.Context, f *fixture) (string, error) {
	if err := f.applyPolicy(ctx, "[]"); err != nil {
		return "", err
	}
	if err := f.awaitWeb(ctx, false); err != nil {
		return "", fmt.Errorf("a NetworkPolicy that lets nobody in: %w", err)
	}
	var blocks []string
	for _, p := range bringup.NodeNetworks() {
		blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: %q}}", p))
	}
	rule := fmt.Sprintf("[{from: [{podSelector: {matchLabels: {app: client}}}, %s], ports: [{port: 8080}, {port: 8081, protocol: UDP}]}]", strings.Join(blocks, ", "))
	if err := f.applyPolicy(ctx, rule); err != nil {
		return "", err
	}
	if err := f.awaitWeb(ctx, true); err != nil {
		return "", fmt.Errorf("a NetworkPolicy that lets the clients in: %w", err)
	}
	return fmt.Sprintf("pods on %d nodes had no answer from cluster IPs of %d families, and then had one again", len(f.Nodes()), len(f.ClusterIPs)), nil
}

func (f *fixture) applyPolicy(ctx context.Context, ingress string) error {
	return f.Plane.Apply(ctx, strings.NewReplacer("NAMESPACE", Namespace, "INGRESS", ingress).Replace(policyManifest))
}

// awaitWeb returns once a pod on each node has, or has not, an answer of the Service web: engines learn of a policy sooner or later.
func (f *fixture) awaitWeb(ctx context.Context, open bool) error {
	clients, err := f.Clients(ctx)
	if err != nil {
		return err
	}
	for node, addrs := range clients {
		for _, to := range f.ClusterIPs {
			for {
				err := f.askWeb(ctx, addrs[0], to)
				if (err == nil) == open {
					break
				}
				if ctx.Err() != nil {
					return errors.Join(fmt.Errorf("%s to %v: open: %v, wanted %v", node, to, !open, open), err)
				}
			}
		}
	}
	return nil
}

// askWeb asks once. A request that a policy drops has no answer.
func (f *fixture) askWeb(ctx context.Context, client, to netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := f.Ask(ctx, client, "http", to.String(), 80, 1)
	return err
}

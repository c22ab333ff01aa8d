package workload

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/cmd/realcluster/cluster"
)

//go:embed manifests/policy.yaml
var policyManifest string

// enforcePolicy: a NetworkPolicy that lets nobody in closes the pods to a pod that asks the Service, and one that lets
// in the client pods and the nodes' network opens them. The second one stays in force for the tests that follow.
func enforcePolicy(ctx context.Context, f *fixture) (string, error) {
	if err := f.applyPolicy(ctx, "[]"); err != nil {
		return "", err
	}
	var closed []netip.AddrPort
	for _, a := range f.ClusterIPs {
		family := corev1.IPv4Protocol
		if a.Is6() {
			family = corev1.IPv6Protocol
		}
		if slices.Contains(f.Policies(), family) {
			closed = append(closed, netip.AddrPortFrom(a, 80))
		}
	}
	if err := f.awaitWeb(ctx, closed, false); err != nil {
		return "", fmt.Errorf("a NetworkPolicy that lets nobody in: %w", err)
	}
	var blocks []string
	for _, p := range cluster.NodeNetworks() {
		blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: %q}}", p))
	}
	rule := fmt.Sprintf("[{from: [{podSelector: {matchLabels: {app: client}}}, %s], ports: [{port: 8080}, {port: 8081, "+
		"protocol: UDP}]}]", strings.Join(blocks, ", "))
	if err := f.applyPolicy(ctx, rule); err != nil {
		return "", err
	}
	// Each node opens its own pods in its own time, and an answer of the Service says so of one.
	open, err := f.webPods(ctx)
	if err != nil {
		return "", err
	}
	if err := f.awaitWeb(ctx, append(open, closed...), true); err != nil {
		return "", fmt.Errorf("a NetworkPolicy that lets the clients in: %w", err)
	}
	return fmt.Sprintf("pods on %d nodes had no answer from cluster IPs of %d families, and then had one again",
		len(f.Nodes()), len(closed)), nil
}

// webPods are the addresses of the pods of web, of both families, with the port that they serve HTTP on.
func (f *fixture) webPods(ctx context.Context) ([]netip.AddrPort, error) {
	pods, err := f.Pods(ctx, "app=web")
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, p := range pods {
		for _, ip := range p.Status.PodIPs {
			a, err := netip.ParseAddr(ip.IP)
			if err != nil {
				return nil, err
			}
			all = append(all, netip.AddrPortFrom(a, podPort))
		}
	}
	return all, nil
}

func (f *fixture) applyPolicy(ctx context.Context, ingress string) error {
	return f.Plane.Apply(ctx, strings.NewReplacer("NAMESPACE", Namespace, "INGRESS", ingress).Replace(policyManifest))
}

// awaitWeb returns once a pod on each node has, or has not, an answer of web at each of these addresses: engines learn
// of a policy sooner or later.
func (f *fixture) awaitWeb(ctx context.Context, addrs []netip.AddrPort, open bool) error {
	clients, err := f.Clients(ctx)
	if err != nil {
		return err
	}
	for node, client := range clients {
		for _, to := range addrs {
			for {
				err := f.askWeb(ctx, client[0], to)
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
func (f *fixture) askWeb(ctx context.Context, client netip.Addr, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := f.Ask(ctx, client, "http", to.Addr().String(), to.Port(), 1)
	return err
}

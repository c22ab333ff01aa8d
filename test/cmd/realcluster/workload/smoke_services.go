package workload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"nftproxy/test/cmd/realcluster/cluster"
)

// byName: a pod on each node reaches a Service by its names, by TCP and UDP, and
// all endpoints answer.
func byName(ctx context.Context, f *fixture) (string, error) {
	return f.askFromEachNode(ctx, 20,
		target{"http", "web", 80}, target{"http", "web." + Namespace + ".svc.cluster.local", 80},
		target{"udp", "web." + Namespace, 81})
}

// clusterIPs: the same by cluster IPs.
func clusterIPs(ctx context.Context, f *fixture) (string, error) {
	var targets []target
	for _, a := range f.ClusterIPs {
		targets = append(targets, target{"http", a.String(), 80}, target{"udp", a.String(), 81})
	}
	if len(targets) != 4 {
		return "", fmt.Errorf("the Service web has cluster IPs %v, not one of each family", f.ClusterIPs)
	}
	return f.askFromEachNode(ctx, 20, targets...)
}

// target is a Service port as a pod asks for it.
type target struct {
	protocol, host string
	port           uint16
}

// askFromEachNode asks each target from a pod on each node. Requests of one
// client to one target must reach more than one endpoint.
func (f *fixture) askFromEachNode(ctx context.Context, times int, targets ...target) (string, error) {
	clients, err := f.Clients(ctx)
	if err != nil {
		return "", err
	}
	if len(clients) != len(f.Nodes()) {
		return "", fmt.Errorf("%d of %d nodes have a client", len(clients), len(f.Nodes()))
	}
	all := map[string]bool{}
	var errs []error
	for _, addrs := range clients {
		for _, t := range targets {
			answers, err := f.Ask(ctx, addrs[0], t.protocol, t.host, t.port, times)
			own := map[string]bool{}
			for _, a := range answers {
				all[a], own[a] = true, true
			}
			if err == nil && len(own) < 2 {
				err = fmt.Errorf("only %v answered %d requests of %v for %v", answers[0], times, addrs[0], t)
			}
			errs = append(errs, err)
		}
	}
	if len(all) != 3 {
		errs = append(errs, fmt.Errorf("%d of 3 endpoints answered", len(all)))
	}
	return fmt.Sprintf("%d requests from %d nodes, %d endpoints answered", len(clients)*len(targets)*times, len(clients),
		len(all)), errors.Join(errs...)
}

// nodePorts: a node port answers on each address of each node, with all
// endpoints.
func nodePorts(ctx context.Context, f *fixture) (string, error) {
	const times = 20
	var errs []error
	asked := 0
	for _, node := range f.Nodes() {
		for _, a := range f.Addrs(node) {
			to := netip.AddrPortFrom(a, f.Port)
			all := map[string]bool{}
			for range times {
				asked++
				answer, err := f.Get(ctx, to, "/hostname")
				if err != nil {
					errs = append(errs, fmt.Errorf("%v: %w", to, err))
					break
				}
				all[answer] = true
			}
			if len(all) < 2 {
				errs = append(errs, fmt.Errorf("%v: %d endpoints answered", to, len(all)))
			}
		}
	}
	return fmt.Sprintf("%d requests to IPv4 and IPv6 addresses of %d nodes", asked, len(f.Nodes())), errors.Join(errs...)
}

// localPolicy: a node with an endpoint answers by that one, which sees the
// client's address.
func localPolicy(ctx context.Context, f *fixture) (string, error) {
	pods, err := f.Pods(ctx, "app=web")
	if err != nil {
		return "", err
	}
	var errs []error
	nodes := map[string]bool{}
	for _, p := range pods {
		node := p.Spec.NodeName
		nodes[node] = true
		answer, err := f.Get(ctx, netip.AddrPortFrom(f.Addrs(node)[0], f.LocalPort), "/clientip")
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", node, err))
			continue
		}
		if client, err := netip.ParseAddrPort(answer); err != nil || !cluster.IsOutside(client.Addr()) {
			errs = append(errs, fmt.Errorf("%s: the endpoint saw the client %q", node, answer))
		}
	}
	return fmt.Sprintf("endpoints on %d nodes saw the client's own address", len(nodes)), errors.Join(errs...)
}

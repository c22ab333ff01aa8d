package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// names knows who has an address: a Service, a pod or a Node. What may not be read stays without names.
type names struct {
	cluster *cluster.Cluster
	nodes   []corev1.Node
	known   map[netip.Addr]holder
	// external are the holders of spec.externalIPs. Anybody may write these, so they count last.
	external map[netip.Addr]holder
	// lookups is how many addresses may still be looked up.
	lookups int
}

// holder is who has an address; the zero one is nobody who is known.
type holder struct {
	// name is svc/NAMESPACE/NAME, pod/NAMESPACE/NAME or node/NAME.
	name string
	// node is where the address is; empty for a Service's.
	node string
}

const (
	// maxLookups bounds how many addresses are looked up one by one, and lookupPatience how long one may take.
	maxLookups     = 30
	lookupPatience = 5 * time.Second
)

// readNames lists Nodes, and the Services of all namespaces, or where that may not be of one.
func readNames(ctx context.Context, of *cluster.Cluster, namespace string) (*names, error) {
	n := &names{cluster: of, known: map[netip.Addr]holder{}, external: map[netip.Addr]holder{}, lookups: maxLookups}
	nodes, err := of.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	n.nodes = nodes.Items
	for i := range n.nodes {
		for _, a := range n.nodes[i].Status.Addresses {
			add(n.known, a.Address, holder{"node/" + n.nodes[i].Name, n.nodes[i].Name})
		}
	}
	services, err := of.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		services, err = of.Client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	for i := range services.Items {
		s := &services.Items[i]
		h := holder{name: "svc/" + s.Namespace + "/" + s.Name}
		for _, text := range s.Spec.ClusterIPs {
			add(n.known, text, h)
		}
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			add(n.known, ingress.IP, h)
		}
		for _, text := range s.Spec.ExternalIPs {
			add(n.external, text, h)
		}
	}
	return n, nil
}

// add says who has an address, unless somebody has it already.
func add(known map[netip.Addr]holder, text string, h holder) {
	if a, err := netip.ParseAddr(text); err == nil && known[a.Unmap()] == (holder{}) {
		known[a.Unmap()] = h
	}
}

// addEndpoints learns the pods and nodes of a Service's endpoints.
func (n *names) addEndpoints(ctx context.Context, namespace, service string) error {
	list, err := n.cluster.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	for i := range list.Items {
		for _, e := range list.Items[i].Endpoints {
			h := holder{node: valueOf(e.NodeName)}
			if e.TargetRef != nil {
				h.name = strings.ToLower(e.TargetRef.Kind) + "/" + namespace + "/" + e.TargetRef.Name
			}
			for _, address := range e.Addresses {
				add(n.known, address, h)
			}
		}
	}
	return nil
}

// of returns who has an address. It asks for pods one by one: a large cluster has very many.
func (n *names) of(ctx context.Context, a netip.Addr) holder {
	if _, asked := n.known[a]; !asked && n.lookups > 0 {
		n.lookups--
		n.known[a] = n.pod(ctx, a)
	}
	return cmp.Or(n.known[a], n.external[a])
}

// pod returns the pod whose first address it is.
func (n *names) pod(ctx context.Context, a netip.Addr) (h holder) {
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	// From the server's cache: the selector costs it a look at each pod there, and no read of its store.
	pods, err := n.cluster.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0",
		FieldSelector: fields.OneTermEqualSelector("status.podIP", a.String()).String()})
	if err != nil {
		return h
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			h = holder{"pod/" + p.Namespace + "/" + p.Name, p.Spec.NodeName}
		}
	}
	return h
}

// addressOf returns a Node's address in the family of another address; invalid if it has none.
func (n *names) addressOf(node string, like netip.Addr) netip.Addr {
	for i := range n.nodes {
		if n.nodes[i].Name != node {
			continue
		}
		for _, a := range n.nodes[i].Status.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if err == nil && a.Type == corev1.NodeInternalIP && addr.Is4() == like.Is4() {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// legend has a line for each address of the texts that somebody has.
func (n *names) legend(ctx context.Context, texts ...string) (lines []string) {
	addressLike := regexp.MustCompile(`[0-9a-fA-F:.]*[0-9a-fA-F]`) // with a port or without
	seen := map[netip.Addr]bool{}
	for _, word := range addressLike.FindAllString(strings.Join(texts, "\n"), -1) {
		a, err := netip.ParseAddr(word)
		if err != nil {
			at, err := netip.ParseAddrPort(word)
			if err != nil {
				continue
			}
			a = at.Addr()
		}
		if a = a.Unmap(); seen[a] {
			continue
		}
		seen[a] = true
		switch h := n.of(ctx, a); {
		case h.name == "":
		case strings.HasPrefix(h.name, "pod/"):
			lines = append(lines, fmt.Sprintf("%s is %s on node %s", a, h.name, h.node))
		default:
			lines = append(lines, fmt.Sprintf("%s is %s", a, h.name))
		}
	}
	slices.Sort(lines)
	return lines
}
